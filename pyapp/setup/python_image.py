"""What the browser's Python would do anew at each start, done while the site is built: its start, its imports and their
compiling.

All is made by the very Pyodide that the site ships, in the Node that Playwright brings along. The memory snapshot is
an experiment of Pyodide's (``_makeSnapshot``), and compiled extensions in it are ours (``web/compiled-libraries.js``):
``web/boot.js`` starts without it where it does not hold.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache import staging
from .failure import SetupError

SCRIPT = Path(__file__).parent / "data" / "python_image.mjs"
HELPER = Path("web") / "compiled-libraries.js"
"""From the root of the project: what a snapshot is made with is also what it is taken over with."""
SECONDS = 600.0


@dataclass(frozen=True)
class Snapshot:
    """The memory of a Python that has imported our package, and what goes with it."""

    memory: bytes
    modules: bytes
    """An image of the files that are read later on."""
    libraries: dict[str, bytes]
    """The compiled extensions that are in it, by path in Python's file system, in the order of loading."""
    layout: dict[str, Any]
    """What ``web/compiled-libraries.js`` must find again."""


def snapshot(root: Path, pyodide: Mapping[str, bytes], images: Sequence[bytes]) -> Snapshot:
    """``pyodide``: its files, name -> bytes; ``images``: what ``compiled`` made of the wheels. Raises SetupError."""
    with staging() as stage:
        _write(stage, pyodide)
        (stage / "helper.mjs").write_bytes((root / HELPER).read_bytes())
        given = [stage / f"{number}.image" for number in range(len(images))]
        for path, data in zip(given, images, strict=True):
            path.write_bytes(data)
        out = stage / "out"
        out.mkdir()
        _node([str(SCRIPT), "snapshot", str(stage), str(out), str(stage / "helper.mjs"), *map(str, given)])
        layout = json.loads((out / "layout.json").read_bytes())
        libraries = {path: (out / f"{number}.wasm").read_bytes() for number, path in enumerate(layout.pop("order"))}
        return Snapshot((out / "snapshot").read_bytes(), (out / "modules").read_bytes(), libraries, layout)


def compiled(pyodide: Mapping[str, bytes], wheels: Mapping[str, bytes]) -> bytes:
    """The files of ``wheels`` (name -> bytes), Python as bytecode, in the form that ``web/boot.js`` unpacks."""
    with staging() as stage:
        _write(stage, {**pyodide, **wheels})
        out = stage / "out.image"
        _node([str(SCRIPT), "compile", str(stage), str(out), *(str(stage / name) for name in wheels)])
        return out.read_bytes()


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _node(arguments: Sequence[str]) -> None:
    # Imported here: an unchanged site, the common case of serve, has no need of it. No public name has it; the version
    # is pinned.
    from playwright._impl._driver import compute_driver_executable

    node, _ = compute_driver_executable()
    try:
        subprocess.run([node, *arguments], check=True, capture_output=True, text=True, timeout=SECONDS)
    except OSError as error:
        raise SetupError(f"Playwright's Node at {node} does not start: {error}.") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"Starting Python in Node took over {SECONDS:.0f} s; try again.") from error
    except subprocess.CalledProcessError as error:
        # Node shows the line of the source first, which may be long, and its own version last.
        said = [line for line in error.stderr.splitlines() if "Error" in line[:200]] or ["it does not say why"]
        raise SetupError(f"Python does not start in Playwright's Node: {said[-1][:300]}.") from error
