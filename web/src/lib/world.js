// The map: land from Natural Earth (public domain), in the Natural Earth projection.

import { geoGraticule10, geoNaturalEarth1, geoPath } from "d3-geo";
import { feature } from "topojson-client";
import atlas from "world-atlas/land-110m.json";

export const WIDTH = 960;
export const HEIGHT = 500;

const land = feature(atlas, atlas.objects.land);
const projection = geoNaturalEarth1().fitExtent(
  [
    [8, 8],
    [WIDTH - 8, HEIGHT - 8],
  ],
  { type: "Sphere" },
);

/** Where a latitude and a longitude are on the map. */
export const project = ([latitude, longitude]) => projection([longitude, latitude]);

/** Draw the world on a context that is scaled already. */
export function drawWorld(context, colours, scale) {
  const path = geoPath(projection, context);
  context.lineWidth = 0.6 / scale;
  context.beginPath();
  path(geoGraticule10());
  context.strokeStyle = colours.land;
  context.stroke();
  context.beginPath();
  path(land);
  context.fillStyle = colours.land;
  context.fill();
  context.strokeStyle = colours.coast;
  context.stroke();
}
