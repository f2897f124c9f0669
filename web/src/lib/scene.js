// The drawing of an overlay. Two thousand nodes and four thousand links stay smooth without a GPU,
// since what does not change is drawn once: links and nodes are one picture, the way that a message
// has gone is another. A frame copies both, and draws what is under way. While a person moves or
// scales, the pictures are moved and scaled; they are drawn anew when the hand rests.

import { palette } from "./colours.js";
import {
  MANY,
  drawFlights,
  drawFocus,
  drawHeads,
  drawLabels,
  drawLinks,
  drawNodes,
  line,
  namesFit,
  radiusOf,
} from "./drawing.js";
import { ForceLayout, mapLayout } from "./layout.js";
import { HEIGHT, WIDTH, drawWorld } from "./world.js";
import { View } from "./view.js";

const REST_MS = 140; // without a gesture, until pictures are drawn anew
const LAYOUT_MS = 9; // of a frame, for forces
const REDRAW_MANY_MS = 180; // between two pictures of a layout that moves, if it is large
const FLIGHTS_MAX = 3000;

export class Scene {
  constructor(canvas, { calm = false, onhover = () => {}, onchoose = () => {} } = {}) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    // Drawn in the page's own process: in one of two comparisons layouts had twice the frames, in
    // the other it made no difference (docs/decisions/0018-explorer.md).
    this.base = document.createElement("canvas");
    this.baseContext = this.base.getContext("2d", { willReadFrequently: true });
    this.trail = document.createElement("canvas");
    this.trailContext = this.trail.getContext("2d", { willReadFrequently: true });
    this.calm = calm;
    this.onhover = onhover;
    this.onchoose = onchoose;
    this.view = new View();
    this.baseView = this.view.copy();
    this.mode = "force";
    this.colours = palette(false);
    this.nodes = [];
    this.links = [];
    this.at = new Float32Array(0);
    this.layout = null;
    this.flights = [];
    this.path = null;
    this.hovered = -1;
    this.chosen = -1;
    this.stale = true;
    this.touchedMs = 0;
    this.drawnMs = 0;
    this.pending = 0;
  }

  destroy() {
    cancelAnimationFrame(this.pending);
    this.pending = -1;
  }

  // What is shown

  setGraph(nodes, links) {
    const before = new Map();
    this.nodes.forEach((node, index) => {
      if (this.mode === "force" && !Number.isNaN(this.at[2 * index])) {
        before.set(node.id, [this.at[2 * index] - WIDTH / 2, this.at[2 * index + 1] - HEIGHT / 2]);
      }
    });
    this.nodes = nodes;
    this.links = links;
    this.chosen = this.hovered = -1;
    this.#place(before);
  }

  /** The same links, measured again. */
  setRoundTrips(links) {
    this.links = links;
    this.#redraw();
  }

  setMode(mode) {
    if (mode === this.mode) return;
    this.mode = mode;
    this.#place(new Map());
  }

  setTheme(dark) {
    this.colours = palette(dark);
    this.#redraw();
  }

  resize() {
    const ratio = Math.min(2, devicePixelRatio || 1);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    for (const canvas of [this.canvas, this.base, this.trail]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.ratio = ratio;
    this.width = width;
    this.height = height;
    if (!this.view.touched) this.fit();
    this.#redraw();
  }

  fit() {
    if (this.width) this.view.fit(this.#corners(), this.width, this.height);
    this.#redraw();
  }

  /** The way of one message: who sent it to whom, and when it came. Plays unless told not to. */
  setPath(path, durationMs = 0) {
    this.path = path;
    this.flights = [];
    this.pathStart = performance.now();
    this.pathMs = this.calm ? 0 : durationMs;
    if (path) {
      const order = [...path.senders.keys()].filter((node) => path.senders[node] >= 0);
      order.sort((a, b) => path.delays[a] - path.delays[b]);
      this.pathOrder = order;
      this.pathLast = Math.max(...order.map((node) => path.delays[node]), 1e-9);
    }
    this.pathDone = 0;
    this.#redraw();
  }

  /** Whether a message is on its way. */
  get playing() {
    return Boolean(this.path) && this.pathDone < this.pathOrder.length;
  }

  /** How far it is, in its own milliseconds. */
  get playedMs() {
    if (!this.path) return 0;
    if (!this.pathMs) return this.pathLast;
    return Math.min(1, (performance.now() - this.pathStart) / this.pathMs) * this.pathLast;
  }

  /** Something goes from one node to another now. */
  fly(from, to, delayMs, durationMs) {
    if (this.calm || this.flights.length >= FLIGHTS_MAX) return;
    const start = performance.now() + delayMs;
    this.flights.push({ from, to, start, end: start + durationMs });
    this.wake();
  }

  // What a person does

  move(dx, dy) {
    this.view.move(dx, dy);
    this.#touched();
  }

  zoom(factor, x, y) {
    this.view.zoom(factor, x, y);
    this.#touched();
  }

  hover(x, y) {
    const found = this.#nearest(x, y);
    if (found !== this.hovered) {
      this.hovered = found;
      this.onhover(found);
      this.wake();
    }
  }

  choose(x, y) {
    this.select(this.#nearest(x, y));
    this.onchoose(this.chosen);
  }

  select(index) {
    this.chosen = index;
    this.wake();
  }

  // Frames

  wake() {
    if (!this.pending) this.pending = requestAnimationFrame(() => this.#frame());
  }

  #frame() {
    this.pending = 0;
    if (!this.width) return;
    const now = performance.now();
    this.#advanceLayout(now);
    const resting = now - this.touchedMs > REST_MS;
    const soon = this.layout && this.links.length > MANY ? REDRAW_MANY_MS : 0;
    if (this.stale && resting && now - this.drawnMs >= soon) this.#drawPictures(now);
    if (this.path) this.#advancePath();
    this.#compose(now);
    if (this.layout || this.stale || this.flights.length || this.playing) this.wake();
  }

  #advanceLayout(now) {
    if (!this.layout) return;
    const going = this.layout.run(LAYOUT_MS);
    this.at = this.layout.positions();
    if (!going) this.layout = null;
    if (!this.view.touched) this.view.fit(this.#corners(), this.width, this.height);
    this.stale = true;
    if (!going) this.drawnMs = 0;
  }

  #compose(now) {
    const { context, ratio } = this;
    const [by, dx, dy] = this.view.from(this.baseView);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = this.colours.sea;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(by, 0, 0, by, dx * ratio, dy * ratio);
    context.drawImage(this.base, 0, 0);
    if (this.path) context.drawImage(this.trail, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawFlights(this, now);
    if (this.path) drawHeads(this);
    for (const index of [this.chosen, this.hovered]) if (index >= 0) drawFocus(this, index);
  }

  #drawPictures(now) {
    this.stale = false;
    this.drawnMs = now;
    this.baseView = this.view.copy();
    const context = this.baseContext;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.base.width, this.base.height);
    this.#into(context, this.view);
    if (this.mode === "map") drawWorld(context, this.colours, this.view.scale);
    drawLinks(this, context);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    drawNodes(this, context);
    if (namesFit(this)) drawLabels(this, context);
    const trail = this.trailContext;
    trail.setTransform(1, 0, 0, 1, 0, 0);
    trail.clearRect(0, 0, this.trail.width, this.trail.height);
    this.pathDone = 0;
  }

  #into(context, view) {
    const { ratio } = this;
    context.setTransform(
      ratio * view.scale,
      0,
      0,
      ratio * view.scale,
      ratio * view.x,
      ratio * view.y,
    );
  }

  #advancePath() {
    const played = this.playedMs;
    const { path, pathOrder } = this;
    const context = this.trailContext;
    const from = this.pathDone;
    while (
      this.pathDone < pathOrder.length &&
      path.delays[pathOrder[this.pathDone]] <= played
    )
      this.pathDone++;
    if (this.pathDone === from) return;
    this.#into(context, this.baseView);
    context.lineWidth = (pathOrder.length > MANY ? 0.9 : 2.2) / this.baseView.scale;
    context.globalAlpha = pathOrder.length > MANY ? 0.55 : 0.95;
    const depth = Math.max(...path.hops, 1);
    const steps = this.colours.depth;
    for (let done = from; done < this.pathDone; done++) {
      const node = pathOrder[done];
      context.beginPath();
      line(this, context, path.senders[node], node);
      // A colour for each number of links; if there are more numbers than colours, for several.
      const far = Math.max(depth, steps.length) - 1;
      context.strokeStyle = steps[Math.round(((path.hops[node] - 1) / far) * (steps.length - 1))];
      context.stroke();
    }
    context.globalAlpha = 1;
    context.fillStyle = this.colours.path;
    const radius = (radiusOf(this) * 0.8) / this.baseView.scale;
    context.beginPath();
    for (let done = from; done < this.pathDone; done++) {
      const node = pathOrder[done];
      const [x, y] = [this.at[2 * node], this.at[2 * node + 1]];
      if (Number.isNaN(x)) continue;
      context.moveTo(x + radius, y);
      context.arc(x, y, radius, 0, 2 * Math.PI);
    }
    context.fill();
  }

  // Steps

  #place(before) {
    this.layout = null;
    if (this.mode === "map") {
      this.at = mapLayout(this.nodes);
    } else {
      this.layout = new ForceLayout(this.nodes, this.links, before);
      if (this.calm) this.layout.finish();
      this.at = this.layout.positions();
    }
    this.flights = [];
    if (!this.view.touched || !before.size) this.fit();
    this.#redraw();
  }

  #corners() {
    if (this.mode === "map" || !this.nodes.length) return [0, 20, WIDTH, HEIGHT - 20];
    let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
    for (let index = 0; index < this.at.length; index += 2) {
      left = Math.min(left, this.at[index]);
      right = Math.max(right, this.at[index]);
      top = Math.min(top, this.at[index + 1]);
      bottom = Math.max(bottom, this.at[index + 1]);
    }
    return [left, top, right, bottom];
  }

  #nearest(x, y) {
    const { at, view } = this;
    let best = 14 * 14;
    let found = -1;
    for (let index = 0; index < this.nodes.length; index++) {
      const dx = at[2 * index] * view.scale + view.x - x;
      const dy = at[2 * index + 1] * view.scale + view.y - y;
      const off = dx * dx + dy * dy;
      if (off < best) [best, found] = [off, index];
    }
    return found;
  }

  #touched() {
    this.touchedMs = performance.now();
    this.stale = true;
    this.wake();
  }

  #redraw() {
    this.stale = true;
    this.drawnMs = 0;
    this.wake();
  }
}
