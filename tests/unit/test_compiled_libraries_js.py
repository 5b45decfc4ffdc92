"""web/compiled-libraries.js in Node: what a snapshot is kept as, and starts that cannot go on from it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node_runner import run_node

SETUP = """
const { creating, layoutOf, packed, unpacked } = await import(new URL("compiled-libraries.js", web).href);
// As much of Emscripten's module as is used: each library takes `takes` places of the table.
function emscripten(takes = 10) {
  const module = {
    wasmTable: { length: 100, get: () => null }, HEAP8: { length: 65536 }, preloadedWasm: {},
    LDSO: { loadedLibsByName: {}, loadedLibsByHandle: { 0: { name: "__main__" } } }, waiting: new Set(), order: [],
    addRunDependency: (name) => module.waiting.add(name),
    removeRunDependency: (name) => (module.waiting.delete(name), module.go()),
    growMemory: (bytes) => (module.HEAP8 = { length: bytes }),
    loadWebAssemblyModule: async (binary, flags, path) => {
      module.order.push([path, binary]);
      module.wasmTable.length += takes;
      return { of: path };
    },
  };
  // Runs what it is given before the start, and is there once nothing has to be waited for.
  const factory = (settings) => new Promise((resolve) => {
    module.go = () => module.waiting.size || resolve(module);
    settings.preRun.forEach((each) => each(module));
    module.go();
  });
  return { module, factory: Promise.resolve(factory) };
}
const libraries = ["/a.so", "/b.so"].map((path) => ({ path, module: Promise.resolve(path.slice(1, 2)) }));
const message = (work) => Promise.resolve().then(work).then(() => "", (error) => error.message);
"""


def js(body: str) -> Any:
    return run_node(SETUP + body, None)


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 300_000])
def test_a_snapshot_comes_back_as_it_was(size: int) -> None:
    kept, alike = js(f"""
        const pages = Math.ceil({size} / 4) * 4;
        const memory = new Uint8Array(pages);
        memory[0] = 7; memory[pages - 1] = 9; if (pages > 140000) memory[140000] = 1;
        const image = new Uint8Array(Buffer.concat(packed(memory)));
        return [image.length, Buffer.compare(unpacked(image), memory) === 0];
    """)
    assert alike
    assert kept <= size + 100
    assert kept < 250_000, "empty pages are not kept"


@pytest.mark.parametrize(
    "damage", ["image.subarray(0, -1)", "image.fill(120)", "image.subarray(0, 4)", "image.fill(0)"]
)
def test_what_is_no_snapshot_is_refused(damage: str) -> None:
    said = js(f"""
        const image = new Uint8Array(Buffer.concat(packed(new Uint8Array(200000).fill(5))));
        return await message(() => unpacked({damage}));
    """)
    assert said


def test_libraries_are_loaded_in_order_before_the_start_and_found_again() -> None:
    order, layout, resumed = js("""
        const made = emscripten();
        const first = await creating(made.factory, libraries)({ preRun: [] });
        first.LDSO.loadedLibsByHandle[4242] = { name: "/b.so" };
        first.HEAP8 = { length: 131072 };
        const layout = layoutOf(first);
        const again = emscripten();
        const second = await creating(again.factory, libraries, layout)({ preRun: [] });
        const known = second.LDSO.loadedLibsByHandle[4242];
        const resumed = [second.HEAP8.length, known.exports.of, known === second.LDSO.loadedLibsByName["/b.so"]];
        return [first.order, layout, resumed];
    """)
    assert order == [["/a.so", "a"], ["/b.so", "b"]]
    assert layout == {"bytes": 131072, "tables": [100, 110, 120], "libraries": [{"handle": 4242, "path": "/b.so"}]}
    assert resumed == [131072, "/b.so", True]


def test_another_layout_a_missing_library_and_late_functions_are_refused() -> None:
    other, missing, late = js("""
        const made = emscripten();
        const layout = layoutOf(await creating(made.factory, libraries)({ preRun: [] }));
        const other = await message(() => creating(emscripten(11).factory, libraries, layout)({ preRun: [] }));
        const gone = [libraries[0], { path: "/b.so", module: Promise.reject(new Error("HTTP 404")) }];
        const missing = await message(() => creating(emscripten().factory, gone, layout)({ preRun: [] }));
        made.module.wasmTable = { length: 121, get: () => () => {} };
        return [other, missing, await message(() => layoutOf(made.module))];
    """)
    assert "otherwise (100,111,122) than the snapshot has them (100,110,120)" in other
    assert missing == "HTTP 404"
    assert "made later" in late
