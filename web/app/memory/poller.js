// Asks again and again while somebody looks: often while there is work, seldom while there is none, one call at a time.

const TICK_MS = 250;
const IDLE_TICKS = 4;

export class Poller {
  #ask;
  #atWork;
  #timer = null;
  #asking = false;
  #quiet = 0;

  /** `ask()` looks once and never rejects. `atWork()`: is anything going on that is worth a look at every tick? */
  constructor(ask, atWork) {
    this.#ask = ask;
    this.#atWork = atWork;
  }

  get running() {
    return this.#timer !== null;
  }

  /** Look at once, and from now on. Harmless when repeated. */
  start() {
    if (this.running) return;
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
    this.#look();
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = null;
  }

  #tick() {
    this.#quiet++;
    if (this.#quiet >= IDLE_TICKS || this.#atWork()) this.#look();
  }

  async #look() {
    if (this.#asking) return;
    this.#asking = true;
    this.#quiet = 0;
    try {
      await this.#ask();
    } finally {
      this.#asking = false;
    }
  }
}
