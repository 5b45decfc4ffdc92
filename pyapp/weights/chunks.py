"""One model's file in chunks: on disk where that works, in memory where it does not.

A chunk counts only when its hash is right: it is hashed before it is kept, and hashed again when a later session reads
it for the first time. A chunk that turns out wrong, or that storage lost, is simply missing again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .buffers import Buffer, Buffers
from .files import Files, StorageBusy, StorageError, StoredFile, delete_all, read_json, write_json

STATE_VERSION = 1


class Chunks:
    """The chunks of a file of ``size`` bytes.

    ``hashes`` are those that must be met; None where nobody has promised any (a bare URL), and then they are what the
    chunks had when they came.
    """

    def __init__(
        self, files: Files, buffers: Buffers, key: str, size: int, chunk_bytes: int, hashes: list[str | None]
    ) -> None:
        self.key, self.size, self.chunk_bytes, self.hashes = key, size, chunk_bytes, hashes
        self.origin: dict[str, Any] = {}
        """What identifies the version of the file on its server (kept with the state)."""
        self.released: int | None = None
        """How many chunks were kept when the others were given up on purpose."""
        self.notice: StorageError | None = None
        """Why chunks are kept in memory, if some are."""
        self._files, self._buffers = files, buffers
        self._stored: set[int] = set()
        self._checked: set[int] = set()
        self._memory: dict[int, Buffer] = {}
        self._file: StoredFile | None = None
        self._writing = False
        self._opening, self._saving = asyncio.Lock(), asyncio.Lock()

    @property
    def count(self) -> int:
        return -(-self.size // self.chunk_bytes)

    @property
    def in_memory(self) -> bool:
        """Whether new chunks go to memory."""
        return self.notice is not None or not self._files.persistent

    def bytes_of(self, index: int) -> int:
        return min(self.chunk_bytes, self.size - index * self.chunk_bytes)

    def missing(self) -> list[int]:
        """Chunks that are not here, in order."""
        return [index for index in range(self.count) if index not in self._stored and index not in self._memory]

    async def load(self) -> None:
        """Takes over what an earlier session left, if it is of the same file."""
        state = await read_json(self._files, self._buffers, f"{self.key}.state")
        if not self._fits(state):
            return
        try:
            file = await self._open(write=False)
        except StorageError:
            return
        if file is None:
            return
        last = file.size
        self.hashes = [known or stored for known, stored in zip(self.hashes, state["hashes"], strict=True)]
        self.origin, self.released = state["origin"], state["released"]
        self._stored = {
            index
            for index in state["stored"]
            if self.hashes[index] and index * self.chunk_bytes + self.bytes_of(index) <= last
        }

    def _fits(self, state: Any) -> bool:
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            return False
        hashes, stored, released = state.get("hashes"), state.get("stored"), state.get("released")
        return (
            (state.get("size"), state.get("chunk_bytes")) == (self.size, self.chunk_bytes)
            and isinstance(hashes, list)
            and len(hashes) == self.count
            and all(a == b for a, b in zip(self.hashes, hashes, strict=True) if a is not None and b is not None)
            and isinstance(stored, list)
            and all(type(index) is int and 0 <= index < self.count for index in stored)
            and isinstance(state.get("origin"), dict)
            and (released is None or type(released) is int)
        )

    async def put(self, index: int, buffer: Buffer, sha256: str) -> None:
        """Keeps a chunk whose hash has been found right; in memory when storage fails, from then on."""
        self.hashes[index] = sha256
        if not self.in_memory:
            try:
                file = await self._open(write=True)
                assert file is not None
                file.write(index * self.chunk_bytes, buffer)
                file.flush()
                self._stored.add(index)
                self._checked.add(index)
                await self._save()
                return
            except StorageError as error:
                self._stored.discard(index)
                self.notice = error
                await self.close()
        self._memory[index] = buffer

    async def read(self, index: int, start: int, length: int) -> Buffer | None:
        """Bytes of a chunk; None where it is missing, or has just been found damaged or lost."""
        if index in self._memory:
            return self._buffers.view(self._memory[index], start, start + length)
        if index not in self._stored:
            return None
        try:
            file = await self._open(write=False)
            if file is None:
                raise StorageError("the file is gone")
            at = index * self.chunk_bytes
            if index in self._checked:
                return file.read(at + start, length)
            whole = file.read(at, self.bytes_of(index))
            if await self._buffers.sha256(whole) != self.hashes[index]:
                raise StorageError("its bytes have changed")
            self._checked.add(index)
            return self._buffers.view(whole, start, start + length)
        except StorageError:
            self._stored.discard(index)
            self._checked.discard(index)
            return None

    async def settle(self) -> None:
        """After a download: lets go of the file, so that other tabs can read it, and looks whether it is there."""
        await self.close()
        if not self._stored:
            return
        try:
            file = await self._open(write=False)
            last = -1 if file is None else file.size
        except StorageError as error:
            self.notice, last = error, -1
        self._stored = {index for index in self._stored if index * self.chunk_bytes + self.bytes_of(index) <= last}

    async def release(self, keep_bytes: int, on_disk: bool) -> None:
        """Gives up the chunks after the first ``keep_bytes``: those in memory, and with ``on_disk`` the stored ones."""
        keep = -(-keep_bytes // self.chunk_bytes)
        for index in [each for each in self._memory if each >= keep]:
            del self._memory[index]
        if not on_disk or not any(index >= keep for index in self._stored):
            return
        await self.close()
        try:
            file = await self._open(write=True)
            assert file is not None
            self._stored = {index for index in self._stored if index < keep}
            self.released = keep
            # The state first: bytes without a state are only unused, a state without its bytes would be untrue.
            await self._save()
            file.resize(min(self.size, keep * self.chunk_bytes))
            file.flush()
        except StorageBusy:
            pass  # another tab reads the file; it stays as it is
        except StorageError as error:
            self.notice = error
        await self.close()

    async def forget(self) -> None:
        """Throws everything away: the file on the server is another one now."""
        await self.close()
        self._stored.clear()
        self._checked.clear()
        self._memory.clear()
        self.released = None
        await delete_all(self._files, f"{self.key}.")

    async def close(self) -> None:
        """Lets go of the open file; a later call opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    async def _open(self, write: bool) -> StoredFile | None:
        async with self._opening:
            if self._file is not None and write and not self._writing:
                await self.close()
            if self._file is None:
                self._file = await self._files.open(f"{self.key}.raw", write)
                self._writing = write
            return self._file

    async def _save(self) -> None:
        async with self._saving:
            state = {
                "version": STATE_VERSION,
                "size": self.size,
                "chunk_bytes": self.chunk_bytes,
                "hashes": self.hashes,
                "stored": sorted(self._stored),
                "released": self.released,
                "origin": self.origin,
            }
            await write_json(self._files, self._buffers, f"{self.key}.state", state)
