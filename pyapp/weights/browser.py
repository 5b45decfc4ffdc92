"""The store's view of the browser: ``opfs.mjs`` behind the protocols of ``buffers``, ``files`` and ``network``.

Works only in Pyodide, in a dedicated worker (OPFS gives its sync handles nowhere else).
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
from typing import Any

from ..errors import OutOfMemory
from .files import MemoryFiles, StorageBusy, StorageError, StorageFull
from .network import NetworkError
from .source import Bytes
from .store import Store

FOLDER = "tandem-v1"
_BUSY_TRIES = 6
_BUSY_SECONDS = 0.25
"""The handles of a worker that was just ended are let go a moment later."""


def _opfs() -> Any:
    return importlib.import_module("tandem_opfs")


def _js_error() -> type[Exception]:
    from pyodide.ffi import JsException

    return JsException


class JsBuffers:
    """``Uint8Array`` objects."""

    def __init__(self) -> None:
        self._opfs, self._error = _opfs(), _js_error()

    def allocate(self, nbytes: int) -> Any:
        try:
            return self._opfs.allocate(nbytes)
        except self._error:
            raise _no_room(nbytes) from None

    def size(self, buffer: Any) -> int:
        return int(buffer.byteLength)

    def view(self, buffer: Any, start: int, end: int) -> Any:
        return buffer.subarray(start, end)

    def copy(self, target: Any, at: int, buffer: Any) -> None:
        target.set(buffer, at)

    def copy_out(self, buffer: Any, out: Bytes) -> None:
        if out.size:
            buffer.assign_to(out)

    def from_numpy(self, data: Bytes) -> Any:
        import numpy as np

        buffer = self.allocate(data.size)
        if data.size:
            buffer.assign(np.ascontiguousarray(data))
        return buffer

    async def sha256(self, buffer: Any) -> str:
        return str(await self._opfs.sha256(buffer) or hashlib.sha256(buffer.to_bytes()).hexdigest())

    async def sha256_each(self, buffer: Any, nbytes: int) -> list[str]:
        together = await self._opfs.sha256Each(buffer, nbytes)
        if together:
            return str(together).split()
        return [await self.sha256(self.view(buffer, at, at + nbytes)) for at in range(0, self.size(buffer), nbytes)]


def _no_room(nbytes: int) -> OutOfMemory:
    return OutOfMemory(
        f"This tab has no room for another {nbytes} bytes of weights; close other tabs or take a smaller model.",
        bytes=nbytes,
    )


def _storage_error(error: Any) -> StorageError:
    text = str(getattr(error, "message", error))
    for name, kind in (("QuotaExceededError", StorageFull), ("NoModificationAllowedError", StorageBusy)):
        if name in text[:40]:
            return kind(text)
    return StorageError(text)


class OpfsFile:
    """An open file of OPFS."""

    def __init__(self, handle: Any, error: type[Exception]) -> None:
        self._handle, self._error = handle, error

    @property
    def size(self) -> int:
        return int(self._call("size"))

    def read(self, offset: int, length: int) -> Any:
        try:
            return self._call("read", offset, length)
        except StorageError as error:
            if "RangeError" in str(error)[:20]:  # no storage failed: the array for the bytes could not be made
                raise _no_room(length) from None
            raise

    def write(self, offset: int, buffer: Any) -> None:
        self._call("write", offset, buffer)

    def resize(self, nbytes: int) -> None:
        self._call("truncate", nbytes)

    def flush(self) -> None:
        self._call("flush")

    def close(self) -> None:
        self._handle.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._handle, name)(*arguments)
        except self._error as error:
            raise _storage_error(error) from None


class OpfsFiles:
    """A folder of OPFS."""

    persistent = True

    def __init__(self, folder: Any) -> None:
        self._folder, self._error = folder, _js_error()

    async def open(self, name: str, write: bool = False) -> OpfsFile | None:
        for attempt in range(_BUSY_TRIES):
            try:
                handle = await self._folder.open(name, write)
                return OpfsFile(handle, self._error) if handle else None
            except self._error as error:
                failure = _storage_error(error)
                if not isinstance(failure, StorageBusy) or attempt + 1 == _BUSY_TRIES:
                    raise failure from None
                await asyncio.sleep(_BUSY_SECONDS)
        raise AssertionError("the last attempt returns or raises")

    async def delete(self, name: str) -> None:
        try:
            await self._folder.remove(name)
        except self._error as error:
            raise _storage_error(error) from None

    async def names(self) -> list[str]:
        try:
            return [str(name) for name in await self._folder.names()]
        except self._error as error:
            raise _storage_error(error) from None


class OpfsAhead:
    """A file of OPFS that a worker of its own reads and hashes."""

    def __init__(self, ahead: Any) -> None:
        self._ahead = ahead

    async def take(self, offset: int, length: int) -> tuple[Any, list[str]] | None:
        piece = await self._ahead.take(offset, length)
        return (piece.bytes, str(piece.hashes).split()) if piece else None

    async def close(self) -> None:
        await self._ahead.close()


def _read_ahead(name: str, piece: int, segment: int) -> OpfsAhead | None:
    ahead = _opfs().readAhead(FOLDER, name, piece, segment)
    return OpfsAhead(ahead) if ahead else None


class FetchResponse:
    """An answer of ``fetch``."""

    def __init__(self, download: Any, error: type[Exception]) -> None:
        self._download, self._error = download, error
        self.status = int(download.status)
        self.content_type, self.etag = str(download.contentType), str(download.etag)
        self.start = int(download.start) if download.start >= 0 else None
        self.total = int(download.total) if download.total >= 0 else None

    async def piece(self, most: int) -> Any | None:
        try:
            return await self._download.next(most) or None
        except self._error as error:
            raise NetworkError(_first_line(error)) from None

    def cancel(self) -> None:
        self._download.cancel()


class FetchNetwork:
    """HTTP by the browser's ``fetch``."""

    def __init__(self) -> None:
        self._opfs, self._error = _opfs(), _js_error()

    async def get(
        self, url: str, start: int | None = None, end: int | None = None, cache: str = "default"
    ) -> FetchResponse:
        download = self._opfs.download(url, -1 if start is None else start, -1 if end is None else end, cache)
        try:
            await download.open()
        except self._error as error:
            raise NetworkError(_first_line(error)) from None
        except BaseException:
            download.cancel()  # a cancelled task does not stop the request by itself
            raise
        return FetchResponse(download, self._error)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _first_line(error: Any) -> str:
    return str(getattr(error, "message", error)).split("\n")[0][:200]


async def browser_store() -> Store:
    """A store over OPFS; in memory alone where the browser refuses it."""
    buffers = JsBuffers()
    memory = MemoryFiles(buffers)
    try:
        files: Any = OpfsFiles(await _opfs().openFolder(FOLDER))
        await files.names()
    except (_js_error(), StorageError):
        return Store(memory, memory, buffers, FetchNetwork())
    return Store(files, memory, buffers, FetchNetwork(), _read_ahead)
