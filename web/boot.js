// Starts Python in a module worker: Pyodide from this site, our helpers in JavaScript, our wheel.
// Works under `script-src 'self' 'wasm-unsafe-eval'`: no eval, nothing from another host.

import { ended, fetched, now, timed } from "./timeline.js";

export const here = new URL("./", import.meta.url).href;

/** The modules that Python imports by these names. */
const HELPERS = { tandem_replay: "replay.mjs", tandem_opfs: "opfs.mjs", tandem_tabs: "tabs.mjs" };

/** Counts the bytes of every body that is fetched while `work` runs; `tell(loaded)` hears of them now and then. */
async function counting(tell, work) {
  const original = self.fetch;
  let loaded = 0;
  let told = 0;
  const count = async (reader) => {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      loaded += part.value.byteLength;
      if (performance.now() - told < 50) continue;
      told = performance.now();
      tell(loaded);
    }
    tell(loaded);
  };
  tell(0);
  self.fetch = async (...request) => {
    const response = await original.call(self, ...request);
    if (response.body) count(response.clone().body.getReader()).catch(() => {});
    return response;
  };
  try {
    return await work();
  } finally {
    self.fetch = original;
  }
}

async function get(path) {
  const response = await fetch(here + path);
  if (!response.ok) throw new Error(`${path} answered with HTTP ${response.status}`);
  return response;
}

const bytes = async (path) => new Uint8Array(await (await get(path)).arrayBuffer());

/** A started Python. Where the snapshot of its memory does not hold, which is an experiment of Pyodide's, without it. */
async function start(loadPyodide, snapshot) {
  const options = {
    indexURL: here + "pyodide/",
    stdout: (text) => console.debug(text),
    stderr: (text) => console.warn(text),
  };
  try {
    return await loadPyodide({ ...options, _loadSnapshot: snapshot });
  } catch (error) {
    console.warn(`Python starts without its snapshot: ${said(error)}`);
    return loadPyodide(options);
  }
}

/** Puts files where Python finds modules; `image` is what pyapp/setup/data/python_image.mjs wrote. */
function unpack(runtime, image) {
  const folder = runtime.runPython("import sysconfig; sysconfig.get_path('purelib')");
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

/** Pyodide with our package in it. `onProgress({stage: "runtime", loaded, total})` hears of the bytes that come. */
export async function boot(onProgress = () => {}) {
  // Refused here at once where the page's policy forbids wasm; the runtime's own error would come late and in riddles.
  new WebAssembly.Module(new Uint8Array([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]));
  const index = await timed("list of wheels", ["worker script"], async () => (await get("wheels/index.json")).json());
  const { images, runtimeBytes, runtimeDownloadBytes } = index;
  // What is counted has been unpacked already; what is told is as it was announced, as it comes over the network.
  const share = (loaded) => Math.min(1, loaded / runtimeBytes);
  const total = runtimeDownloadBytes;
  const tell = (loaded) => onProgress({ stage: "runtime", loaded: Math.round(share(loaded) * total), total });
  return counting(tell, async () => {
    const modules = Promise.all([bytes(images.libraries), bytes(images.tandem)]);
    modules.catch(() => {}); // awaited below
    const snapshot = bytes(images.snapshot);
    snapshot.catch(() => {});
    const [{ loadPyodide }, ...helpers] = await timed("scripts", ["list of wheels"], () =>
      Promise.all(["pyodide/pyodide.mjs", ...Object.values(HELPERS)].map((path) => import(here + path))),
    );
    const runtime = await timed("Python started", ["scripts", "snapshot fetched", "wasm fetched"], () =>
      start(loadPyodide, snapshot),
    );
    const unpacked = await modules;
    await timed("modules unpacked", ["Python started", "modules fetched"], () =>
      unpacked.forEach((image) => unpack(runtime, image)),
    );
    fetched("wasm fetched", ".wasm", ["scripts"]);
    fetched("snapshot fetched", images.snapshot, ["list of wheels"]);
    fetched("modules fetched", images.libraries, ["list of wheels"]);
    runtime.runPython("import importlib; importlib.invalidate_caches()"); // it has looked into those folders before
    // What is in the snapshot is the same for every visitor. That goes for the hash seed too, which meets nobody's data
    // but the visitor's own, and for time.tzname, which nothing of ours reads; os.urandom is the browser's.
    runtime.runPython("import random; random.seed()");
    Object.keys(HELPERS).forEach((name, index) => runtime.registerJsModule(name, helpers[index]));
    return runtime;
  });
}

/** The first line of what was thrown, without its full stop. */
export const said = (error) => String(error?.message ?? error).split("\n")[0].replace(/\.$/, "");
