"""What the browser's Python would do anew at each start, done while the site is built: its start and its compiling.

Both are made by the very Pyodide that the site ships, in the Node that Playwright brings along. The memory snapshot is
an experiment of Pyodide's (``_makeSnapshot``): ``web/boot.js`` starts without it where it does not hold.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .cache import staging
from .failure import SetupError

SCRIPT = Path(__file__).parent / "data" / "python_image.mjs"
SECONDS = 600.0


def snapshot(pyodide: Mapping[str, bytes]) -> bytes:
    """The memory of a started Python. ``pyodide``: its files, name -> bytes. Raises SetupError."""
    return _made("snapshot", pyodide, {})


def compiled(pyodide: Mapping[str, bytes], wheels: Mapping[str, bytes]) -> bytes:
    """The files of ``wheels`` (name -> bytes), Python as bytecode, in the form that ``web/boot.js`` unpacks."""
    return _made("compile", pyodide, wheels)


def _made(what: str, pyodide: Mapping[str, bytes], wheels: Mapping[str, bytes]) -> bytes:
    with staging() as stage:
        for name, data in {**pyodide, **wheels}.items():
            (stage / name).write_bytes(data)
        out = stage / "out.image"
        _node([str(SCRIPT), what, str(stage), str(out), *(str(stage / name) for name in wheels)])
        return out.read_bytes()


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
