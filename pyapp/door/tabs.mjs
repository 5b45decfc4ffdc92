// The turn that the tabs of one origin take at the GPU: a Web Lock, which the browser frees when its tab is closed or
// crashes, and a channel on which they tell each other who wants it and what the holder does. The worker registers this
// module as `tandem_tabs`.
//
// Third-party iframes refuse Web Locks with a SecurityError and insecure pages have none; nothing here rejects.

const NAME = "tandem-pool";

export class TabLock {
  #channel = null;
  #leave = () => {};

  /** `hear(line)` gets what the other tabs say. */
  constructor(hear) {
    try {
      this.#channel = new BroadcastChannel(NAME);
      this.#channel.onmessage = ({ data }) => hear(data);
    } catch {
      // Without a channel the holder does not hear who waits, and keeps the turn until it is closed.
    }
  }

  /**
   * Asks for the turn: in the queue with `wait`, else only if it is free.
   * @returns {Promise<"held" | "taken" | "left" | "refused">} `taken` only without `wait`; `left` after `leave`;
   *   `refused` where the browser has no locks
   */
  async acquire(wait) {
    const controller = new AbortController();
    let free = () => {};
    let left = false;
    this.#leave = () => {
      left = true;
      controller.abort();
      free();
    };
    try {
      return await new Promise((resolve, reject) => {
        const hold = (lock) => {
          if (left || !lock) return resolve(left ? "left" : "taken");
          resolve("held");
          return new Promise((end) => { free = end; });
        };
        const options = wait ? { signal: controller.signal } : { ifAvailable: true };
        globalThis.navigator.locks.request(NAME, options, hold).catch(reject);
      });
    } catch (error) {
      return left || error.name === "AbortError" ? "left" : "refused";
    }
  }

  /** Gives the turn back, or leaves the queue. */
  leave() {
    this.#leave();
  }

  /** Whether another tab waits for the turn. */
  async wanted() {
    try {
      const { pending } = await globalThis.navigator.locks.query();
      return pending.some(({ name }) => name === NAME);
    } catch {
      return false;
    }
  }

  say(line) {
    this.#channel?.postMessage(line);
  }

  close() {
    this.#leave();
    this.#channel?.close();
    this.#channel = null;
  }
}
