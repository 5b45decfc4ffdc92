"""A packed blob (see ``packing``) that is kept: on disk, or in memory where storage fails.

Beside the blob lies a small index with the layout's fingerprint and a SHA-256 for each MiB. A blob without an index is
unfinished and is never read. Each MiB is checked when it is first read, so that opening costs nothing, and a blob that
was damaged meanwhile is thrown away instead of being believed.
"""

from __future__ import annotations

from typing import Any

from ..errors import BadArgument, BadWeights, Closed
from .buffers import Buffer, Buffers
from .files import Files, MemoryFiles, StorageError, StoredFile, delete_all, read_json, write_json
from .packing import PackLayout
from .source import Bytes

INDEX_VERSION = 1
SEGMENT_BYTES = 1 << 20


class PackedBlob:
    """Packed weights. Written once (``write``, then ``commit``), then read in ranges.

    Attributes:
        total: bytes.
        persistent: whether a later visit will find it.
    """

    def __init__(
        self, shelf: Shelf, files: Files, name: str, file: StoredFile, layout: PackLayout, hashes: list[str] | None
    ) -> None:
        self.total = layout.total
        self._fingerprint = layout.fingerprint
        self._shelf, self._files, self._name, self._file = shelf, files, name, file
        self._buffers = shelf.buffers
        self._hashes = hashes or []
        self._checked = bytearray(-(-self.total // SEGMENT_BYTES))
        self._committed, self._closed = hashes is not None, False

    @property
    def persistent(self) -> bool:
        return self._files.persistent

    async def write(self, offset: int, data: Bytes) -> None:
        """Writes ``data`` (uint8) at ``offset``. When storage fails, everything moves to memory and goes on there."""
        self._check_open()
        if self._committed or offset < 0 or offset + data.size > self.total:
            raise BadArgument(f"Bytes {offset} to {offset + data.size} cannot be written to a blob of {self.total}.")
        buffer = self._buffers.from_numpy(data)
        try:
            self._file.write(offset, buffer)
        except StorageError:
            await self._move_to_memory()
            self._file.write(offset, buffer)

    async def commit(self) -> None:
        """Makes what was written count: from now on ``open`` finds it."""
        if self.persistent:
            try:
                await self._write_index()
            except StorageError:
                await self._move_to_memory()
        if not self.persistent:
            self._shelf.in_memory.add(self._name)
        self._committed = True
        self._checked = bytearray(b"\1" * len(self._checked))

    async def read_js(self, offset: int, length: int) -> Buffer:
        """The bytes from ``offset``, in the browser a ``Uint8Array`` outside of the Python heap.

        The array may share memory with the store: read it, do not write it.

        Raises:
            BadWeights: the stored bytes are damaged or gone. The blob has then been deleted: make it again
                (``details["repack"]`` is true).
        """
        self._check_open()
        if not self._committed or offset < 0 or length < 0 or offset + length > self.total:
            raise BadArgument(f"Bytes {offset} to {offset + length} were asked of a blob of {self.total} bytes.")
        try:
            first, last = offset // SEGMENT_BYTES, -(-(offset + length) // SEGMENT_BYTES)
            if not self.persistent or all(self._checked[first:last]):
                return self._file.read(offset, length)
            start, end = first * SEGMENT_BYTES, min(self.total, last * SEGMENT_BYTES)
            whole = self._file.read(start, end - start)
            await self._check(first, whole)
            return self._buffers.view(whole, offset - start, offset - start + length)
        except StorageError as error:
            await self.discard()
            raise BadWeights(
                f"The stored weights are damaged ({error}); they have been deleted and will be made again.",
                reason="storage",
                repack=True,
            ) from None

    async def _check(self, first: int, whole: Buffer) -> None:
        """``whole``: the bytes from segment ``first`` on. Raises StorageError."""
        for index, found in enumerate(await self._buffers.sha256_each(whole, SEGMENT_BYTES), first):
            if found != self._hashes[index]:
                raise StorageError(f"the bytes from {index * SEGMENT_BYTES} on have changed")
            self._checked[index] = 1

    async def discard(self) -> None:
        """Deletes the blob."""
        await self.close()
        self._shelf.in_memory.discard(self._name)
        await self._shelf.delete(self._files, self._name)

    async def close(self) -> None:
        """Lets go of the file; the blob is not used afterwards."""
        if not self._closed:
            self._closed = True
            self._file.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("These packed weights have been closed or deleted; open them again.")

    async def _write_index(self) -> None:
        self._file.flush()
        for index in range(len(self._checked)):
            start = index * SEGMENT_BYTES
            segment = self._file.read(start, min(SEGMENT_BYTES, self.total - start))
            self._hashes.append(await self._buffers.sha256(segment))
        await write_json(
            self._files,
            self._buffers,
            f"{self._name}.index",
            {
                "version": INDEX_VERSION,
                "fingerprint": self._fingerprint,
                "total": self.total,
                "segment": SEGMENT_BYTES,
                "hashes": self._hashes,
            },
        )
        # Opened again for reading only, so that a second tab can read it too.
        self._file.close()
        file = await self._files.open(f"{self._name}.packed")
        if file is None:
            raise StorageError("the file is gone")
        self._file = file

    async def _move_to_memory(self) -> None:
        memory = await self._shelf.memory.open(f"{self._name}.packed", write=True)
        assert memory is not None
        memory.resize(self.total)
        try:
            for start in range(0, self.total, SEGMENT_BYTES):
                memory.write(start, self._file.read(start, min(SEGMENT_BYTES, self.total - start)))
        except StorageError as error:
            await self.discard()
            await self._shelf.delete(self._shelf.memory, self._name)
            raise BadWeights(
                f"The browser's storage failed while the weights were being prepared ({error}); load the model again.",
                reason="storage",
                repack=True,
            ) from None
        self._file.close()
        await self._shelf.delete(self._files, self._name)
        self._files, self._file = self._shelf.memory, memory


class Shelf:
    """All packed blobs of one store."""

    def __init__(self, files: Files, memory: MemoryFiles, buffers: Buffers) -> None:
        self.files, self.memory, self.buffers = files, memory, buffers
        self.in_memory: set[str] = set()
        """Names of the finished blobs that are kept in memory."""

    async def open(self, key: str, layout: PackLayout) -> PackedBlob | None:
        """The blob that was committed for this model and this layout, if there is one."""
        name = _name(key, layout)
        file: StoredFile | None
        if name in self.in_memory and (file := await self.memory.open(f"{name}.packed")):
            return PackedBlob(self, self.memory, name, file, layout, [])
        index = await read_json(self.files, self.buffers, f"{name}.index")
        hashes = _hashes_of(index, layout)
        if hashes is None:
            return None
        try:
            file = await self.files.open(f"{name}.packed")
        except StorageError:
            return None
        if file is None or file.size != layout.total:
            if file is not None:
                file.close()
            await self.delete(self.files, name)
            return None
        return PackedBlob(self, self.files, name, file, layout, hashes)

    async def create(self, key: str, layout: PackLayout) -> PackedBlob:
        """An empty blob to be written. Blobs of other layouts of this model are deleted."""
        name = _name(key, layout)
        if self.files.persistent:
            await delete_all(self.files, f"{key}.pack-")
            try:
                file = await self.files.open(f"{name}.packed", write=True)
                assert file is not None
                try:
                    # The room is taken now, so that a full quota shows before any work is done.
                    file.resize(layout.total)
                    return PackedBlob(self, self.files, name, file, layout, None)
                except StorageError:
                    file.close()
                    raise
            except StorageError:
                await self.delete(self.files, name)
        memory = await self.memory.open(f"{name}.packed", write=True)
        assert memory is not None
        memory.resize(layout.total)
        return PackedBlob(self, self.memory, name, memory, layout, None)

    async def has(self, key: str) -> bool:
        """Whether storage holds a finished blob of this model, of whatever layout."""
        try:
            names = set(await self.files.names())
        except StorageError:
            return False
        return any(
            name.startswith(f"{key}.pack-") and name.endswith(".index") and f"{name[:-6]}.packed" in names
            for name in names
        )

    async def delete(self, files: Files, name: str) -> None:
        """Deletes a blob: first the index, so that a half deleted one is an unfinished one."""
        for ending in ("index", "packed"):
            try:
                await files.delete(f"{name}.{ending}")
            except StorageError:
                return


def _name(key: str, layout: PackLayout) -> str:
    return f"{key}.pack-{layout.fingerprint}"


def _hashes_of(index: Any, layout: PackLayout) -> list[str] | None:
    """The hashes of a sound index of this very layout."""
    wanted = (INDEX_VERSION, layout.fingerprint, layout.total, SEGMENT_BYTES)
    if not isinstance(index, dict) or wanted != tuple(
        index.get(key) for key in ("version", "fingerprint", "total", "segment")
    ):
        return None
    hashes = index.get("hashes")
    if not isinstance(hashes, list) or len(hashes) != -(-layout.total // SEGMENT_BYTES):
        return None
    return hashes
