/**
 * An async iterator that a producer fills. The producer starts with the first `next()` and never waits for the reader,
 * so a reader who stops half-way holds nobody up; `return()` (leaving a loop) aborts it and does not wait for it.
 */
export class EventStream {
  #producer;
  #ready = [];
  #readers = [];
  #ended = false;
  #controller = new AbortController();

  constructor(producer) {
    this.#producer = producer;
  }

  /** Set when the reader has left or the caller's signal fired: the producer should come to its end. */
  get signal() {
    return this.#controller.signal;
  }

  abort() {
    this.#controller.abort();
  }

  /** Ends the stream from outside: the reader meets `error` after the events already made. */
  fail(error) {
    this.#end(error);
    this.abort();
  }

  push(event) {
    if (!this.#ended) this.#put({ value: event, done: false });
  }

  next() {
    const producer = this.#producer;
    if (producer) {
      this.#producer = null;
      // Not in this very call, so that an error thrown at once still reaches the reader who is about to wait.
      Promise.resolve()
        .then(() => producer(this))
        .then(
          () => this.#end(),
          (error) => this.#end(error),
        );
    }
    if (this.#ready.length) return settle(this.#ready.shift());
    if (this.#ended) return Promise.resolve({ value: undefined, done: true });
    return new Promise((resolve, reject) => this.#readers.push({ resolve, reject }));
  }

  return(value) {
    this.#producer = null;
    this.abort();
    this.#ready = [];
    this.#end();
    return Promise.resolve({ value, done: true });
  }

  throw(error) {
    this.return();
    return Promise.reject(error);
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  #put(item) {
    const reader = this.#readers.shift();
    if (!reader) this.#ready.push(item);
    else if (item.error) reader.reject(item.error);
    else reader.resolve(item);
  }

  #end(error) {
    if (this.#ended) return;
    if (error) this.#put({ error });
    this.#ended = true;
    for (const { resolve } of this.#readers.splice(0)) resolve({ value: undefined, done: true });
  }
}

function settle(item) {
  return item.error ? Promise.reject(item.error) : Promise.resolve(item);
}
