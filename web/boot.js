// Starts Python in a module worker: Pyodide from this site, our helpers in JavaScript, our wheel.
// Works under `script-src 'self' 'wasm-unsafe-eval'`: no eval, nothing from another host.

import { creating, unpacked } from "./compiled-libraries.js";
import { fetched, timed } from "./timeline.js";

export const here = new URL("./", import.meta.url).href;

/** The modules that Python imports by these names. */
const HELPERS = { tandem_replay: "replay.mjs", tandem_opfs: "opfs.mjs", tandem_tabs: "tabs.mjs" };

/** Adds up bytes as they come; `tell(sum)` hears of them now and then. */
function counter(tell) {
  let loaded = 0;
  let told = -Infinity;
  return (more, last = false) => {
    loaded += more;
    if (!last && performance.now() - told < 50) return;
    told = performance.now();
    tell(loaded);
  };
}

/** Counts what Pyodide fetches by itself, once it has come: a look into its streams would cost it a copy of each. */
function countRuntime(count) {
  const seen = new PerformanceObserver((list) => {
    for (const { name, decodedBodySize } of list.getEntries()) {
      if (/\/(pyodide\/[^/]+\.(wasm|zip|json)|wheels\/[^/]+\.wasm)$/.test(name)) count(decodedBodySize);
    }
  });
  seen.observe({ type: "resource" });
  return seen;
}

async function get(path) {
  const response = await fetch(here + path);
  if (!response.ok) throw new Error(`${path} answered with HTTP ${response.status}`);
  return response;
}

/** A file's bytes; `count` hears of each part. */
async function bytes(path, count) {
  const reader = (await get(path)).body.getReader();
  const parts = [];
  let size = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    size += part.value.byteLength;
    count(part.value.byteLength);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.byteLength;
  }
  return whole;
}

const options = {
  indexURL: here + "pyodide/",
  stdout: (text) => console.debug(text),
  stderr: (text) => console.warn(text),
};

/** Where Python finds packages. `sysconfig` would say the same, after reading how Python was built. */
const PACKAGES = `
import sys
f"{sys.prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
`;

/** Puts files where Python finds modules; `image` is what pyapp/setup/data/python_image.mjs wrote. */
function unpack(runtime, image) {
  const folder = runtime.runPython(PACKAGES);
  let at = 4 + new DataView(image.buffer).getUint32(0, true);
  const made = new Set();
  for (const [name, size] of JSON.parse(new TextDecoder().decode(image.subarray(4, at)))) {
    const path = `${folder}/${name}`;
    const parent = path.slice(0, path.lastIndexOf("/"));
    if (!made.has(parent)) runtime.FS.mkdirTree(parent);
    made.add(parent);
    runtime.FS.writeFile(path, image.subarray(at, at + size), { canOwn: true });
    at += size;
  }
}

/** The module of a wasm file, also from a server that does not say what it is. */
function compile(file) {
  const whole = async () => WebAssembly.compile(await (await get(file)).arrayBuffer());
  return WebAssembly.compileStreaming(get(file)).catch(whole);
}

/** Python out of the snapshot of its memory, with all modules imported; the files that it reads later are put there. */
async function startFromSnapshot({ images, compiled, layout }, scripts, count) {
  const modules = bytes(images.modules, count);
  const snapshot = bytes(images.snapshot, count).then(unpacked);
  const libraries = compiled.map(({ path, file }) => ({ path, module: compile(file) }));
  [modules, snapshot, ...libraries.map(({ module }) => module)].forEach((each) => each.catch(() => {})); // awaited below
  const { loadPyodide } = await scripts.loader;
  const runtime = await timed("Python started", ["scripts", "snapshot fetched", "wasm fetched", "libraries fetched"], () =>
    loadPyodide({ ...options, _loadSnapshot: snapshot, createPyodideModule: creating(scripts.factory, libraries, layout) }),
  );
  const image = await modules;
  await timed("modules unpacked", ["Python started", "modules fetched"], () => unpack(runtime, image));
  return runtime;
}

/** Python started anew, where the snapshot does not hold: it is an experiment. */
async function startAnew({ images }, scripts, count) {
  const { loadPyodide } = await scripts.loader;
  const modules = Promise.all([bytes(images.libraries, count), bytes(images.tandem, count)]);
  modules.catch(() => {}); // awaited below
  const runtime = await timed("Python started", ["scripts", "wasm fetched"], () => loadPyodide(options));
  const files = await modules;
  await timed("modules unpacked", ["Python started", "modules fetched"], () =>
    files.forEach((image) => unpack(runtime, image)),
  );
  return runtime;
}

async function start(index, scripts, count) {
  try {
    return await startFromSnapshot(index, scripts, count);
  } catch (error) {
    console.warn(`Python starts without its snapshot: ${said(error)}`);
    return startAnew(index, scripts, count);
  }
}

/** Pyodide with our package in it. `onProgress({stage: "runtime", loaded, total})` hears of the bytes that come. */
export async function boot(onProgress = () => {}) {
  // Refused here at once where the page's policy forbids wasm; the runtime's own error would come late and in riddles.
  new WebAssembly.Module(new Uint8Array([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]));
  const scripts = {
    loader: timed("loader", ["worker script"], () => import(here + "pyodide/pyodide.mjs")),
    factory: timed("scripts", ["worker script"], async () => (await import(here + "pyodide/pyodide.asm.mjs")).default),
    helpers: Promise.all(Object.values(HELPERS).map((path) => import(here + path))),
  };
  Object.values(scripts).forEach((each) => each.catch(() => {})); // awaited below
  const index = await timed("list of wheels", ["worker script"], async () => (await get("wheels/index.json")).json());
  const { images, compiled, runtimeBytes, runtimeDownloadBytes } = index;
  // What is counted has been unpacked already; what is told is as it was announced, as it comes over the network.
  const share = (loaded) => Math.min(1, loaded / runtimeBytes);
  const total = runtimeDownloadBytes;
  const tell = (loaded) => onProgress({ stage: "runtime", loaded: Math.round(share(loaded) * total), total });
  const count = counter(tell);
  count(0);
  const seen = countRuntime(count);
  try {
    const runtime = await start(index, scripts, count);
    fetched("wasm fetched", "pyodide.asm.wasm", ["loader", "list of wheels"]);
    fetched("snapshot fetched", images.snapshot, ["list of wheels"]);
    fetched("modules fetched", images.modules, ["list of wheels"]);
    if (compiled?.length) fetched("libraries fetched", compiled[0].file, ["list of wheels"]);
    runtime.runPython("import sys; sys.path_importer_cache.clear()"); // it has looked into those folders before
    // What is in the snapshot is the same for every visitor. That goes for the hash seed too, which meets nobody's data
    // but the visitor's own, and for time.tzname, which nothing of ours reads; os.urandom is the browser's.
    runtime.runPython("import random; random.seed()");
    const modules = await scripts.helpers;
    Object.keys(HELPERS).forEach((name, index) => runtime.registerJsModule(name, modules[index]));
    count(0, true);
    return runtime;
  } finally {
    seen.disconnect();
  }
}

/** The first line of what was thrown, without its full stop. */
export const said = (error) => String(error?.message ?? error).split("\n")[0].replace(/\.$/, "");
