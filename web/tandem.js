/**
 * Tandem's door for pages: `createClient` opens a client, which describes photos and writes copy, on this device or
 * from the cloud. Everything happens in one module worker (worker.js), in Python; this file passes messages, and reads
 * the cloud's stream by itself where that worker cannot run.
 *
 * @typedef {{index: number, name: string, p: number}} Label
 * @typedef {{labels: Label[], source: "device" | "cpu", width: number, height: number}} Description
 * @typedef {{name: string, bytes: number, resident: number}} Tenant
 * @typedef {{when: number, model: string, need: number, room: number, action: "resident" | "stream" | "cloud",
 *   kv?: "f32" | "f16"}} Decision
 *   `when` in ms since 1970; bytes that the model's weights need, and that they have room for; what was done about it
 * @typedef {{tier: string | null, adapter: string | null, software: boolean, loading: boolean,
 *   source: "device" | "cloud", reason: string, pool: null | {budget: number, used: number, tenants: Tenant[]},
 *   decisions: Decision[]}} Status
 *   `loading`: whether models are being loaded, of which `onProgress` hears; `decisions`: the last 32, newest last
 * @typedef {{offset: number, size: number, tenant: string, label: string, filled?: number, streamed?: true}} Span
 *   bytes of a slab; `filled`: how many of a cache's hold something; `streamed`: weights that only pass through
 * @typedef {{asked: number, live: number, peak: number, budget: number, tenants: Record<string, number>,
 *   slabs: {size: number, used: number, role: "weights" | "workspace", spans: Span[]}[], objects: Record<string, number>,
 *   moved: {bytes: number, uploads: number}, moves: {at: number, tenant: string, label: string, slab: number,
 *   offset: number, bytes: number, direction: "in" | "out"}[], lease: {holder: string | null, waiting: number}}} Memory
 *   `moves`: the last 64, oldest first
 * @typedef {{type: "text", text: string, tokens: number, source: "device" | "cloud"}
 *   | {type: "status", code: string, message: string, source: "device" | "cloud"}
 *   | {type: "usage", promptTokens: number, completionTokens: number, deviceTokens: number, cloudTokens: number}
 *   | {type: "done", reason: "stop" | "length" | "abort", source: "device" | "cloud" | null}} GenerateEvent
 *   `text`: what came together; `tokens` that it stands for as far as is known by then, the usage counts better;
 *   `done`: the side that ended the text, of an aborted one the side that wrote last, null where nothing was written
 * @typedef {{mode: string, tier: string | null, outcome: string, sides: ("device" | "cloud")[], device_tokens: number,
 *   cloud_tokens: number, prompt_tokens: number, fallbacks: {reason: string, from: string, to: string,
 *   takeover_ms: number | null, mid_text: boolean}[], first_ms: number | null, total_ms: number}} TextRecord
 *   what the operator is told of one text, see pyapp/routing/telemetry.py
 * @typedef {{role: "system" | "user" | "assistant", content: string}} Message
 * @typedef {{prompt?: string, messages?: Message[], facts?: {labels: Label[]},
 *   brief?: {tone?: string, language?: string, length?: string, keywords?: string | string[]}, maxTokens?: number,
 *   temperature?: number, topK?: number, topP?: number, seed?: number, signal?: AbortSignal}} GenerateRequest
 */

import { EventStream } from "./event-stream.js";
import { Fallback } from "./fallback.js";
import { checkOptions, refuse } from "./options.js";
import { TandemError } from "./tandem-error.js";
import { WorkerLink } from "./worker-link.js";

export { probeDevice as probe } from "./probe.js";
export { TandemError };

const PICTURE = 224 * 224 * 3;

