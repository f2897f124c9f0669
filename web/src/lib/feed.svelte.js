// The live feed, once for the whole page: views listen while they are shown.

import { lines } from "./api.js";

const AGAIN_MS = 2000;

class Feed {
  /** connecting, live, or lost. */
  state = $state("connecting");
  needsKey = $state(false);
  #listeners = new Set();
  #stopped = null;

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Begin, or begin again with another key. */
  async start() {
    this.#stopped?.abort();
    const stopped = (this.#stopped = new AbortController());
    while (!stopped.signal.aborted) {
      try {
        const batches = lines("feed", {}, stopped.signal);
        this.state = "live"; // the first line may take some seconds, if nothing happens
        for await (const batch of batches) {
          this.needsKey = false;
          this.state = "live";
          for (const listener of this.#listeners) listener(batch);
        }
      } catch (error) {
        if (stopped.signal.aborted) return;
        this.needsKey = Boolean(error.needsKey);
        if (this.needsKey) {
          this.state = "lost";
          return;
        }
      }
      this.state = "lost";
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

export const feed = new Feed();
