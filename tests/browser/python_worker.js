// A module worker that boots Pyodide and our wheel as worker.js does, then runs test modules it is sent.
// Started from a blob, so it is told where the site is: {site}, then {files, module, call, args} for each run.
let ready;

async function start(site) {
  const { boot } = await import(site + "/boot.js");
  const pyodide = await boot();
  pyodide.FS.mkdirTree("/tests");
  await pyodide.runPythonAsync("import sys; sys.path.insert(0, '/tests')");
  return pyodide;
}

self.onmessage = async ({ data }) => {
  try {
    if (data.site) {
      ready = start(data.site);
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
