// A door with the contract of tandem.js whose answers are fixed: for tests of what the page draws, and nothing else.
// `window.fake` (set by the test before the page loads) changes what happens; calls are kept in `window.calls`.
// `fake.memory` and `fake.decisions` are read at each call, so that a test can let blocks move while it looks on.
// With `behind` the models are loaded behind the client until the test calls `fake.arrive()`; they fail where it is
// `{fails: true}`, and with `{waits: true}` the GPU was lost and a text waits for it, as there is no cloud.

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const STAGES = [["runtime", 16e6], ["weights", 116.9e6], ["shaders", 30]];
const plan = { slow: 0, fail: {}, words: 24, tokens: 1, stages: STAGES, ...globalThis.fake };
const LOST = "The GPU was lost; the device is being made ready again.";
const calls = (globalThis.calls = []);
const MIB = 2 ** 20;

export class TandemError extends Error {
  constructor(code, message, details = {}) {
    super(message);
    Object.assign(this, { code, details });
  }
}

// Fails once (or `times`) and then works, so that a retry can be seen to help.
function maybeFail(call) {
  const failure = plan.fail[call];
  if (!failure || failure.times === 0) return;
  failure.times = (failure.times ?? 1) - 1;
  throw new TandemError(failure.code, failure.message);
}

// What inspect.memory() tells while the test gives nothing else: one layer, a cache of which a quarter is filled.
const MEMORY = {
  asked: 12 * MIB, live: 12 * MIB, peak: 12 * MIB, budget: 900 * MIB, tenants: {}, objects: {},
  moved: { bytes: 4 * MIB, uploads: 1 },
  moves: [],
  slabs: [
    { size: 8 * MIB, used: 4 * MIB, role: "weights", spans: [{ offset: 0, size: 4 * MIB, tenant: "language", label: "layers.0" }] },
    {
      size: 4 * MIB, used: 4 * MIB, role: "workspace",
      spans: [{ offset: 0, size: 4 * MIB, filled: MIB, tenant: "language", label: "layers.0.kv" }],
    },
  ],
};

export async function createClient({ onProgress, ...options }) {
  calls.push(["create", options]);
  for (const [stage, total] of plan.stages) {
    for (let step = 0; step <= 4; step++) {
      onProgress({ stage, loaded: (total * step) / 4, total });
      if (plan.slow) await pause(plan.slow);
    }
  }
  maybeFail("create");
  let device = options.adapter !== "none" && options.mode !== "only_in_cloud";
  let loading = Boolean(plan.behind);
  let arrived = null;
  if (loading) {
    device = false;
    onProgress({ stage: "weights", loaded: 5e6, total: 116.9e6 });
    arrived = new Promise((resolve) => (globalThis.fake.arrive = resolve)).then(() => {
      loading = false;
      device = !plan.behind.fails;
      if (device) onProgress({ stage: "weights", loaded: 116.9e6, total: 116.9e6 });
    });
  }
  let held = 0;
  return {
    get status() {
      const tenants = [
        { name: "language", bytes: 90 * MIB, resident: 90 * MIB },
        { name: "vision", bytes: 18 * MIB, resident: held },
      ];
      const pool = { budget: (options.poolMiB ?? 900) * MIB, used: 90 * MIB + held, tenants };
      const waits = loading && plan.behind.waits;
      const away = waits ? LOST : loading ? "This device is being made ready: its models are still being loaded." : "The device is not used.";
      const reason = device ? "The model runs on this device's GPU (Fake)." : away;
      const source = device || waits ? "device" : "cloud";
      const decisions = structuredClone(globalThis.fake?.decisions);
      const adapter = device ? "Fake" : null;
      return { tier: "high", adapter, software: false, loading, source, reason, pool: device ? pool : null, decisions };
    },
    inspect: {
      async memory() {
        calls.push(["memory", performance.now()]);
        const memory = structuredClone(globalThis.fake?.memory ?? MEMORY);
        await pause(plan.slowMemory ?? 0);
        calls.push(["remembered", performance.now()]);
        maybeFail("memory");
        if (!device) throw new TandemError("no_device", "No model runs on this device; ask for another adapter.");
        return memory;
      },
    },
    async describe(blob) {
      calls.push(["describe", blob.size, blob.type]);
      await pause(plan.slow);
      maybeFail("describe");
      held = 18 * MIB;
      const names = ["coffee mug", "cup", "espresso", "water jug", "pitcher, ewer"];
      const labels = [0.713, 0.132, 0.041, 0.012, 0.004].map((p, i) => ({ index: 500 + i, name: names[i], p }));
      return { labels, source: device ? "device" : "cpu", width: 8, height: 6 };
    },
    async *generate({ signal, ...request }) {
      calls.push(["generate", request]);
      let written = 0;
      if (loading && plan.behind.waits) {
        yield { type: "status", code: "device_lost", message: `${LOST} The text begins then.`, source: "device" };
        await arrived;
      }
      const source = plan.tells?.source ?? (device ? "device" : "cloud");
      const tokens = () => ({ deviceTokens: 0, cloudTokens: 0, [`${source}Tokens`]: written });
      const end = (reason) => [
        { type: "usage", promptTokens: 50, completionTokens: written, ...tokens() },
        { type: "done", reason, source },
      ];
      if (plan.tells) yield { type: "status", message: "Told in English.", ...plan.tells };
      for (let i = 0; i < plan.words; i++) {
        if (i === 3) maybeFail("generate");
        if (signal.aborted) return yield* end("abort");
        calls.push(["text", performance.now()]);
        yield { type: "text", text: `${i ? " " : ""}word${i}${i % 8 === 7 ? "." : ""}`, tokens: plan.tokens, source };
        written += plan.tokens;
        await pause(plan.slow || 1);
      }
      yield* end("stop");
    },
    async close() {
      calls.push(["close"]);
    },
  };
}
