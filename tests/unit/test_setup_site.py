"""dist/: chunks, manifests, the wheel, and that only what changed is made again."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pyapp.setup import chunks, python_image, runtime, wheel
from pyapp.setup.failure import SetupError
from pyapp.setup.files import compressed, write_file
from pyapp.setup.site import Site, web_files
from tests.conftest import ROOT


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 25])
def test_chunks_join_to_the_file(size: int) -> None:
    whole = bytes(range(size))
    cut = list(chunks.cut(io.BytesIO(whole), 10))
    assert b"".join(piece for _, piece in cut) == whole
    assert all(entry["bytes"] == 10 for entry, _ in cut[:-1])
    for entry, piece in cut:
        assert entry == {
            "sha256": hashlib.sha256(piece).hexdigest(),
            "bytes": len(piece),
            "url": f"{hashlib.sha256(piece).hexdigest()}.bin",
        }


def test_built_models_are_what_their_manifests_say(dist: Path) -> None:
    listing = json.loads((dist / "models" / "index.json").read_bytes())["models"]
    assert [row["name"] for row in listing] == ["smollm2-135m", "efficientnet-lite0"]
    for row in listing:
        address = dist / row["manifest"].removeprefix("/")
        manifest = json.loads(address.read_bytes())
        whole = hashlib.sha256()
        for chunk in manifest["chunks"]:
            piece = (address.parent / chunk["url"]).read_bytes()
            assert hashlib.sha256(piece).hexdigest() == chunk["sha256"]
            assert len(piece) == chunk["bytes"] <= manifest["chunk_bytes"]
            whole.update(piece)
        assert whole.hexdigest() == manifest["sha256"]
        assert sum(chunk["bytes"] for chunk in manifest["chunks"]) == manifest["bytes"] == row["bytes"]
        for key in ("name", "kind", "title", "licence", "languages"):
            assert manifest[key] == row[key]
    language, vision = (json.loads((dist / "models" / row["name"] / "manifest.json").read_bytes()) for row in listing)
    assert language["sha256"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (language["format"], language["languages"]) == ("gguf", ["en"])
    names = json.loads((dist / "models" / "efficientnet-lite0" / vision["classes"]).read_bytes())
    assert len(names) == 1000
    assert (names[0], names[967], names[999]) == ("tench", "espresso", "toilet tissue")


def test_the_runtime_is_complete_and_its_own(dist: Path) -> None:
    lock = json.loads((dist / "pyodide" / "pyodide-lock.json").read_bytes())
    assert set(lock["packages"]) == set(runtime.WASM_PACKAGES)
    for entry in lock["packages"].values():
        assert set(entry["depends"]) <= set(lock["packages"])
        assert hashlib.sha256((dist / "pyodide" / entry["file_name"]).read_bytes()).hexdigest() == entry["sha256"]
    for name in runtime.PYODIDE_FILES:
        assert (dist / "pyodide" / name).is_file()
    assert (dist / "pyscript" / "core.js").is_file()


def test_twins_unpack_to_their_files(dist: Path) -> None:
    twins = list(dist.rglob("*.gz"))
    assert dist / "pyodide" / "pyodide.asm.wasm.gz" in twins
    for twin in twins:
        plain = twin.with_suffix("")
        assert gzip.decompress(twin.read_bytes()) == plain.read_bytes()
        assert twin.stat().st_mtime >= plain.stat().st_mtime


def test_compression_only_where_it_pays() -> None:
    assert compressed("app.js", b"a" * 99_999) is None
    assert compressed("model.bin", b"a" * 200_000) is None
    twin = compressed("app.js", b"a" * 200_000)
    assert twin is not None
    assert twin == compressed("app.js", b"a" * 200_000)
    noise = b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(5000))
    assert compressed("stdlib.zip", noise) is None


def test_the_wheel_is_reproducible_and_holds_the_browser_side(dist: Path) -> None:
    name, data = wheel.build_wheel(ROOT)
    assert (name, data) == wheel.build_wheel(ROOT)
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        names = set(bundle.namelist())
    assert "pyapp/errors.py" in names
    assert not [n for n in names if n.startswith(("pyapp/gateway", "pyapp/setup", "tests"))]
    shaders = {path.name for path in (ROOT / "shaders").glob("*.wgsl")}
    assert {n.removeprefix("pyapp/shaders/") for n in names if n.startswith("pyapp/shaders/")} == shaders
    index = json.loads((dist / "wheels" / "index.json").read_bytes())
    assert (dist / "wheels" / index["tandem"]).is_file()


def test_the_images_hold_what_python_starts_with(dist: Path) -> None:
    index = json.loads((dist / "wheels" / "index.json").read_bytes())
    images = index["images"]
    assert images.keys() == {"snapshot", "modules", "libraries", "tandem"}
    listing = entries((dist / images["tandem"]).read_bytes())
    assert "pyapp/worker.pyc" in listing
    assert {name for name in listing if name.endswith(".wgsl")} == {
        f"pyapp/shaders/{path.name}" for path in (ROOT / "shaders").glob("*.wgsl")
    }
    assert not [name for name in listing if name.endswith(".py") or name.startswith(("pyapp/gateway", "pyapp/setup"))]
    libraries = entries((dist / images["libraries"]).read_bytes())
    assert {name.split("/")[0] for name in libraries} >= {"numpy", "regex", "tiktoken", "tiktoken_ext"}
    assert not [name for name in libraries if "/tests/" in name or name.endswith(".pyi")]
    own = ("pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
    start = [images["snapshot"], images["modules"], *(each["file"] for each in index["compiled"])]
    fetched = [*(dist / "pyodide" / name for name in own), *(dist / path for path in start)]
    assert index["runtimeBytes"] == sum(path.stat().st_size for path in fetched)


def test_the_snapshot_has_our_modules_in_it_and_nothing_of_the_machine(dist: Path) -> None:
    index = json.loads((dist / "wheels" / "index.json").read_bytes())
    images = index["images"]
    snapshot = (dist / images["snapshot"]).read_bytes()
    assert len(snapshot) > 20_000_000
    assert str(ROOT).encode() not in snapshot, "whose machine built it is nobody's business"
    everything = {
        path: size
        for name in ("libraries", "tandem")
        for path, size in entries((dist / images[name]).read_bytes()).items()
    }
    later = entries((dist / images["modules"]).read_bytes())
    assert later.items() <= everything.items()
    inside = everything.keys() - later.keys()
    assert inside >= {"pyapp/worker.pyc", "pyapp/engine/engine.pyc", "numpy/__init__.pyc", "regex/__init__.pyc"}
    assert later.keys() >= {"pyapp/bench/sharing.pyc", "numpy/random/__init__.pyc", "tiktoken/__init__.pyc"}
    compiled = {each["path"]: (dist / each["file"]).read_bytes() for each in index["compiled"]}
    assert {path for path in inside if path.endswith(".so")} == {path.split("/site-packages/")[1] for path in compiled}
    assert {each["path"] for each in index["layout"]["libraries"]} == compiled.keys()
    assert all(data.startswith(b"\0asm") for data in compiled.values())


def entries(image: bytes) -> dict[str, int]:
    """The files of an image that ``web/boot.js`` unpacks -> their sizes, which must add up."""
    start = 4 + int.from_bytes(image[:4], "little")
    listing = dict(json.loads(image[4:start]))
    assert start + sum(listing.values()) == len(image)
    return listing


def test_python_that_does_not_start_while_the_site_is_built_says_so() -> None:
    with pytest.raises(SetupError, match=r"Python does not start in Playwright's Node: .*not here"):
        python_image.compiled({"pyodide.mjs": b"export function loadPyodide() { throw new Error('not here'); }"}, {})


def test_the_wheel_key_follows_its_inputs(tmp_path: Path) -> None:
    for part in ("pyapp/gpu", "pyapp/setup", "shaders"):
        (tmp_path / part).mkdir(parents=True)
    for file in ("pyapp/gpu/pool.py", "pyapp/setup/cli.py", "shaders/add.wgsl", "pyproject.toml", "LICENSE"):
        (tmp_path / file).write_text("1")
    key = wheel.inputs_key(tmp_path)
    (tmp_path / "pyapp/setup/cli.py").write_text("2")
    assert wheel.inputs_key(tmp_path) == key
    for file in ("pyapp/gpu/pool.py", "shaders/add.wgsl", "pyproject.toml"):
        (tmp_path / file).write_text("2")
        assert wheel.inputs_key(tmp_path) != key
        key = wheel.inputs_key(tmp_path)


class Part:
    """A part of a site that counts how often it is made."""

    def __init__(self, site: Site, files: dict[str, bytes]) -> None:
        self.site, self.files, self.made = site, files, 0

    def __call__(self) -> list[Path]:
        self.made += 1
        return self.site.write(self.files)


def make(dist: Path, files: dict[str, bytes], key: str = "key", name: str = "part") -> int:
    site = Site(dist, dist)
    part = Part(site, files)
    site.part(name, key, part)
    return part.made


def test_a_part_is_made_when_its_key_or_files_change(tmp_path: Path) -> None:
    files = {"a.js": b"a", "sub/b.js": b"b"}
    assert make(tmp_path, files) == 1
    assert make(tmp_path, files) == 0
    assert make(tmp_path, files, key="other") == 1
    (tmp_path / "a.js").unlink()
    assert make(tmp_path, files, key="other") == 1
    (tmp_path / "sub" / "b.js").write_bytes(b"longer")
    assert make(tmp_path, files, key="other") == 1
    assert (tmp_path / "sub" / "b.js").read_bytes() == b"b"
    (tmp_path / ".build.json").write_text("{cut")
    assert make(tmp_path, files, key="other") == 1


def test_files_that_a_part_no_longer_has_are_removed(tmp_path: Path) -> None:
    make(tmp_path, {"old.js": b"1", "shared.js": b"1", "kept.js": b"1"})
    make(tmp_path, {"shared.js": b"1"}, name="other")
    make(tmp_path, {"kept.js": b"1"}, key="new")
    assert {path.name for path in tmp_path.glob("*.js")} == {"kept.js", "shared.js"}


def test_a_failed_part_is_made_again(tmp_path: Path) -> None:
    site = Site(tmp_path, tmp_path)

    def fail() -> list[Path]:
        raise SetupError("no network")

    with pytest.raises(SetupError):
        site.part("part", "key", fail)
    assert make(tmp_path, {"a.js": b"a"}) == 1


def test_an_unchanged_file_keeps_its_time(tmp_path: Path) -> None:
    path = write_file(tmp_path / "deep" / "file", b"same")
    before = path.stat().st_mtime_ns
    write_file(path, b"same")
    assert path.stat().st_mtime_ns == before
    write_file(path, b"diff")
    assert path.read_bytes() == b"diff"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_part_that_is_broken_off_is_made_again(tmp_path: Path) -> None:
    """Though its half has the size that the whole had before."""
    make = lambda data: lambda: Site(tmp_path, tmp_path).write({"part.bin": data})  # noqa: E731

    def broken() -> list[Path]:
        make(b"B" * 8)()
        raise KeyboardInterrupt

    Site(tmp_path, tmp_path).part("part", "A", make(b"A" * 8))
    with pytest.raises(KeyboardInterrupt):
        Site(tmp_path, tmp_path).part("part", "B", broken)
    Site(tmp_path, tmp_path).part("part", "A", make(b"A" * 8))
    assert (tmp_path / "part.bin").read_bytes() == b"A" * 8


def test_helpers_of_pyapp_come_to_the_top(tmp_path: Path) -> None:
    (tmp_path / "web" / "i18n").mkdir(parents=True)
    (tmp_path / "pyapp" / "gpu").mkdir(parents=True)
    (tmp_path / "web" / "index.html").write_text("page")
    (tmp_path / "web" / "i18n" / "en.json").write_text("{}")
    (tmp_path / "web" / ".hidden").write_text("no")
    (tmp_path / "pyapp" / "gpu" / "replay.mjs").write_text("export {}")
    (tmp_path / "pyapp" / "setup" / "data").mkdir(parents=True)
    (tmp_path / "pyapp" / "setup" / "data" / "build.mjs").write_text("for the build alone")
    assert set(web_files(tmp_path)) == {"index.html", "i18n/en.json", "replay.mjs"}
    shutil.copy(tmp_path / "pyapp" / "gpu" / "replay.mjs", tmp_path / "web" / "replay.mjs")
    with pytest.raises(SetupError, match=r"/replay\.mjs"):
        web_files(tmp_path)


def lock_with(**packages: dict[str, Any]) -> dict[str, Any]:
    filler: dict[str, Any] = {name: {"depends": []} for name in runtime.WASM_PACKAGES}
    return {"info": {"python": "3.14"}, "packages": {**filler, **packages}}


def test_the_lock_keeps_only_what_is_shipped() -> None:
    full = lock_with(
        tiktoken={"depends": ["regex", "requests"]}, requests={"depends": []}, scipy={"depends": ["numpy"]}
    )
    pruned = runtime.prune_lock(full)
    assert set(pruned["packages"]) == set(runtime.WASM_PACKAGES)
    assert pruned["packages"]["tiktoken"]["depends"] == ["regex"]
    assert pruned["info"] == {"python": "3.14"}
    assert full["packages"]["tiktoken"]["depends"] == ["regex", "requests"]
