// Where nodes are drawn: by their place on the globe, or by forces between them.

import {
  forceCollide,
  forceLink,
  forceManyBody,
  forceSimulation,
  forceX,
  forceY,
} from "d3-force";
import { HEIGHT, WIDTH, project } from "./world.js";

const GOLDEN = Math.PI * (3 - Math.sqrt(5));
const MANY = 400; // nodes, from which on a layout must be cheap
const CROWD = 8; // nodes in each region, from which on regions keep together
const TICKS = 240;
const TICKS_MANY = 90;

/** The n-th point of an even spread around the middle. */
function spiral(n, step) {
  const radius = step * Math.sqrt(n);
  return [radius * Math.cos(n * GOLDEN), radius * Math.sin(n * GOLDEN)];
}

/** Nodes at their places; those of one place lie around it. */
export function mapLayout(nodes) {
  const at = new Float32Array(2 * nodes.length).fill(NaN);
  const taken = new Map();
  const crowd = nodes.length > MANY ? 0.95 : 2.2;
  nodes.forEach((node, index) => {
    if (!node.place) return;
    const key = node.place.join();
    const number = taken.get(key) ?? 0;
    taken.set(key, number + 1);
    const [x, y] = project(node.place);
    const [dx, dy] = spiral(number, crowd);
    at[2 * index] = x + dx;
    at[2 * index + 1] = y + dy;
  });
  return at;
}

/** Forces that go on for a while: links pull, nodes push, and regions keep together. */
export class ForceLayout {
  constructor(nodes, links, before = new Map()) {
    const found = [...new Set(nodes.map((node) => node.region))].sort();
    const several = found.length > 1 && nodes.length >= CROWD * found.length;
    const regions = several ? found : [""];
    const regionOf = (node) => (several ? node.region : "");
    const centre = new Map(
      regions.map((region, number) => {
        const angle = (2 * Math.PI * number) / regions.length - Math.PI / 2;
        const away = regions.length > 1 ? 1 : 0;
        return [region, [away * 300 * Math.cos(angle), away * 165 * Math.sin(angle)]];
      }),
    );
    const inRegion = new Map();
    this.points = nodes.map((node) => {
      const known = before.get(node.id);
      if (known) return { x: known[0], y: known[1] };
      const number = inRegion.get(regionOf(node)) ?? 0;
      inRegion.set(regionOf(node), number + 1);
      const [x, y] = centre.get(regionOf(node));
      const [dx, dy] = spiral(number + 0.5, nodes.length > MANY ? 4 : 16);
      return { x: x + dx, y: y + dy };
    });
    const many = nodes.length > MANY;
    const hold = several ? (many ? 0.16 : 0.12) : many ? 0.05 : 0.06;
    this.simulation = forceSimulation(this.points)
      .force("push", forceManyBody().strength(many ? -9 : -140).theta(1.1).distanceMax(many ? 120 : 420))
      .force(
        "pull",
        forceLink(links.map(([source, target]) => ({ source, target })))
          .distance(many ? 30 : 62)
          .strength(several ? 0.012 : many ? 0.06 : 0.22),
      )
      .force("x", forceX((_, index) => centre.get(regionOf(nodes[index]))[0]).strength(several ? hold : hold * 0.55))
      .force("y", forceY((_, index) => centre.get(regionOf(nodes[index]))[1]).strength(hold))
      .stop();
    if (!many) this.simulation.force("apart", forceCollide(13));
    const ticks = many ? TICKS_MANY : TICKS;
    this.simulation.alphaDecay(1 - Math.pow(0.001, 1 / ticks));
    if (before.size) this.simulation.alpha(0.35);
  }

  /** Go on for so many milliseconds; false once everything is at rest. */
  run(budgetMs) {
    const end = performance.now() + budgetMs;
    do {
      if (this.simulation.alpha() < this.simulation.alphaMin()) return false;
      this.simulation.tick();
    } while (performance.now() < end);
    return true;
  }

  /** All of it at once, for people who do not want things to move. */
  finish() {
    while (this.run(50));
  }

  positions() {
    const at = new Float32Array(2 * this.points.length);
    this.points.forEach((point, index) => {
      at[2 * index] = point.x + WIDTH / 2;
      at[2 * index + 1] = point.y + HEIGHT / 2;
    });
    return at;
  }
}
