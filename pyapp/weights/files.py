"""Where the store keeps files: a small protocol (OPFS implements it in ``browser``), and files in memory.

The exceptions here stay inside the store: each is answered by going on in memory, or by fetching again.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np

from .buffers import Buffer, Buffers, to_numpy

PAGE_BYTES = 8 << 20


class StorageError(Exception):
    """Storage failed. Subclasses say how; the base class means that files went away under us."""


class StorageFull(StorageError):
    """No room: the quota is used up."""


class StorageBusy(StorageError):
    """Somebody else (another tab) has the file open."""


class StoredFile(Protocol):
    """An open file."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> Buffer:
        """Raises StorageError where there are fewer bytes."""
        ...

    def write(self, offset: int, buffer: Buffer) -> None:
        """Raises StorageFull or StorageError; what lies at that place is then undefined."""
        ...

    def resize(self, nbytes: int) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Files(Protocol):
    """A flat folder of files."""

    persistent: bool
    """Whether files outlive the page."""

    async def open(self, name: str, write: bool = False) -> StoredFile | None:
        """The file; None where it does not exist, but with ``write`` it is made then.

        Any number may have it open for reading, or one alone for writing. Raises StorageError.
        """
        ...

    async def delete(self, name: str) -> None:
        """Deletes the file if it is there and nobody has it open."""
        ...

    async def names(self) -> list[str]: ...


class MemoryFile:
    """A file in pages of memory, each made when something is first written to it."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._pages: dict[int, Buffer] = {}
        self.size = 0

    def read(self, offset: int, length: int) -> Buffer:
        if offset + length > self.size:
            raise StorageError(f"{offset + length} bytes asked of a file of {self.size}")
        if length and offset // PAGE_BYTES == (offset + length - 1) // PAGE_BYTES:
            start = offset % PAGE_BYTES
            return self._buffers.view(self._page(offset // PAGE_BYTES), start, start + length)
        out = self._buffers.allocate(length)
        for page, start, end, at in _page_ranges(offset, length):
            self._buffers.copy(out, at, self._buffers.view(self._page(page), start, end))
        return out

    def write(self, offset: int, buffer: Buffer) -> None:
        length = self._buffers.size(buffer)
        if offset + length > self.size:
            self.resize(offset + length)
        for page, start, end, at in _page_ranges(offset, length):
            self._buffers.copy(self._page(page), start, self._buffers.view(buffer, at, at + end - start))

    def _page(self, number: int) -> Buffer:
        if number not in self._pages:
            self._pages[number] = self._buffers.allocate(min(PAGE_BYTES, self.size - number * PAGE_BYTES))
        return self._pages[number]

    def resize(self, nbytes: int) -> None:
        self.size = nbytes
        last = nbytes // PAGE_BYTES
        for number in [each for each in self._pages if each >= last]:
            old = self._pages.pop(number)
            keep = min(self._buffers.size(old), max(0, nbytes - number * PAGE_BYTES))
            if keep:
                self._buffers.copy(self._page(number), 0, self._buffers.view(old, 0, keep))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _page_ranges(offset: int, length: int) -> list[tuple[int, int, int, int]]:
    """(page, first byte in it, last, how far into the range) for each page that a range touches."""
    ranges, at = [], 0
    while at < length:
        page, start = divmod(offset + at, PAGE_BYTES)
        end = min(PAGE_BYTES, start + length - at)
        ranges.append((page, start, end, at))
        at += end - start
    return ranges


class MemoryFiles:
    """Files that last as long as this object: what serves where the browser refuses storage."""

    persistent = False

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._files: dict[str, MemoryFile] = {}

    async def open(self, name: str, write: bool = False) -> MemoryFile | None:
        if write and name not in self._files:
            self._files[name] = MemoryFile(self._buffers)
        return self._files.get(name)

    async def delete(self, name: str) -> None:
        self._files.pop(name, None)

    async def names(self) -> list[str]:
        return list(self._files)


async def read_json(files: Files, buffers: Buffers, name: str) -> Any:
    """The content of a small file; None where it is missing or unreadable."""
    try:
        file = await files.open(name)
        if file is None:
            return None
        try:
            return json.loads(to_numpy(buffers, file.read(0, file.size)).tobytes())
        finally:
            file.close()
    except (StorageError, ValueError, RecursionError):
        return None


async def write_json(files: Files, buffers: Buffers, name: str, value: Any) -> None:
    """Raises StorageError."""
    data = np.frombuffer(json.dumps(value, separators=(",", ":")).encode(), np.uint8)
    file = await files.open(name, write=True)
    assert file is not None
    try:
        file.write(0, buffers.from_numpy(data))
        file.resize(data.size)
        file.flush()
    finally:
        file.close()


async def delete_all(files: Files, prefix: str, keep: str = "\0") -> None:
    """Deletes the files whose names begin with ``prefix``, save those that begin with ``keep``."""
    try:
        for name in await files.names():
            if name.startswith(prefix) and not name.startswith(keep):
                await files.delete(name)
    except StorageError:
        pass  # tidying up; whatever stays is checked before it is used
