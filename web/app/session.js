// The page's one client: made once, on demand; made anew after it failed or closed. Everything heavy is in its worker.

import { createClient } from "../tandem.js";

export class Session {
  #options;
  #hooks;
  #gate;
  #client = null;
  #starting = null;

  /**
   * `options` are createClient's. `gate()` is awaited before anything is fetched, and may return other options (the
   * visitor chose the cloud). `hooks.progress({stage, loaded, total})`, `hooks.state("idle" | "starting" | "ready")`.
   */
  constructor(options, gate, hooks) {
    this.#options = options;
    this.#gate = gate;
    this.#hooks = hooks;
  }

  /** The client, once it can answer. Calls at the same time share one start; a start that failed may be tried again. */
  ready() {
    this.#starting ??= this.#start().catch((error) => {
      this.#starting = null;
      this.#hooks.state("idle");
      throw error;
    });
    return this.#starting;
  }

  async #start() {
    const options = { ...this.#options, ...(await this.#gate()) };
    this.#hooks.state("starting");
    this.#client = await createClient({ ...options, onProgress: (event) => this.#hooks.progress(event) });
    this.#hooks.state("ready");
    return this.#client;
  }

  /** The client's snapshot, or null before there is one. */
  get status() {
    return this.#client?.status ?? null;
  }

  /** What lies where on the GPU, as `client.inspect.memory()` tells it; null before there is a client. */
  async memory() {
    return this.#client ? this.#client.inspect.memory() : null;
  }

  /** Drop a client that cannot go on, so that the next `ready()` makes a new one. */
  async reset() {
    const old = this.#client;
    this.#client = null;
    this.#starting = null;
    this.#hooks.state("idle");
    await old?.close();
  }
}
