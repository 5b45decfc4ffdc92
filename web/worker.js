// The module worker that holds everything: boots Pyodide from this site, installs our wheel, hands over to Python.
// Works under `script-src 'self' 'wasm-unsafe-eval'`: no eval, nothing from another host. Messages are those of
// pyapp/worker.py: [line of JSON, attachment or null]; until Python listens, they wait here.

const here = new URL("./", self.location.href).href;
const waiting = [];
let deliver = null;

self.onmessage = ({ data: [line, attachment] }) => {
  if (deliver) deliver(line, attachment ?? undefined);
  else waiting.push([line, attachment]);
};

const send = (message) => self.postMessage([JSON.stringify(message), null]);

/** Counts the bytes of every body that is fetched while `work` runs. */
async function counting(total, work) {
  const original = self.fetch;
  let loaded = 0;
  let told = 0;
  const tell = (last) => {
    const now = performance.now();
    if (!last && now - told < 50) return;
    told = now;
    send({ progress: { stage: "runtime", loaded, total: total === null ? null : Math.max(total, loaded) } });
  };
  tell(true);
  self.fetch = async (...request) => {
    const response = await original.call(self, ...request);
    if (response.body) count(response.clone().body.getReader()).catch(() => {});
    return response;
  };
  async function count(reader) {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      loaded += part.value.byteLength;
      tell(false);
    }
    tell(true);
  }
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

async function boot() {
  // Refused here at once where the page's policy forbids wasm; the runtime's own error would come late and in riddles.
  new WebAssembly.Module(new Uint8Array([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]));
  const index = await json("wheels/index.json");
  const pyodide = await counting(index.runtimeBytes ?? null, async () => {
    const [{ loadPyodide }, replay, opfs, tabs] = await Promise.all([
      import(here + "pyodide/pyodide.mjs"),
      import(here + "replay.mjs"),
      import(here + "opfs.mjs"),
      import(here + "tabs.mjs"),
    ]);
    const runtime = await loadPyodide({
      indexURL: here + "pyodide/",
      packages: ["numpy", "regex", "tiktoken", "micropip"],
      stdout: (text) => console.debug(text),
      stderr: (text) => console.warn(text),
    });
    runtime.registerJsModule("tandem_replay", replay);
    runtime.registerJsModule("tandem_opfs", opfs);
    runtime.registerJsModule("tandem_tabs", tabs);
    const micropip = runtime.pyimport("micropip");
    await micropip.install.callKwargs(here + "wheels/" + index.tandem, { deps: false });
    micropip.destroy();
    return runtime;
  });
  const post = (line, attachment) =>
    attachment ? self.postMessage([line, attachment], [attachment.buffer]) : self.postMessage([line, null]);
  const worker = pyodide.pyimport("pyapp.worker");
  deliver = worker.start(post);
  worker.destroy();
  send({ booted: true });
  for (const [line, attachment] of waiting.splice(0)) deliver(line, attachment ?? undefined);
}

boot().catch((error) => send({ dead: String(error?.message ?? error).split("\n")[0].replace(/\.$/, "") }));
