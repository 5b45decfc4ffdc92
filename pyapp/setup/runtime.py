"""The Python runtime of the browser: Pyodide and PyScript from npm, the wasm wheels from wherever they can be had."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from .cache import Pin, cache_folder, check, exclusive, is_intact, staging
from .failure import SetupError
from .npm import NpmPackage, obtain_tarball, read_members
from .progress import Progress
from .pypi import Package, download, take_out

PYODIDE = NpmPackage(
    "pyodide@314.0.3",
    Pin("pyodide-314.0.3.tgz", "d7f7d24f8db486c7eda7280f3b0f7517524c8e43e8b086c6ee6ae8016658b484", 6_486_134),
)
PYSCRIPT = NpmPackage(
    "@pyscript/core@0.7.31",
    Pin("pyscript-core-0.7.31.tgz", "b2ca1a0c0956aebd990a7c8524cca1eb061444a8319a7264d2f31ef30bea276a", 1_564_433),
)
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")

# The packages that the worker loads beside our own wheel -> size of the wheel in bytes. Names and hashes are in
# pyodide-lock.json, which is inside the pinned tarball.
WASM_PACKAGES = {
    "numpy": 2_916_023,
    "tiktoken": 557_391,
    "regex": 203_281,
    "micropip": 115_486,
    "packaging": 95_846,
}
IMPORTED = ("numpy", "regex", "tiktoken")
"""Those that the worker imports; the others are for the lab's Python, which installs our wheel as everybody does."""
# PyPI has no wheels for Pyodide. Its own CDN has them all; Open WebUI ships these very files inside its wheel.
CDN = "https://cdn.jsdelivr.net/pyodide/v314.0.3/full/"
CDN_TIMEOUT = 5.0  # seconds; one try, the other source is sure
OPEN_WEBUI = Package(
    "open-webui==0.12.4",
    Pin(
        "open_webui-0.12.4-py3-none-any.whl",
        "02e9caba96234db3fa17a92e56163b3f7f2b8ca8227fa886b85c178d696483f6",
        106_366_595,
    ),
)


def runtime_files() -> dict[str, bytes]:
    """Everything under ``pyodide/`` and ``pyscript/`` of the site: path -> bytes. Downloads what the cache lacks."""
    tarball = obtain_tarball(PYODIDE)
    files = read_members(tarball, {name: f"pyodide/{name}" for name in PYODIDE_FILES})
    lock = json.loads(files["pyodide/pyodide-lock.json"])
    for wheel in obtain_wasm_wheels(lock):
        files[f"pyodide/{wheel.name}"] = wheel.read_bytes()
    files["pyodide/pyodide-lock.json"] = json.dumps(prune_lock(lock), separators=(",", ":")).encode()
    pyscript = read_members(obtain_tarball(PYSCRIPT), {"dist/": "pyscript/"})
    files |= {path: data for path, data in pyscript.items() if not path.endswith(".map")}
    return files


def wheel_pins(lock: dict[str, Any]) -> list[Pin]:
    """The wasm wheels as Pyodide's lock file pins them."""
    packages = lock["packages"]
    return [Pin(packages[name]["file_name"], packages[name]["sha256"], size) for name, size in WASM_PACKAGES.items()]


def prune_lock(lock: dict[str, Any]) -> dict[str, Any]:
    """The lock file with only the packages that the site ships, and of their dependencies only those.

    So a name that is not shipped is unknown to Pyodide, instead of a request that cannot be answered. tiktoken loses
    ``requests`` this way, which it imports only to download vocabularies; ours come from the model file.
    """
    kept = {name: dict(lock["packages"][name]) for name in WASM_PACKAGES}
    for entry in kept.values():
        entry["depends"] = [name for name in entry["depends"] if name in kept]
    return {**lock, "packages": kept}


def obtain_wasm_wheels(lock: dict[str, Any]) -> list[Path]:
    """The wasm wheels in the cache, each with the sha256 that Pyodide's lock file gives. Raises SetupError."""
    folder = cache_folder() / "wasm"
    folder.mkdir(exist_ok=True)
    pins = wheel_pins(lock)
    with exclusive("wasm"):
        missing = [pin for pin in pins if not is_intact(folder / pin.name, pin)]
        if missing:
            with staging() as stage:
                if not _from_cdn(missing, stage):
                    _from_open_webui(missing, stage)
                for pin in missing:
                    (stage / pin.name).replace(folder / pin.name)
    return [folder / pin.name for pin in pins]


def _from_cdn(pins: list[Pin], stage: Path) -> bool:
    """Gets the wheels into ``stage``, checked; False where the CDN does not answer, or something else does for it."""
    try:
        for pin in pins:
            with urllib.request.urlopen(CDN + pin.name, timeout=CDN_TIMEOUT) as answer:
                progress, loaded = Progress(pin.name, pin.size), 0
                with (stage / pin.name).open("wb") as sink:
                    while piece := answer.read(1 << 18):
                        sink.write(piece)
                        loaded += len(piece)
                        progress.update(loaded)
                progress.finish()
            check(stage / pin.name, pin, "Pyodide's CDN")
    except (OSError, HTTPException, SetupError) as error:
        print(
            f"Pyodide's CDN, which is tried first, does not serve here ({error}); taking the same wasm wheels out of "
            f"{OPEN_WEBUI.requirement} instead, which is as good."
        )
        return False
    return True


def _from_open_webui(pins: list[Pin], stage: Path) -> None:
    """Takes the wheels out of Open WebUI's into ``stage``, checked. Raises SetupError."""
    archive = download(OPEN_WEBUI, stage)
    for pin in pins:
        check(
            take_out(archive, f"open_webui/frontend/pyodide/{pin.name}", stage / pin.name), pin, OPEN_WEBUI.requirement
        )
