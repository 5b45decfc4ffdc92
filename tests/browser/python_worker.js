// A module worker that boots Pyodide and our wheel as worker.js does, then runs test modules it is sent.
// Started from a blob, so it is told where the site is: {site}, then {files, module, call, args} for each run.
let ready;

async function boot(site) {
  const [{ loadPyodide }, replay, opfs, index] = await Promise.all([
    import(site + "/pyodide/pyodide.mjs"),
    import(site + "/replay.mjs"),
    import(site + "/opfs.mjs").catch(() => ({})),
    fetch(site + "/wheels/index.json").then((response) => response.json()),
  ]);
  const pyodide = await loadPyodide({ indexURL: site + "/pyodide/", packages: ["numpy", "regex", "tiktoken", "micropip"] });
  pyodide.registerJsModule("tandem_replay", replay);
  pyodide.registerJsModule("tandem_opfs", opfs);
  await pyodide.pyimport("micropip").install.callKwargs(`${site}/wheels/${index.tandem}`, { deps: false });
  pyodide.FS.mkdirTree("/tests");
  await pyodide.runPythonAsync("import sys; sys.path.insert(0, '/tests')");
  return pyodide;
}

self.onmessage = async ({ data }) => {
  try {
    if (data.site) {
      ready = boot(data.site);
      await ready;
      return self.postMessage({ value: "ready" });
    }
    const pyodide = await ready;
    for (const [name, text] of Object.entries(data.files)) {
      const folder = "/tests/" + name.split("/").slice(0, -1).join("/");
      pyodide.FS.mkdirTree(folder);
      pyodide.FS.writeFile("/tests/" + name, text);
    }
    pyodide.globals.set("test_module", data.module);
    pyodide.globals.set("test_call", data.call);
    pyodide.globals.set("test_args", JSON.stringify(data.args));
    const value = await pyodide.runPythonAsync(
      "import importlib, json\nimportlib.invalidate_caches()\n" +
        "json.dumps(await getattr(importlib.import_module(test_module), test_call)(**json.loads(test_args)))",
    );
    self.postMessage({ value: JSON.parse(value) });
  } catch (error) {
    self.postMessage({ error: String(error?.message ?? error) });
  }
};
