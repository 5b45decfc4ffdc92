// Starts Python in a module worker: Pyodide from this site, our helpers in JavaScript, our wheel.
// Works under `script-src 'self' 'wasm-unsafe-eval'`: no eval, nothing from another host.

export const here = new URL("./", self.location.href).href;

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

async function json(path) {
  const response = await fetch(here + path);
  if (!response.ok) throw new Error(`${path} answered with HTTP ${response.status}`);
  return response.json();
}

/** Pyodide with our package in it. `onProgress({stage: "runtime", loaded, total})` hears of the bytes that come. */
export async function boot(onProgress = () => {}) {
  // Refused here at once where the page's policy forbids wasm; the runtime's own error would come late and in riddles.
  new WebAssembly.Module(new Uint8Array([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]));
  const { tandem, runtimeBytes: total = null } = await json("wheels/index.json");
  const tell = (loaded) => onProgress({ stage: "runtime", loaded, total: total === null ? null : Math.max(total, loaded) });
  return counting(tell, async () => {
    const [{ loadPyodide }, ...helpers] = await Promise.all(
      ["pyodide/pyodide.mjs", ...Object.values(HELPERS)].map((path) => import(here + path)),
    );
    const runtime = await loadPyodide({
      indexURL: here + "pyodide/",
      packages: ["numpy", "regex", "tiktoken", "micropip"],
      stdout: (text) => console.debug(text),
      stderr: (text) => console.warn(text),
    });
    Object.keys(HELPERS).forEach((name, index) => runtime.registerJsModule(name, helpers[index]));
    const micropip = runtime.pyimport("micropip");
    await micropip.install.callKwargs(`${here}wheels/${tandem}`, { deps: false });
    micropip.destroy();
    return runtime;
  });
}

/** The first line of what was thrown, without its full stop. */
export const said = (error) => String(error?.message ?? error).split("\n")[0].replace(/\.$/, "");
