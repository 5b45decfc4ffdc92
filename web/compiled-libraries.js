// Compiled extensions (NumPy, regex) beside a snapshot of Python's memory. What they have written is in the snapshot;
// what it cannot hold is JavaScript's half of them: the instances, and their functions in WebAssembly's table. Both
// where a snapshot is made (pyapp/setup/data/python_image.mjs) and where it is taken over (boot.js) this loads them at
// the same point, before Python's own start, in the same order: so each gets the same addresses, which are compared.

/**
 * What `createPyodideModule` of `loadPyodide` may be: `factory` is the default export of pyodide.asm.mjs.
 *
 * @param {Promise<Function>} factory
 * @param {{path: string, module: Promise<WebAssembly.Module>}[]} libraries  `path` in Python's file system
 * @param {object | null} layout  what `layoutOf` gave where the snapshot was made; null where one is to be made
 */
export function creating(factory, libraries, layout = null) {
  return async (settings) => {
    const failed = new Promise((_, reject) => {
      settings.preRun.push((module) => {
        module.addRunDependency("compiled libraries");
        load(module, libraries, layout).then(() => module.removeRunDependency("compiled libraries"), reject);
      });
    });
    const module = await Promise.race([factory.then((create) => create(settings)), failed]);
    if (layout) resume(module, layout);
    return module;
  };
}

async function load(module, libraries, layout) {
  const ready = await Promise.all(libraries.map(({ module }) => module));
  if (layout) {
    module.growMemory(layout.bytes);
    same(module.HEAP8.length, layout.bytes);
  }
  module.tables = [];
  for (const [index, { path }] of libraries.entries()) {
    module.tables.push(module.wasmTable.length);
    const flags = { loadAsync: true, nodelete: true };
    module.preloadedWasm[path] = await module.loadWebAssemblyModule(ready[index], flags, path, {});
  }
  module.tables.push(module.wasmTable.length);
  if (layout) same(module.tables, layout.tables);
}

/**
 * What a snapshot that is made of `module` now takes for granted: bytes of memory; the table's length before each library
 * and after the last; the handles that Python has of them. Raises where Python has come to point at other functions.
 */
export function layoutOf(module) {
  const { tables, LDSO, HEAP8, wasmTable } = module;
  for (let index = tables.at(-1); index < wasmTable.length; index++) {
    if (wasmTable.get(index)) throw new Error("The snapshot would point at a function that is made later than libraries are");
  }
  const handles = Object.entries(LDSO.loadedLibsByHandle).filter(([handle]) => handle !== "0");
  return { bytes: HEAP8.length, tables, libraries: handles.map(([handle, { name }]) => ({ handle: Number(handle), path: name })) };
}

function resume(module, { libraries, tables }) {
  same(module.wasmTable.length, tables.at(-1));
  for (const { handle, path } of libraries) {
    const library = { refcount: Infinity, name: path, exports: module.preloadedWasm[path], global: false };
    module.LDSO.loadedLibsByName[path] = module.LDSO.loadedLibsByHandle[handle] = library;
  }
}

function same(found, wanted) {
  if (String(found) === String(wanted)) return;
  throw new Error(`This browser lays out Python's libraries otherwise (${found}) than the snapshot has them (${wanted})`);
}

// -- how a snapshot is kept ------------------------------------------------------------------------------------------

const PAGE = 65_536;

/** The pages of `snapshot` that are not empty, with a list of them in front: 40 % of a memory are zeros. */
export function packed(snapshot) {
  const words = new Uint32Array(snapshot.buffer, snapshot.byteOffset, snapshot.byteLength / 4);
  const full = [];
  for (let page = 0; page * PAGE < snapshot.length; page++) {
    if (words.subarray((page * PAGE) / 4, ((page + 1) * PAGE) / 4).some(Boolean)) full.push(page);
  }
  const head = Uint32Array.of(snapshot.length, full.length, ...full);
  const parts = full.map((page) => snapshot.subarray(page * PAGE, (page + 1) * PAGE));
  return [new Uint8Array(head.buffer), ...parts];
}

/** The snapshot that `packed` has packed. Raises where it is none. */
export function unpacked(image) {
  const word = (index) => new DataView(image.buffer, image.byteOffset).getUint32(index * 4, true);
  const [size, count] = [word(0), word(1)];
  let at = (2 + count) * 4;
  const last = count && word(1 + count);
  const cut = (page) => Math.min(PAGE, size - page * PAGE);
  if (size >= 2 ** 31 || last * PAGE >= size || image.length !== at + (count - 1) * PAGE + cut(last)) {
    throw new Error("The snapshot of Python's memory is damaged");
  }
  const snapshot = new Uint8Array(size);
  for (let index = 0; index < count; index++) {
    const page = word(2 + index);
    snapshot.set(image.subarray(at, at + cut(page)), page * PAGE);
    at += cut(page);
  }
  return snapshot;
}
