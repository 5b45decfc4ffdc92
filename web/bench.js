// Measures the engine on this device through the JavaScript door, and POSTs each row as JSON to /log.
// It ends with {"done": 1} whatever happens, so that whoever waits for it never waits in vain.

import { longContexts } from "./bench-context.js";
import { median, spread, timed } from "./bench-figures.js";
import { language } from "./bench-language.js";
import { start as startup } from "./bench-start.js";
import { createClient } from "./tandem.js";

const query = new URLSearchParams(location.search);
const number = (name, fallback) => Number(query.get(name) ?? fallback);
const REPS = number("reps", 3);
const TOKENS = number("tokens", 128);
const PROMPT = number("prompt", 256);
const CONTEXTS = (query.get("contexts") || "128,4096").split(",").map(Number);
/** Benches to run: language, context, vision, profile, start, sharing, kernels; where none are named language and vision, and
 * profile if asked. */
const WHICH = query.get("which")?.split(",") ?? ["language", "vision", ...(query.has("profile") ? ["profile"] : [])];
const VISION = query.get("vision") ?? "efficientnet-lite0";
const QUESTION = [{ role: "user", content: "Write a product description for a red ceramic coffee cup." }];

const OPTIONS = {
  adapter: query.get("adapter") ?? "auto",
  model: query.get("model") ?? "smollm2-135m",
  vision: VISION === "none" ? null : VISION,
  mode: "only_on_device",
  poolMiB: number("pool", 900),
  cloud: null,
  tune: query.has("tune"),
};

async function post(row) {
  document.getElementById("rows").textContent += `${JSON.stringify(row)}\n`;
  await fetch("log", { method: "POST", body: JSON.stringify(row) }).catch(() => {});
}

/** Tells a stage's beginning and end, and the bytes that it moved. */
class Stages {
  #stages = new Map();
  #zero = performance.now();

  note({ stage, loaded, total }) {
    const at = performance.now() - this.#zero;
    const seen = this.#stages.get(stage) ?? { from: at, bytes: 0 };
    this.#stages.set(stage, { ...seen, to: at, bytes: Math.max(seen.bytes, loaded), total });
  }

  rows() {
    return [...this.#stages].map(([stage, { from, to, bytes }]) => ({
      stage,
      from_ms: Math.round(from),
      to_ms: Math.round(to),
      amount: bytes,
    }));
  }

  upload() {
    const stage = this.#stages.get("upload");
    return stage && stage.to > stage.from ? stage.bytes / 1e6 / (stage.to - stage.from) : null;
  }
}

async function vision(client) {
  const picture = Uint8Array.from({ length: 224 * 224 * 3 }, (_, i) => (i * 31) % 251);
  const cold = await timed(() => client.inspect.vision(picture));
  const warm = [];
  for (let i = 0; i < 10 * REPS; i++) warm.push(await timed(() => client.inspect.vision(picture)));
  const onGpu = await client.inspect.visionTimes(picture, 10 * REPS);
  const switched = [];
  for (let i = 0; i < REPS; i++) {
    await client.inspect.greedy([1, 2, 3, 4], 1);
    switched.push(await timed(() => client.inspect.vision(picture)));
  }
  await post({
    bench: "vision",
    vision_first_ms: cold,
    vision_ms: median(warm),
    vision_spread: spread(warm),
    vision_gpu_ms: median(onGpu),
    vision_gpu_spread: spread(onGpu),
    switch_ms: Math.max(0, median(switched) - median(warm)),
  });
}

/** Benches that Python runs in a worker of its own, below the door. */
const BELOW = ["sharing", "kernels"];

function below(which) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(new URL("./bench-worker.js", import.meta.url), { type: "module" });
    let posted = Promise.resolve();
    worker.onmessage = ({ data: { row, done } }) => {
      if (row) posted = posted.then(() => post(row));
      if (!done) return;
      worker.terminate();
      resolve(posted);
    };
    worker.onerror = (event) => reject(new Error(event.message || "bench-worker.js cannot be loaded or run"));
    worker.postMessage({ which, query: Object.fromEntries(query) });
  });
}

/** One model at a time, through the door. */
async function models() {
  const stages = new Stages();
  const start = performance.now();
  const client = await createClient({ ...OPTIONS, onProgress: (progress) => stages.note(progress) });
  const ready = performance.now() - start;
  const { adapter, software, tier } = client.status;
  await post({ adapter, software, tier, browser: navigator.userAgent.match(/Chrom\w*\/[\d.]+/)?.[0] ?? "", reps: REPS });
  await post({ bench: "load", ready_ms: ready, upload_GBps: stages.upload() });
  for (const row of stages.rows()) await post({ bench: "stage", ...row });
  const { kernels, ms, msAtLoad } = await client.inspect.selfcheck();
  const worst = Math.max(...kernels.map(({ error }) => error));
  await post({ bench: "selfcheck", kernels: kernels.length, ms, at_load_ms: msAtLoad, worst_of_tolerance: worst });
  const plan = await client.inspect.plan("language");
  await post({
    bench: "plan",
    dispatches_per_token: plan.rows.reduce((sum, row) => sum + row.dispatches, 0),
    dispatches_per_layer: plan.dispatchesPerLayer,
    weight_bytes: client.status.pool.tenants.find(({ name }) => name === "language")?.bytes ?? 0,
  });
  const loaded = VISION === "none" ? ["language"] : ["language", "vision"];
  if (WHICH.includes("language")) await language(post, client, QUESTION, { reps: REPS, tokens: TOKENS, prompt: PROMPT });
  if (WHICH.includes("context")) await longContexts(post, client, QUESTION, { reps: REPS, tokens: TOKENS, contexts: CONTEXTS });
  if (WHICH.includes("vision") && loaded.includes("vision")) await vision(client);
  for (const model of WHICH.includes("profile") ? loaded : []) {
    for (const row of await client.inspect.profile(model)) await post({ bench: "kernel", model, ...row });
  }
  const memory = await client.inspect.memory();
  await post({ bench: "memory", asked: memory.asked, peak: memory.peak, objects: JSON.stringify(memory.objects) });
  await client.close();
}

try {
  if (WHICH.includes("start")) await startup(post, OPTIONS, QUESTION, REPS);
  if (WHICH.some((name) => name !== "start" && !BELOW.includes(name))) await models();
  for (const name of BELOW) if (WHICH.includes(name)) await below(name);
} catch (error) {
  await post({ error: String(error), code: error?.code ?? "", stack: String(error?.stack ?? "").slice(0, 500) });
} finally {
  await post({ done: 1 });
}
