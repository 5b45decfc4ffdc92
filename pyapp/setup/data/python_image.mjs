// Run by Node while the site is being built: what the browser's Python would otherwise do anew at each start.
//
//     node python_image.mjs snapshot PYODIDE OUT           the memory of a started Python (Pyodide's _makeSnapshot)
//     node python_image.mjs compile PYODIDE OUT WHEEL ...  the wheels' files, Python as bytecode, in one piece
//
// PYODIDE is the folder of pyodide.mjs. What `compile` writes: the length of a list (uint32, little-endian), the list
// as JSON, [[path, bytes], ...], then the files one after another. web/boot.js reads it.

import { readFileSync, writeFileSync } from "node:fs";
import { resolve, join } from "node:path";
import { pathToFileURL } from "node:url";

// Of the standard library, what NumPy, tiktoken and our worker import; modules that hold JavaScript objects or compiled
// extensions of their own cannot be in a snapshot.
const IMPORTED = `
import asyncio, base64, bisect, concurrent.futures, contextlib, contextvars, copy, ctypes, dataclasses, datetime, decimal
import dis, enum, fractions, functools, hashlib, heapq, html.parser, importlib.metadata, importlib.resources, inspect
import ipaddress, json, logging, numbers, operator, pathlib, pickle, pkgutil, platform, queue, random, re, statistics
import string, struct, tempfile, textwrap, threading, traceback, typing, urllib.parse, warnings, weakref, zipfile
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

const [what, folder, out, ...wheels] = process.argv.slice(2);
const indexURL = resolve(folder) + "/";
process.argv[1] = "/python"; // becomes sys.executable, which every visitor would find in the snapshot
const { loadPyodide } = await import(pathToFileURL(join(indexURL, "pyodide.mjs")));
if (what === "snapshot") {
  const python = await loadPyodide({ indexURL, _makeSnapshot: true });
  python.runPython(IMPORTED);
  writeFileSync(out, python.makeMemorySnapshot());
} else {
  const python = await loadPyodide({ indexURL });
  python.FS.mkdirTree("/tmp/wheels");
  for (const wheel of wheels)
    python.unpackArchive(new Uint8Array(readFileSync(wheel)), "zip", { extractDir: "/tmp/wheels" });
  python.runPython(COMPILE);
  writeFileSync(out, python.FS.readFile("/tmp/image"));
}