/**
 * Opens a client. Resolves when `generate` can answer, from the cloud too; with `only_on_device` once this tab has the
 * GPU: the tabs of one site take turns at it.
 *
 * @param {{model?: string, vision?: string | null,
 *   mode?: "prefer_on_device" | "only_on_device" | "prefer_in_cloud" | "only_in_cloud", poolMiB?: number,
 *   cloud?: string | null, adapter?: "auto" | "software" | "none",
 *   rebuildsPerHour?: number, cloudBelow?: number, streamBelow?: number,
 *   limits?: null | {maxBufferSize?: number, maxStorageBufferBindingSize?: number}, contextPressure?: number | null,
 *   stallSeconds?: number | null,
 *   site?: string | null, ancestor?: string | null,
 *   cloudWhileLoading?: boolean, tune?: boolean,
 *   telemetry?: string | null, onTelemetry?: (record: TextRecord) => void,
 *   onProgress?: (report: {stage: string, loaded: number, total: number | null}) => void}} [options]
 *   `model` is the name of a model of this site or the URL of a .gguf file.
 *   `rebuildsPerHour` (6): how often a lost GPU is made ready again; 0: never.
 *   `cloudBelow` (0.7): with room for a smaller share of the language model, `prefer_on_device` asks the cloud first.
 *   `streamBelow` (1): with room for a smaller share, its weights are streamed.
 *   `limits` (null): lower limits than the GPU's, in bytes.
 *   `contextPressure` (2048): tokens past which `prefer_on_device` has the cloud write where memory is under 4 GB; null:
 *   however many.
 *   `stallSeconds` (30): a GPU from which nothing has come for so long, or at least twice that before the first token,
 *   is given up; null: never.
 *   `site` (null): the merchant's public key, for a gateway with shops; `ancestor` (this page's): the origin of the
 *   shop's page.
 *   `cloudWhileLoading` (true): with `prefer_on_device` and a cloud, resolves once it is known whether there is a GPU;
 *   until the models are loaded the cloud writes, and photos are looked at on the CPU. False: when the device is ready.
 *   `tune` (false): true lets the first start on a GPU try which shapes of the kernels are the fastest, and keeps them.
 *   `telemetry` (null): an address that gets the records of texts, a few at a time; not with `only_on_device`.
 *   `onTelemetry` hears of each text at its end: figures only.
 * @returns {Promise<Client>}
 * @throws {TandemError} for bad arguments, or for `only_on_device` without a device; `busy` where another tab has kept
 *   the GPU for a minute
 */
export async function createClient(options = {}) {
  const page = globalThis.document?.baseURI ?? globalThis.location.href;
  const { onProgress = () => {}, onTelemetry = () => {}, ...wishes } = checkOptions(options, page);
  if (wishes.site) wishes.ancestor ??= new URL(globalThis.location.href).origin;
  const link = new WorkerLink(onProgress, onTelemetry);
  const fallback = new Fallback(wishes, page, onTelemetry);
  try {
    const base = new URL("./", import.meta.url).href;
    link.status = await link.call("open", { options: wishes, base, page: globalThis.document?.title ?? "" });
  } catch (error) {
    if (error !== link.death) {
      link.end();
      throw error;
    }
    fallback.check(error);
  }
  return new Client(link, fallback);
}

/** One open client. Calls made at the same time queue: texts in their order, photos in theirs. */
class Client {
  #link;
  #fallback;
  #closing = null;
  #writing = new Set();

