// Run by Node while the site is being built: what the browser's Python would otherwise do anew at each start.
//
//     node python_image.mjs compile PYODIDE OUT WHEEL ...          the wheels' files, Python as bytecode, in one piece
//     node python_image.mjs snapshot PYODIDE OUT HELPER IMAGE ...  the memory of a Python that has imported our package
//
// PYODIDE is the folder of pyodide.mjs. An image: the length of a list (uint32, little-endian), the list as JSON,
// [[path, bytes], ...], then the files one after another; web/boot.js reads it. `snapshot` takes those that `compile`
// has made, and web/compiled-libraries.js as HELPER, and writes into the folder OUT: `snapshot`; `modules`, an image of
// the files that are still read after it; the compiled libraries that it needs, NUMBER.wasm; and `layout.json`.

import { readFileSync, writeFileSync } from "node:fs";
import { resolve, join } from "node:path";
import { pathToFileURL } from "node:url";

const PACKAGES = "/lib/python3.14/site-packages";

/** The compiled libraries that are in memory after that. */
const COMPILED = ["numpy/_core/_multiarray_umath", "numpy/linalg/_umath_linalg", "regex/_regex"];

// What of the standard library is imported lazily, or by tiktoken; then all of ours, and what would be made at first use.
// Frozen: what lives as long as Python does need not be looked through for garbage.
const IMPORTED = `
import asyncio, base64, bisect, concurrent.futures, contextlib, contextvars, copy, ctypes, dataclasses, datetime, decimal
import dis, enum, fractions, functools, hashlib, heapq, html.parser, importlib.metadata, importlib.resources, inspect
import ipaddress, json, logging, numbers, operator, pathlib, pickle, pkgutil, platform, queue, random, re, statistics
import string, struct, tempfile, textwrap, threading, traceback, typing, urllib.parse, warnings, weakref, zipfile
import gc, sys

sys.path_importer_cache.clear()
import numpy, regex
import pyapp
for module in pkgutil.walk_packages(pyapp.__path__, "pyapp."):
    if not module.name.startswith("pyapp.bench") and module.name != "pyapp.routing.httpx_transport":
        importlib.import_module(module.name)

from pyapp.engine.assets import shader_text
from pyapp.text.pretokenizers import PATTERNS
for pattern in PATTERNS.values():
    regex.compile(pattern)
from pyapp.gpu.preprocess import parsed
for shader in importlib.resources.files("pyapp").joinpath("shaders").iterdir():
    parsed(shader_text(shader.name))
gc.collect()
gc.freeze()
`;

const LOADED = `
import json, sys
json.dumps([file for module in sys.modules.values() if (file := getattr(module, "__file__", None))])
`;

// Left out: what only tests, compilers and type checkers read.
const COMPILE = `
import json, pathlib, py_compile

UNUSED = {"tests", "f2py", "_pyinstaller", "distutils", "include", "doc"}
SUFFIXES = {".a", ".h", ".c", ".ini", ".md", ".pc", ".pxd", ".pyi", ".pyx"}
root, entries, blobs = pathlib.Path("/tmp/wheels"), [], []
for file in sorted(path for path in root.rglob("*") if path.is_file()):
    path = file.relative_to(root)
    if path.parts[0] != "pyapp" and UNUSED & set(path.parts) or path.suffix in SUFFIXES:
        continue
    name = str(path)
    if path.suffix == ".py":
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(file), cfile="/tmp/compiled", dfile=name, doraise=True, invalidation_mode=mode)
        name, file = name + "c", pathlib.Path("/tmp/compiled")
    blobs.append(file.read_bytes())
    entries.append([name, len(blobs[-1])])
listing = json.dumps(entries, separators=(",", ":")).encode()
pathlib.Path("/tmp/image").write_bytes(len(listing).to_bytes(4, "little") + listing + b"".join(blobs))
`;

/** The files of an image: path -> bytes. */
function files(image) {
  let at = 4 + image.readUInt32LE(0);
  return new Map(
    JSON.parse(image.subarray(4, at)).map(([name, size]) => [name, new Uint8Array(image.subarray(at, (at += size)))]),
  );
}

/** An image of `entries`, [path, bytes] each. */
function imageOf(entries) {
  const listing = Buffer.from(JSON.stringify(entries.map(([name, data]) => [name, data.length])));
  const head = Buffer.alloc(4);
  head.writeUInt32LE(listing.length);
  return Buffer.concat([head, listing, ...entries.map(([, data]) => data)]);
}

async function compile(wheels) {
  const python = await loadPyodide({ indexURL });
  python.FS.mkdirTree("/tmp/wheels");
  for (const wheel of wheels)
    python.unpackArchive(new Uint8Array(readFileSync(wheel)), "zip", { extractDir: "/tmp/wheels" });
  python.runPython(COMPILE);
  writeFileSync(out, python.FS.readFile("/tmp/image"));
}

async function snapshot([helper, ...images]) {
  const { creating, layoutOf, packed } = await import(pathToFileURL(resolve(helper)));
  const factory = import(pathToFileURL(join(indexURL, "pyodide.asm.mjs"))).then((script) => script.default);
  const all = new Map(images.flatMap((image) => [...files(readFileSync(image))]));
  const compiled = [...all.keys()].filter((name) => COMPILED.some((each) => name.startsWith(`${each}.`)));
  const libraries = compiled.map((name) => ({ path: `${PACKAGES}/${name}`, module: WebAssembly.compile(all.get(name)) }));
  const createPyodideModule = creating(factory, libraries);
  const python = await loadPyodide({ indexURL, _makeSnapshot: true, createPyodideModule });
  for (const [name, data] of all) {
    const path = `${PACKAGES}/${name}`;
    python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    python.FS.writeFile(path, data);
  }
  python.runPython(IMPORTED);
  const loaded = new Set(JSON.parse(python.runPython(LOADED)));
  const layout = layoutOf(python._module);
  const used = layout.libraries.map(({ path }) => path).sort();
  if (String(used) !== String(libraries.map(({ path }) => path).sort()))
    throw new Error(`The snapshot needs other compiled libraries than those it was given: ${used}`);
  const order = libraries.map(({ path }) => path);
  writeFileSync(join(out, "layout.json"), JSON.stringify({ ...layout, order }));
  writeFileSync(join(out, "modules"), imageOf([...all].filter(([name]) => !loaded.has(`${PACKAGES}/${name}`))));
  compiled.forEach((name, index) => writeFileSync(join(out, `${index}.wasm`), all.get(name)));
  writeFileSync(join(out, "snapshot"), Buffer.concat(packed(python.makeMemorySnapshot())));
}

const [what, folder, out, ...given] = process.argv.slice(2);
const indexURL = resolve(folder) + "/";
process.argv[1] = "/python"; // becomes sys.executable, which every visitor would find in the snapshot
const { loadPyodide } = await import(pathToFileURL(join(indexURL, "pyodide.mjs")));
await (what === "snapshot" ? snapshot : compile)(given);
