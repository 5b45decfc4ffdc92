"""The user's cache folder: files pinned by SHA-256, checked before use, never fetched twice. Standard library only."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .failure import SetupError

ABANDONED = 86_400  # seconds after which half-done work is nobody's any more


@dataclass(frozen=True)
class Pin:
    """A file that must have exactly these bytes: ``sha256`` in hex, ``size`` in bytes (for progress)."""

    name: str
    sha256: str
    size: int


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/tandem``, else ``~/.cache/tandem``; made if missing."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and must be ignored.
    folder = (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "tandem"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Only one process at a time does the work called ``name``; others wait for it here."""
    locks = cache_folder() / "locks"
    locks.mkdir(exist_ok=True)
    with (locks / (hashlib.sha256(name.encode()).hexdigest()[:32] + ".lock")).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def staging() -> Iterator[Path]:
    """A folder for half-done work, in the cache folder so that a rename out of it is atomic; removed afterwards."""
    for old in cache_folder().glob("partial-*"):  # of a process that was killed
        if time.time() - old.stat().st_mtime > ABANDONED:
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="partial-", dir=cache_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def is_intact(path: Path, pin: Pin) -> bool:
    """Whether the file is there with the pinned bytes."""
    return path.is_file() and path.stat().st_size == pin.size and sha256_file(path) == pin.sha256


def check(path: Path, pin: Pin, origin: str) -> None:
    """Raises SetupError unless the file at ``path`` has the pinned bytes; ``origin`` says where it came from."""
    found = sha256_file(path)
    if found != pin.sha256:
        raise SetupError(
            f"{pin.name} from {origin} is not the file Tandem was built with: {path.stat().st_size} bytes with sha256 "
            f"{found}, where {pin.size} bytes with sha256 {pin.sha256} were expected; nothing of it was used."
        )


def obtain(pin: Pin, folder: str, fetch: Callable[[Path], tuple[Path, str]]) -> Path:
    """The pinned file in the cache, fetched if it is missing or no longer has its bytes.

    ``fetch(staging folder) -> (file, origin)`` gets it; it is checked, then moved into ``folder`` of the cache in one
    step, so that a cut download never counts. Raises SetupError.
    """
    kept = cache_folder() / folder / pin.name
    with exclusive(f"obtain-{folder}-{pin.name}"):
        if is_intact(kept, pin):
            return kept
        kept.parent.mkdir(parents=True, exist_ok=True)
        with staging() as stage:
            got, origin = fetch(stage)
            check(got, pin, origin)
            got.replace(kept)
    return kept