  constructor(link, fallback) {
    this.#link = link;
    this.#fallback = fallback;
    /** The parts of the machine, for tests and the curious; every call rejects with no_device where there is none. */
    this.inspect = inspect((...call) => this.#call(...call));
  }

  /** @returns {Status} a snapshot; bytes */
  get status() {
    const status = this.#link.death ? this.#fallback.status(this.#link.death) : this.#link.status;
    return JSON.parse(JSON.stringify(status));
  }

  /**
   * What is in a photo: the 5 likeliest labels. The photo never leaves the browser.
   * @param {Blob} image
   * @returns {Promise<Description>}
   */
  async describe(image) {
    if (!/^\[object (Blob|File)\]$/.test(Object.prototype.toString.call(image))) {
      throw refuse("The argument of describe", "a Blob", image);
    }
    return this.#call("describe", {}, image);
  }

  /**
   * Writes. The work begins with the first `next()`; leaving the loop aborts it.
   * @param {GenerateRequest} request
   * @returns {AsyncIterableIterator<GenerateEvent>}
   */
  generate(request = {}) {
    return new EventStream(async (stream) => {
      if (request === null || typeof request !== "object") throw refuse("The argument of generate", "an object", request);
      const { signal = null, ...rest } = request;
      if (signal !== null && typeof signal?.addEventListener !== "function") {
        throw refuse("signal", "an AbortSignal", signal);
      }
      const stop = () => stream.abort();
      signal?.addEventListener("abort", stop);
      if (signal?.aborted) stop();
      this.#writing.add(stream);
      try {
        await this.#write(rest, stream);
      } finally {
        this.#writing.delete(stream);
        signal?.removeEventListener("abort", stop);
      }
    });
  }

  /** Ends all calls with `closed` and gives the GPU back. Harmless when repeated. */
  close() {
    if (!this.#closing) {
      this.#fallback.close();
      for (const stream of this.#writing) stream.fail(closed());
      this.#closing = this.#link.close(closed());
    }
    return this.#closing;
  }

  async #write(request, stream) {
    this.#open();
    const began = performance.now();
    const none = { text: "", deviceTokens: 0, cloudTokens: 0, usage: null, whole: false };
    const shown = { ...none, source: "device", began, first: null };
    if (!this.#link.death) {
      try {
        await this.#link.generate(request, stream, shown);
        return;
      } catch (error) {
        if (error !== this.#link.death) throw error;
        if (shown.usage) {
          // The text is whole; only the word about its end may be missing.
          if (!shown.whole) stream.push(endOf(shown, request, stream.signal.aborted));
          return;
        }
      }
    }
    await this.#fallback.generate(request, stream, shown, this.#link.death);
  }

  async #call(method, args, attachment, given) {
    this.#open();
    if (this.#link.death) throw this.#fallback.refusal(this.#link.death);
    return this.#link.call("call", { method, args }, attachment, given);
  }

  #open() {
    if (this.#closing) throw closed();
  }
}

function closed() {
  return new TandemError("closed", "This client is closed; create a new one.");
}

/** The last event of a text of which everything else has come. */
function endOf({ usage, source, text }, { maxTokens = 256 }, aborted) {
  const reason = aborted ? "abort" : usage.completionTokens < maxTokens ? "stop" : "length";
  return { type: "done", reason, source: aborted && !text ? null : source };
}

/** A picture of our own. */
function copyOf(picture) {
  if (!ArrayBuffer.isView(picture) || picture.byteLength !== PICTURE) {
    throw refuse("The picture", `a Uint8Array of ${PICTURE} bytes (224 x 224 x 3 RGB)`, picture);
  }
  return new Uint8Array(picture.buffer, picture.byteOffset, picture.byteLength).slice();
}

function inspect(call) {
  const look = async (method, args, picture) => {
    const own = copyOf(picture);
    return call(method, args, own, [own.buffer]);
  };
  return Object.freeze({
    /** @returns {Promise<number[]>} token ids, no BOS added */
    tokenize: (text, { special = true } = {}) => call("tokenize", { text, special }),
    /** @returns {Promise<string>} */
    detokenize: (ids) => call("detokenize", { ids }),
    /** @returns {Promise<string>} the conversation as the model reads it */
    render: (messages, { generationPrompt = true } = {}) => call("render", { messages, generationPrompt }),
    /** @returns {Promise<Float32Array>} [vocabulary] after the last id, fresh context */
    logits: (ids) => call("logits", { ids }),
    /** @returns {Promise<Float32Array>} [ids.length - 1] nats */
    nll: (ids) => call("nll", { ids }),
    /** @returns {Promise<number[]>} n ids, going on past an end token */
    greedy: (ids, n) => call("greedy", { ids, n }),
    /** @param {Uint8Array} picture 224 x 224 x 3 RGB @returns {Promise<Float32Array>} [classes] */
    vision: (picture) => look("vision", {}, picture),
    /** @returns {Promise<number[]>} ms from the submit of a picture on the GPU until its logits are read back, n times */
    visionTimes: (picture, n) => look("visionTimes", { n }, picture),
    /** @returns {Promise<Memory>} */
    memory: () => call("memory", {}),
    /** What of the start began and ended when: {stage, from, to, needs}, ms since 1970. */
    timeline: () => call("timeline", {}),
    plan: (which) => call("plan", { which }),
    profile: (which) => call("profile", { which }),
    /** Every kernel of the language model compared with NumPy; an error of at most 1 is right. */
    selfcheck: () => call("selfcheck", {}),
  });
}
