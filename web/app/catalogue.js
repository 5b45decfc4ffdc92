// What the site offers (models/index.json), and what a start would download beyond what is kept on this device.

import { missingBytes, storeKey } from "./kept.js";

const DEFAULTS = { model: "smollm2-135m", vision: "efficientnet-lite0" };
const MODELS = new URL("../models/", import.meta.url);

async function json(path) {
  const answer = await fetch(new URL(path, MODELS));
  if (!answer.ok) throw new Error(`${path}: HTTP ${answer.status}`);
  return answer.json();
}

/** The models of models/index.json; an empty list when it cannot be read (createClient then says what is wrong). */
export async function loadCatalogue() {
  try {
    const { models } = await json("index.json");
    return Array.isArray(models) ? models : [];
  } catch {
    return [];
  }
}

/** Bytes of Python itself, compressed, as a first visit fetches them; null when nobody says how many. */
export async function runtimeDownload() {
  try {
    return (await json("../wheels/index.json")).runtimeDownloadBytes ?? null;
  } catch {
    return null;
  }
}

/** The chosen language model's entry; null for the address of a .gguf, or a name that the site does not list. */
export function languageModel(models, options) {
  const name = options.model ?? DEFAULTS.model;
  return models.find((model) => model.kind === "language" && model.name === name) ?? null;
}

/** The chosen vision model's entry, or null. */
export function visionModel(models, options) {
  const name = options.vision === undefined ? DEFAULTS.vision : options.vision;
  return models.find((model) => model.kind === "vision" && model.name === name) ?? null;
}

/**
 * What a start with these options would fetch: [{ title, bytes }], bytes null where nobody says how many.
 * The language model's weights are for the GPU only, so nobody downloads them where there is no `usable` one, or where
 * the cloud is asked first.
 */
export async function pendingDownloads(models, options, usable) {
  const cloudFirst = options.cloud !== null && ["only_in_cloud", "prefer_in_cloud"].includes(options.mode);
  const onDevice = usable && !cloudFirst;
  const wanted = [visionModel(models, options)];
  if (onDevice) wanted.unshift(languageModel(models, options) ?? (await fileAt(options.model)));
  const pending = [];
  for (const model of wanted.filter(Boolean)) {
    const bytes = await missing(model);
    if (bytes !== 0) pending.push({ title: model.title, bytes });
  }
  return pending;
}

async function missing({ name, url, bytes }) {
  try {
    const manifest = url ? null : await json(`${name}/manifest.json`);
    return await missingBytes(await storeKey({ manifest, url }), bytes);
  } catch {
    return bytes;
  }
}

// The address of a .gguf as a catalogue entry. Its server may not say how big it is, or not to us.
async function fileAt(address) {
  if (!address || !/\.gguf($|[?#])/i.test(address)) return null;
  try {
    const { href, pathname } = new URL(address, document.baseURI);
    const entry = { title: pathname.split("/").pop(), url: href, bytes: null };
    const answer = await fetch(href, { method: "HEAD" }).catch(() => null);
    if (answer?.ok) entry.bytes = Number(answer.headers.get("content-length")) || null;
    return entry;
  } catch {
    return null; // no address at all: createClient says so
  }
}
