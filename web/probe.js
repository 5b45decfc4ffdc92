// What GPU is here, in a few milliseconds and before anything is downloaded: the one module that touches navigator.gpu.
// pyapp/gpu/probe.py says the same in the worker (tests/unit/test_probe.py compares the two).
//
// Nothing of it is kept for the next visit: the adapter must be asked anyway before a model may run on it, and everything
// here can be read off its answer.

import { refuse } from "./options.js";

const ADAPTERS = ["auto", "software", "none"];
const SOFTWARE_NAMES = ["swiftshader", "llvmpipe", "lavapipe", "basic render", "software"];
const GIB = 2 ** 30;
const TIERS = [["high", GIB], ["medium", GIB / 2], ["low", 0]]; // for a model with TIER_WEIGHTS; scaled for others
const TIER_WEIGHTS = 870_000_000;
const ANSWER_MS = 3_000; // a browser whose GPU process hangs answers never
const LIMITS = [
  "maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage", "maxComputeWorkgroupStorageSize",
  "maxComputeInvocationsPerWorkgroup",
];

const gpu = () => globalThis.navigator?.gpu ?? null;

/** Does this browser have WebGPU at all? */
export const hasWebGpu = () => Boolean(gpu());

/**
 * @typedef {{tier: "high" | "medium" | "low" | "unsupported", adapter: string, software: boolean, usable: boolean,
 *   reason: string, features: string[], limits: Record<string, number>, memoryGiB: number | null, ms: number}} Probe
 *   `usable`: whether models may run on it, and `reason` why (not); `memoryGiB`: what the browser tells of the machine's
 *   memory; `ms`: how long it took to find out
 */

/**
 * Asks the browser for a GPU.
 * @param {{adapter?: "auto" | "software" | "none", weights?: number | null}} [options] `adapter` as in createClient;
 *   `weights`: bytes of the model that is to run, for the tier
 * @returns {Promise<Probe>}
 * @throws {TandemError} bad_argument
 */
export async function probeDevice(options) {
  const { adapter = "auto", weights = null } = options ?? {};
  const counts = weights === null || (Number.isFinite(weights) && weights >= 0);
  if (!counts) throw refuse("weights", "a number of bytes, or null", weights);
  if (!ADAPTERS.includes(adapter)) throw refuse("adapter", `one of ${ADAPTERS.join(", ")}`, adapter);
  const begun = performance.now();
  const found = adapter === "none" ? absent("the GPU was switched off by the adapter setting") : await look(adapter, weights);
  const memoryGiB = globalThis.navigator?.deviceMemory ?? null;
  return { ...found, memoryGiB, ms: performance.now() - begun };
}

async function look(wish, weights) {
  if (!hasWebGpu()) return absent("this browser has no WebGPU (or the page is not served over https)");
  let handle;
  try {
    handle = await inTime(request(wish));
  } catch (error) {
    return absent(`the browser failed to give a GPU adapter (${error})`);
  }
  if (handle === undefined) return absent(`the browser gave no answer about a GPU within ${ANSWER_MS / 1000} s`);
  return handle ? describe(handle, wish, weights) : absent("the browser found no GPU adapter");
}

async function request(wish) {
  const adapter = await gpu().requestAdapter({ powerPreference: "high-performance" });
  if (adapter || wish !== "software") return adapter ?? null;
  return (await gpu().requestAdapter({ forceFallbackAdapter: true })) ?? null;
}

/** What `promise` comes to; undefined where that takes too long. */
async function inTime(promise) {
  let timer;
  const late = new Promise((resolve) => { timer = setTimeout(resolve, ANSWER_MS); });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

// `info` came to browsers later than adapters did.
function describe({ info = {}, limits: offered, features: all }, wish, weights) {
  const words = [info.vendor, info.architecture, info.device, info.description].filter(Boolean);
  const adapter = [...new Set(words)].join(" ") || "unnamed adapter";
  const emulated = SOFTWARE_NAMES.some((name) => adapter.toLowerCase().includes(name));
  const software = Boolean(info.isFallbackAdapter) || emulated;
  const limits = Object.fromEntries(LIMITS.map((name) => [name, offered[name]]));
  const features = [...all].sort();
  const about = { adapter, software, features, limits };
  if (software && wish !== "software") {
    const reason = `the only adapter is ${adapter}, a GPU emulated on the CPU`;
    return { ...about, tier: "unsupported", usable: false, reason };
  }
  const tier = tierOf(limits.maxStorageBufferBindingSize, weights ?? TIER_WEIGHTS);
  return { ...about, tier, usable: true, reason: `running on ${adapter}` };
}

function tierOf(binding, weights) {
  return TIERS.find(([, least]) => binding >= (least * weights) / TIER_WEIGHTS)[0];
}

function absent(reason) {
  return { tier: "unsupported", adapter: "", software: false, usable: false, reason, features: [], limits: {} };
}
