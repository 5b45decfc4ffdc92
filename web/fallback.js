// What is left without Python: text from the cloud, and a clear word about the rest.

import { ShopFetch } from "./access-token.js";
import { readCloud } from "./cloud-reader.js";
import { TandemError } from "./tandem-error.js";
import { Telemetry } from "./telemetry.js";

/** Serves a client whose worker cannot run. `wishes` are createClient's options, checked. */
export class Fallback {
  #mode;
  #cloud;
  #shop;
  #telemetry;
  #turn = Promise.resolve();

  constructor(wishes, page, onTelemetry = () => {}) {
    const { mode = "prefer_on_device", cloud = "/api/ai/cloud-stream", site = null, ancestor } = wishes;
    this.#shop = site === null ? null : new ShopFetch(site, ancestor);
    this.#telemetry = new Telemetry(wishes, onTelemetry, this.#shop);
    this.#mode = mode;
    this.#cloud = typeof cloud === "string" ? new URL(cloud, page).href : null;
  }

  /** Before the last texts are ended: what is told of them goes with a token that is there, or not at all. */
  close() {
    this.#shop?.close();
  }

  /** Throws where the device is wanted and nothing else. */
  check(death) {
    if (this.#mode === "only_on_device") throw death;
  }

  status(death) {
    const none = { adapter: null, software: false, loading: false, pool: null, decisions: [] };
    return { tier: "unsupported", source: "cloud", reason: death.message, ...none };
  }

  /** The error for everything that needs Python. */
  refusal(death) {
    const message = `${death.message} Photos and models need it; use a current browser that allows WebAssembly.`;
    return new TandemError("no_device", message, death.details);
  }

  /** Pushes the events of one generate; goes on after `shown` where the worker died at work. */
  generate(request, stream, shown, death) {
    return this.#telemetry.text(shown, death.code, (watch) => this.#queue(request, stream, shown, death, watch));
  }

  #queue(request, stream, shown, death, watch) {
    if (this.#mode === "only_on_device" || this.#cloud === null) return Promise.reject(death);
    const aborted = new Promise((resolve) => {
      stream.signal.addEventListener("abort", resolve);
      if (stream.signal.aborted) resolve();
    });
    const turn = Promise.race([this.#turn, aborted]).then(() => this.#write(request, stream, shown, death, watch));
    this.#turn = Promise.allSettled([this.#turn, turn]);
    return turn;
  }

  async #write(request, stream, shown, death, watch) {
    const { buildMessages, checkSampling } = await import("./prompt.js");
    const full = { ...checkSampling(request), messages: buildMessages(request) };
    const message = `${death.message} The text ${shown.text ? "goes on" : "is written"} from the cloud.`;
    if (!stream.signal.aborted) stream.push({ type: "status", code: death.code, message, source: "cloud" });
    try {
      const ask = this.#shop?.to(this.#cloud);
      for await (const event of readCloud(this.#cloud, full, stream.signal, shown, ask)) {
        watch.heard(event);
        stream.push(event);
      }
    } catch (error) {
      if (error.code !== "cloud_unavailable") throw error;
      throw new TandemError(error.code, `${error.message.replace(/\.$/, "")}. ${death.message}`, error.details);
    }
  }
}
