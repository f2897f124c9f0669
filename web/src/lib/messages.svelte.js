// Messages of one stream that were followed, as far as their steps have come in.

const KEPT = 40;
const DELAYS_KEPT = 4000;

class Message {
  constructor(followed) {
    this.id = followed.id;
    this.publisher = followed.publisher;
    this.publishedMs = followed.published_ms;
    this.steps = $state.raw([]);
  }

  get reached() {
    return this.steps.length;
  }

  get hops() {
    return this.steps.reduce((most, [, , , hops]) => Math.max(most, hops), 0);
  }

  get lastMs() {
    return this.steps.reduce((most, [, , , , age]) => Math.max(most, age), 0) / 1000;
  }
}

export class Messages {
  /** The newest first. */
  list = $state.raw([]);
  delaysMs = $state.raw([]);
  perSecond = $state(0);
  #byId = new Map();
  #stream;
  #counts = [];

  constructor(stream) {
    this.#stream = stream;
  }

  /** Take a batch of the feed; gives the steps that are of this stream. */
  take(batch) {
    for (const followed of batch.followed) {
      if (followed.stream !== this.#stream) continue;
      const message = new Message(followed);
      this.#byId.set(message.id, message);
      this.list = [message, ...this.list].slice(0, KEPT);
      if (this.#byId.size > 2 * KEPT) this.#byId.delete(this.#byId.keys().next().value);
    }
    const fresh = new Map();
    for (const step of batch.steps) {
      const message = this.#byId.get(step[0]);
      if (!message) continue;
      if (!fresh.has(message)) fresh.set(message, []);
      fresh.get(message).push(step);
    }
    for (const [message, steps] of fresh) message.steps = [...message.steps, ...steps];
    const ours = [...fresh.values()].flat();
    if (ours.length) {
      const delays = ours.map(([, , , , age]) => age / 1000);
      this.delaysMs = [...this.delaysMs, ...delays].slice(-DELAYS_KEPT);
    }
    this.#rate(batch);
    return ours;
  }

  #rate(batch) {
    const told = batch.counts[this.#stream];
    this.#counts.push([batch.time_ms, told ? told.published : 0]);
    this.#counts = this.#counts.filter(([at]) => at > batch.time_ms - 10_000);
    const span = Math.max(1000, batch.time_ms - this.#counts[0][0]) / 1000;
    this.perSecond = this.#counts.reduce((sum, [, published]) => sum + published, 0) / span;
  }
}

/** A message's way as the drawing wants it: for each node of an overlay its sender and delay. */
export function pathOf(message, numbers, size) {
  const senders = new Array(size).fill(-1);
  const delays = new Array(size).fill(-1);
  const hops = new Array(size).fill(-1);
  const publisher = numbers.get(message.publisher);
  if (publisher === undefined) return null;
  delays[publisher] = hops[publisher] = 0;
  for (const [, sender, receiver, count, age] of message.steps) {
    const [from, to] = [numbers.get(sender), numbers.get(receiver)];
    if (from === undefined || to === undefined || to === publisher) continue;
    senders[to] = from;
    delays[to] = age / 1000;
    hops[to] = count;
  }
  return { publisher, senders, delays, hops };
}

/** The same as a tree of names, for people who read it. */
export function treeOf(path) {
  const children = new Map();
  path.senders.forEach((sender, node) => {
    if (sender < 0) return;
    if (!children.has(sender)) children.set(sender, []);
    children.get(sender).push(node);
  });
  for (const nodes of children.values()) nodes.sort((a, b) => path.delays[a] - path.delays[b]);
  return children;
}
