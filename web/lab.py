"""The lab's PyScript worker: installs the site's own wheel and runs what the visitor types, with top-level ``await``.

The page calls ``prepare``, ``run``, ``stop`` and ``give_photo``; what the code prints goes to the page's ``show``.
"""

import asyncio
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import TextIOBase

import pyodide_js
from pyodide.code import eval_code_async
from pyscript import js_modules, sync

__export__ = ["give_photo", "prepare", "run", "stop"]

FILE = "<lab>"


class Page(TextIOBase):
    """What is printed, on the page at once."""

    def write(self, text: str) -> int:
        sync.show(text)
        return len(text)


def progress(report: dict) -> None:
    """For ``Client.create(on_progress=progress)``: the page's progress bar."""
    sync.progress(report["stage"], report["loaded"], report["total"])


names: dict = {"__name__": "__main__", "photo": None, "progress": progress}
task: asyncio.Task | None = None


async def prepare(wheel: str, base: str) -> None:
    """Installs the wheel at the address ``wheel``; ``base`` is the site's address."""
    # tiktoken lists `requests`, which it does not import offline: so everything by name, nothing by dependency.
    await pyodide_js.loadPackage(["numpy", "regex", "tiktoken", "micropip"])
    import micropip

    await micropip.install(wheel, deps=False)
    # The engine's helpers in JavaScript, under the names that web/worker.js gives them too.
    sys.modules["tandem_replay"] = js_modules.tandem_replay
    sys.modules["tandem_opfs"] = js_modules.tandem_opfs
    sys.modules["tandem_tabs"] = js_modules.tandem_tabs
    names["base"] = base


def give_photo(data) -> None:
    """The photo (a Uint8Array) that the visitor chose, as the variable ``photo``."""
    names["photo"] = data.to_bytes()


async def run(code: str) -> bool:
    """Runs the code; False when it raised. A last expression's value is printed, as in Python's own prompt."""
    global task
    task = asyncio.ensure_future(_run(code))
    try:
        return await task
    finally:
        task = None


def stop() -> None:
    """Cancels the code at its next ``await``."""
    if task is not None:
        task.cancel()


async def _run(code: str) -> bool:
    with redirect_stdout(Page()), redirect_stderr(Page()):
        try:
            value = await eval_code_async(code, names, filename=FILE)
            if value is not None:
                print(repr(value))
            return True
        except asyncio.CancelledError:
            print("Stopped.")
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
                trace = trace.tb_next
            print("".join(traceback.format_exception(type(error), error, trace)), end="")
        return False
