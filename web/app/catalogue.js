// What the site offers (models/index.json), what a start would download, and what is already kept on this device.

const DEFAULTS = { model: "smollm2-135m", vision: "efficientnet-lite0" };

/** The models of models/index.json; an empty list when it cannot be read (createClient then says what is wrong). */
export async function loadCatalogue() {
  try {
    const answer = await fetch(new URL("../models/index.json", import.meta.url));
    const { models } = await answer.json();
    return Array.isArray(models) ? models : [];
  } catch {
    return [];
  }
}

/** The chosen language model's entry, or null for the address of a .gguf or a name the site does not list. */
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
 * What a start with these options would fetch: [{ title, bytes }]. The language model's weights are for the GPU only,
 * so nobody downloads them where the browser has none, or where the cloud writes anyway.
 */
export async function pendingDownloads(models, options, hasGpu = "gpu" in navigator) {
  const wanted = [visionModel(models, options)];
  const cloudFirst = options.cloud !== null && ["only_in_cloud", "prefer_in_cloud"].includes(options.mode);
  const onDevice = hasGpu && options.adapter !== "none" && !cloudFirst;
  if (onDevice) wanted.unshift(languageModel(models, options));
  const pending = [];
  for (const model of wanted) {
    if (model && !(await isKept(model))) pending.push({ name: model.name, title: model.title, bytes: model.bytes });
  }
  return pending;
}

async function isKept(model) {
  return false;
}
