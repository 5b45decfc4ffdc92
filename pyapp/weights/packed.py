"""A packed blob (see ``packing``) that is kept: on disk, or in memory where storage fails.

Beside the blob lies a small index with the layout's fingerprint and a SHA-256 for each MiB. A blob without an index is
unfinished and is never read. Each MiB is checked when it is first read, so that opening costs nothing, and a blob that
was damaged meanwhile is thrown away instead of being believed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..errors import BadArgument, BadWeights, Closed
from .buffers import Buffer, Buffers
from .files import Files, MemoryFiles, StorageError, StoredFile, delete_all, read_json, write_json
from .packing import PackLayout
from .source import Bytes

INDEX_VERSION = 1
SEGMENT_BYTES = 1 << 20
READ_BYTES = 4 << 20
"""What is read ahead at a time: what the pool asks for (``gpu/residency.py``)."""


class ReadAhead(Protocol):
    """A stored file that is being read from its beginning, ``READ_BYTES`` at a time, beside all other work."""

    async def take(self, offset: int, length: int) -> tuple[Buffer, list[str]] | None:
        """The bytes from ``offset`` and the SHA-256 of each segment of them; None where they are not to be had so.
        They are then read from the file, and nothing more is to be had here."""
        ...

    async def close(self) -> None:
        """Lets go of the file, and of what was read."""
        ...


BeginReading = Callable[[str, int, int], ReadAhead | None]
"""Of (file, bytes of a piece, bytes of a segment); None where that cannot be."""


def no_reading_ahead(name: str, piece: int, segment: int) -> None:
    """A ``BeginReading`` for storage that is read where it is wanted."""


class PackedBlob:
    """Packed weights. Written once (``write``, then ``commit``), then read in ranges.

    Attributes:
        total: bytes.
        persistent: whether a later visit will find it.
    """

    def __init__(
        self, shelf: Shelf, files: Files, name: str, file: StoredFile, layout: PackLayout, hashes: list[str] | None,
        ahead: ReadAhead | None = None,
    ) -> None:  # fmt: skip
        self.total = layout.total
        self._fingerprint = layout.fingerprint
        self._shelf, self._files, self._name, self._file = shelf, files, name, file
        self._buffers = shelf.buffers
        self._hashes = hashes or []
        self._checked = bytearray(-(-self.total // SEGMENT_BYTES))
        self._committed, self._closed = hashes is not None, False
        self._damage = ""
        self._ahead = ahead

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
            whole, hashes = await self._read(start, end - start)
            self._check(range(first, last), hashes)
            return self._buffers.view(whole, offset - start, offset - start + length)
        except StorageError as error:
            self._check_open()  # where it was closed meanwhile nothing is damaged
            self._damage = str(error)
            await self.discard()
            self._check_open()
            raise

    async def _read(self, start: int, length: int) -> tuple[Buffer, list[str]]:
        """Whole segments, and their hashes. What was read ahead is whole pieces: blocks that take turns in a window,
        and a second reading, have no use for it. Raises StorageError."""
        found = await self._ahead.take(start, length) if self._ahead else None
        if found is None:
            await self._stop_reading()
            self._check_open()
            whole = self._file.read(start, length)
            found = whole, await self._buffers.sha256_each(whole, SEGMENT_BYTES)
        return found

    def _check(self, segments: range, hashes: list[str]) -> None:
        """``hashes``: of these segments as they were read. Raises StorageError."""
        for index, found in zip(segments, hashes, strict=True):
            if found != self._hashes[index]:
                raise StorageError(f"the bytes from {index * SEGMENT_BYTES} on have changed")
            self._checked[index] = 1

    async def _stop_reading(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead:
            await ahead.close()

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
            await self._stop_reading()

    def _check_open(self) -> None:
        if self._closed and self._damage:  # the same for all who were reading, whoever of them saw it
            raise BadWeights(
                f"The stored weights are damaged ({self._damage}); they have been deleted and will be made again.",
                reason="storage",
                repack=True,
            )
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

    def __init__(self, files: Files, memory: MemoryFiles, buffers: Buffers, begin_reading: BeginReading) -> None:
        self.files, self.memory, self.buffers = files, memory, buffers
        self.in_memory: set[str] = set()
        """Names of the finished blobs that are kept in memory."""
        self._begin_reading = begin_reading
        self._ahead: dict[str, ReadAhead] = {}
        """What is read ahead and was not asked for yet, by the blob's name."""

    async def open(self, key: str, layout: PackLayout) -> PackedBlob | None:
        """The blob that was committed for this model and this layout, if there is one."""
        name = _name(key, layout)
        ahead = self._ahead.pop(name, None)
        blob = None
        try:
            await self.stop_reading_ahead(key)  # of another layout: they are about to be deleted
            blob = await self._open(name, layout, ahead)
        finally:
            if ahead and (blob is None or not blob.persistent):
                await ahead.close()
        return blob

    async def read_ahead(self, key: str) -> None:
        """Begins to read the blob that was committed for this model, if there is one, before its layout is known:
        who opens it finds its first bytes there. A model has one, but for what was left by an accident."""
        names = await self._finished(key)
        if len(names) == 1 and names[0] not in self._ahead:
            ahead = self._begin_reading(f"{names[0]}.packed", READ_BYTES, SEGMENT_BYTES)
            if ahead:
                self._ahead[names[0]] = ahead

    async def stop_reading_ahead(self, key: str) -> None:
        """Lets go of what was read of a model and not opened."""
        for name in [name for name in self._ahead if name.startswith(f"{key}.pack-")]:
            ahead = self._ahead.pop(name, None)
            if ahead:
                await ahead.close()

    async def _open(self, name: str, layout: PackLayout, ahead: ReadAhead | None) -> PackedBlob | None:
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
            if ahead:
                await ahead.close()  # a file that somebody reads cannot be deleted
            await self.delete(self.files, name)
            return None
        return PackedBlob(self, self.files, name, file, layout, hashes, ahead)

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
        return bool(await self._finished(key))

    async def _finished(self, key: str) -> list[str]:
        """The names of the finished blobs of a model in storage."""
        try:
            names = set(await self.files.names())
        except StorageError:
            return []
        found = [name[:-6] for name in names if name.startswith(f"{key}.pack-") and name.endswith(".index")]
        return [name for name in found if f"{name}.packed" in names]

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
