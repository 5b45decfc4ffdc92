// One worker and the calls to it: the JavaScript half of the messages in pyapp/worker.py.

import { TandemError } from "./tandem-error.js";

const BOOT_STALL_MS = 120_000; // with no sign of life for that long before Python runs, it never will
const CLOSE_MS = 2_000;

/** Calls into the worker. When it cannot start, or dies, `death` is the error that every call then rejects with. */
export class WorkerLink {
  /** @type {TandemError | null} */
  death = null;
  status = null;
  #worker = null;
  #calls = new Map();
  #last = 0;
  #stall = null;
  #booted = false;
  #onProgress;
  #onTelemetry;

  constructor(onProgress, onTelemetry = () => {}) {
    this.#onProgress = onProgress;
    this.#onTelemetry = onTelemetry;
    try {
      if (typeof WebAssembly !== "object") throw new Error("this browser has no WebAssembly");
      this.#worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "tandem" });
    } catch (error) {
      this.#die(error.message);
      return;
    }
    this.#worker.onmessage = ({ data: [line, attachment] }) => this.#receive(JSON.parse(line), attachment);
    this.#worker.onerror = (event) => {
      event.preventDefault();
      this.#die(event.message || "its script cannot be loaded or run");
    };
    this.#worker.onmessageerror = () => this.#die("a message from it cannot be read");
    this.#alive();
  }

  /** Sends one message and resolves with its answer. `given`: buffers of the attachment that are the worker's from now on. */
  call(op, fields, attachment = null, given = []) {
    return new Promise((resolve, reject) => {
      if (this.death) return reject(this.death);
      const id = ++this.#last;
      this.#calls.set(id, { answer: resolve, fail: reject, event: () => {} });
      this.#send(id, { op, id, ...fields }, attachment, given);
    });
  }

  /** Pushes the events of one generate to `stream`; `shown` keeps what was shown, for whoever has to take over. */
  generate(request, stream, shown) {
    return new Promise((resolve, reject) => {
      if (this.death) return reject(this.death);
      const id = ++this.#last;
      const event = (event) => {
        if (event.type === "text") {
          shown.first ??= performance.now();
          shown.source = event.source;
          shown.text += event.text;
          shown[event.source === "cloud" ? "cloudTokens" : "deviceTokens"] += event.tokens;
        } else if (event.type === "usage") shown.usage = event;
        else if (event.type === "done") shown.whole = true;
        stream.push(event);
      };
      this.#calls.set(id, { answer: resolve, fail: reject, event });
      this.#send(id, { op: "generate", id, request, aborted: stream.signal.aborted });
      const cancel = () => this.#calls.has(id) && this.#send(id, { op: "cancel", id });
      stream.signal.addEventListener("abort", cancel, { once: true });
    });
  }

  /** Ends all calls with the error `closed`; the worker gets a moment to give the GPU back, then goes. */
  async close(closed) {
    if (this.death) return;
    const open = [...this.#calls.values()];
    this.#calls.clear();
    for (const { fail } of open) fail(closed);
    const late = new Promise((resolve) => setTimeout(resolve, CLOSE_MS));
    await Promise.race([this.call("close", {}).catch(() => {}), late]);
    if (this.status) this.status = { ...this.status, reason: closed.message, pool: null };
    this.end();
  }

  end() {
    clearTimeout(this.#stall);
    this.#worker?.terminate();
  }

  #send(id, message, attachment = null, given = []) {
    try {
      this.#worker.postMessage([JSON.stringify(message, plain), attachment], given);
    } catch (error) {
      // A circle in the arguments, or a thing that cannot cross to a worker.
      this.#calls.get(id)?.fail(new TandemError("bad_argument", `The arguments cannot be sent: ${error.message}.`));
      this.#calls.delete(id);
    }
  }

  #receive(message, attachment) {
    if (message.dead) return this.#die(message.dead);
    if (message.booted) this.#booted = true;
    this.#alive();
    if (message.progress) this.#onProgress(message.progress);
    if (message.status) this.status = message.status;
    if (message.telemetry) this.#tell(message.telemetry);
    const call = this.#calls.get(message.re);
    if (!call) return undefined;
    if (message.event) return call.event(message.event);
    this.#calls.delete(message.re);
    return message.error ? call.fail(TandemError.from(message.error)) : call.answer(attachment ?? message.value);
  }

  #tell(record) {
    try {
      this.#onTelemetry(record);
    } catch (error) {
      console.error("onTelemetry failed", error);
    }
  }

  /** Puts the deadline of the start off; Python, once it runs, may take its time. */
  #alive() {
    clearTimeout(this.#stall);
    if (this.#booted) return;
    this.#stall = setTimeout(() => this.#die(`nothing came for ${BOOT_STALL_MS / 1000} seconds`), BOOT_STALL_MS);
  }

  #die(why) {
    if (this.death) return;
    const reason = `The Python runtime cannot run in this browser (${why}).`;
    this.death = new TandemError("no_device", reason, { cause: why });
    this.end();
    for (const { fail } of this.#calls.values()) fail(this.death);
    this.#calls.clear();
  }
}

/** JSON has no NaN, no BigInt and no typed arrays: the first two cross as text, which Python refuses by name. */
function plain(key, value) {
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  if (["bigint", "function", "symbol"].includes(typeof value)) return String(value);
  return ArrayBuffer.isView(value) ? Array.from(value) : value;
}
