// What the drawing of an overlay consists of: lines, dots and names, wherever the view has them.

import { group, rttStep } from "./colours.js";

export const MANY = 600; // nodes or links, from which on each is drawn thin
const BEND = 0.14; // of a link on the map, as a part of its length
const LABELS_MAX = 40; // nodes, up to which each has its name beside it
const LABELS_WIDTH = 480; // of the picture: on a phone names lie on each other
const FAINT = 0.28; // links, while one message is looked at
const FADE_MS = 350; // of a dot that has arrived

export function namesFit(scene) {
  const few = scene.nodes.length <= LABELS_MAX && scene.width > LABELS_WIDTH;
  return few && scene.mode === "force";
}

export function drawLinks(scene, context) {
  const { links } = scene;
  const steps = new Map();
  for (const link of links) {
    const step = rttStep(link[2]);
    if (!steps.has(step)) steps.set(step, []);
    steps.get(step).push(link);
  }
  // The more there are, the fainter each: what is seen then is where many go.
  const alpha =
    Math.max(0.13, Math.min(0.75, 9 / Math.sqrt(links.length + 1))) * (scene.path ? FAINT : 1);
  context.lineWidth = (links.length > MANY ? 0.7 : 1.4) / scene.view.scale;
  // The far ones first: there are more of them, and the near ones are short.
  for (const step of [...steps.keys()].sort((a, b) => b - a)) {
    context.beginPath();
    for (const [a, b] of steps.get(step)) line(scene, context, a, b);
    context.strokeStyle = step < 0 ? scene.colours.unmeasured : scene.colours.rtt[step];
    context.globalAlpha = alpha;
    context.stroke();
  }
  context.globalAlpha = 1;
}

export function line(scene, context, a, b) {
  const { at } = scene;
  const [ax, ay, bx, by] = [at[2 * a], at[2 * a + 1], at[2 * b], at[2 * b + 1]];
  if (Number.isNaN(ax) || Number.isNaN(bx)) return;
  context.moveTo(ax, ay);
  if (scene.mode === "map") context.quadraticCurveTo(...bend(scene, a, b), bx, by);
  else context.lineTo(bx, by);
}

/** The point towards which a link on the map is bent: up, as flights are drawn. */
function bend(scene, a, b) {
  const { at } = scene;
  const [ax, ay, bx, by] = [at[2 * a], at[2 * a + 1], at[2 * b], at[2 * b + 1]];
  return [(ax + bx) / 2, (ay + by) / 2 - BEND * Math.hypot(bx - ax, by - ay)];
}

/** A point of a link, on the screen. */
function along(scene, a, b, part) {
  const { at, view } = scene;
  let x;
  let y;
  if (scene.mode === "map") {
    const [cx, cy] = bend(scene, a, b);
    const rest = 1 - part;
    x = rest * rest * at[2 * a] + 2 * rest * part * cx + part * part * at[2 * b];
    y = rest * rest * at[2 * a + 1] + 2 * rest * part * cy + part * part * at[2 * b + 1];
  } else {
    x = at[2 * a] + part * (at[2 * b] - at[2 * a]);
    y = at[2 * a + 1] + part * (at[2 * b + 1] - at[2 * a + 1]);
  }
  return [x * view.scale + view.x, y * view.scale + view.y];
}

export function radiusOf(scene) {
  const grown = Math.sqrt(scene.view.scale);
  return Math.max(1.5, Math.min(9, (scene.nodes.length > MANY ? 1.7 : 5.2) * grown));
}

export function drawNodes(scene, context) {
  const { at, nodes, view } = scene;
  const radius = radiusOf(scene);
  const groups = new Map();
  nodes.forEach((node, index) => {
    if (Number.isNaN(at[2 * index])) return;
    const key = group(node.region);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(index);
  });
  for (const [key, members] of groups) {
    context.beginPath();
    for (const index of members) {
      const x = at[2 * index] * view.scale + view.x;
      const y = at[2 * index + 1] * view.scale + view.y;
      context.moveTo(x + radius, y);
      context.arc(x, y, radius, 0, 2 * Math.PI);
    }
    context.fillStyle = scene.colours.regions[key];
    context.globalAlpha = scene.path ? 0.45 : 1;
    context.fill();
    context.globalAlpha = 1;
    if (radius > 3) {
      context.lineWidth = 1.5;
      context.strokeStyle = scene.colours.ring;
      context.stroke();
    }
  }
}

export function drawLabels(scene, context) {
  const { at, nodes, view } = scene;
  context.font = "11px ui-monospace, Menlo, Consolas, monospace";
  context.fillStyle = scene.colours.label;
  context.textAlign = "center";
  nodes.forEach((node, index) => {
    const x = at[2 * index] * view.scale + view.x;
    const y = at[2 * index + 1] * view.scale + view.y;
    if (!Number.isNaN(x)) context.fillText(node.id.slice(0, 8), x, y + radiusOf(scene) + 13);
  });
}

/** Where the chosen message is now, and where it began. */
export function drawHeads(scene) {
  const { context, path, pathOrder } = scene;
  const played = scene.playedMs;
  context.fillStyle = scene.colours.head;
  context.beginPath();
  const radius = Math.max(1.6, radiusOf(scene) * 0.6);
  for (let next = scene.pathDone; next < pathOrder.length; next++) {
    const node = pathOrder[next];
    const sender = path.senders[node];
    const begun = Math.max(0, path.delays[sender]);
    if (begun > played) continue;
    const part = (played - begun) / Math.max(1e-6, path.delays[node] - begun);
    const [x, y] = along(scene, sender, node, Math.min(1, part));
    if (Number.isNaN(x)) continue;
    context.moveTo(x + radius, y);
    context.arc(x, y, radius, 0, 2 * Math.PI);
  }
  context.fill();
  const [x, y] = along(scene, path.publisher, path.publisher, 0);
  if (Number.isNaN(x)) return;
  context.beginPath();
  context.arc(x, y, radiusOf(scene) + 3.5, 0, 2 * Math.PI);
  context.lineWidth = 2.5;
  context.strokeStyle = scene.colours.head;
  context.stroke();
}

export function drawFlights(scene, now) {
  const { context } = scene;
  scene.flights = scene.flights.filter((flight) => flight.end > now - FADE_MS);
  context.fillStyle = scene.colours.head;
  for (const flight of scene.flights) {
    if (flight.start > now) continue;
    const part = Math.min(1, (now - flight.start) / (flight.end - flight.start));
    const [x, y] = along(scene, flight.from, flight.to, part);
    if (Number.isNaN(x)) continue;
    const after = Math.max(0, now - flight.end) / FADE_MS;
    context.globalAlpha = 1 - after;
    context.beginPath();
    context.arc(x, y, 3.2 + 5 * after, 0, 2 * Math.PI);
    context.fill();
  }
  context.globalAlpha = 1;
}

export function drawFocus(scene, index) {
  const { context } = scene;
  const [x, y] = along(scene, index, index, 0);
  if (Number.isNaN(x)) return;
  context.beginPath();
  for (const [a, b] of scene.links) {
    if (a !== index && b !== index) continue;
    const [bx, by] = along(scene, a === index ? b : a, a === index ? b : a, 0);
    context.moveTo(x, y);
    context.lineTo(bx, by);
  }
  context.lineWidth = 1.6;
  context.strokeStyle = scene.colours.path;
  context.stroke();
  context.beginPath();
  context.arc(x, y, radiusOf(scene) + 4, 0, 2 * Math.PI);
  context.lineWidth = 2;
  context.stroke();
}
