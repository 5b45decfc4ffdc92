"""One progress line for each download or long step: what, how many bytes, of how many. Standard library only."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def in_words(size: float) -> str:
    """A number of bytes for people: ``98.4 MB`` (decimal units)."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000 or unit == "GB":
            break
    return f"{size:.1f} {unit}"


def seconds_running() -> float:
    """Seconds since this process began; going on inside ``.venv`` (``exec``) does not begin another. Linux only."""
    # proc(5): the 22nd field, in ticks since boot; the 2nd is a name in parentheses, which may hold spaces.
    began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


class Progress:
    """Writes ``title  loaded of total``, or without a total where none is known beforehand.

    Redrawn in place on a terminal, else one line every few seconds, if it says anything new.
    """

    def __init__(self, title: str, total: int | None, stream: TextIO | None = None, every: float = 5.0) -> None:
        self.title, self.total = title, total
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._every = 0.2 if self._terminal else every
        self._next = 0.0
        self._last = 0
        self._line = ""

    def update(self, loaded: int) -> None:
        """Says that ``loaded`` bytes of ``total`` are here; cheap to call often."""
        self._last = loaded = max(self._last, loaded)  # temporary files go again
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            self._write(loaded, end="" if self._terminal else "\n")

    def finish(self) -> None:
        """The last line: all bytes are here."""
        self._write(self._last if self.total is None else self.total, end="\n")

    def _write(self, loaded: int, end: str) -> None:
        if self.total is None:
            line = f"  {self.title}  {in_words(loaded)}"
        else:
            loaded = min(loaded, self.total)
            share = 100 * loaded // max(self.total, 1)
            line = f"  {self.title}  {in_words(loaded)} of {in_words(self.total)}  {share} %"
        if line == self._line and not self._terminal:
            return
        self._line = line
        self._stream.write(("\r\x1b[K" if self._terminal else "") + line + end)
        self._stream.flush()


def folder_size(folder: Path) -> int:
    """Bytes in all files under ``folder``, whatever comes and goes meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                total += path.stat().st_size
        except OSError:
            continue
    return total


@contextmanager
def watching(title: str, total: int | None, loaded: Callable[[], int]) -> Iterator[None]:
    """Shows progress of work that another process does, by asking ``loaded()`` for its bytes twice a second."""
    progress, stop = Progress(title, total), threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            progress.update(loaded())

    progress.update(0)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    progress.update(loaded())
    progress.finish()
