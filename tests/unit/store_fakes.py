"""A server and a disk that fail on demand, for the tests of the store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyapp.weights.buffers import NumpyBuffers
from pyapp.weights.files import MemoryFiles, StorageBusy, StorageError, StorageFull
from pyapp.weights.manifest import MAX_CHUNK_BYTES
from pyapp.weights.network import NetworkError
from pyapp.weights.packed import BeginReading, no_reading_ahead
from pyapp.weights.packing import PackedTensor, PackLayout, SourceRows, plan_layout
from pyapp.weights.store import Store, StoredModel

CHUNK = 1000
MANIFEST = "/models/tiny/manifest.json"


@dataclass
class Fault:
    """What one answer does instead of the right thing."""

    status: int = 200
    body: bytes | None = None
    content_type: str = "application/octet-stream"
    cut_at: int | None = None
    """The connection breaks after so many bytes."""
    offline: bool = False
    ends_early: bool = False
    """With ``cut_at``: the body ends as if it were whole."""


@dataclass
class FakeServer:
    """A ``Network``: files by URL, with faults to come for each URL, used up one by one."""

    ranges: bool = True
    announces: bool = True
    etag: str = "one"
    piece_bytes: int = 300
    files: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    log: list[tuple[str, int | None, int | None, str]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    sent: int = 0
    open: int = 0
    gate: asyncio.Event | None = None
    """While it is there and not set, bodies do not go on."""

    async def get(
        self, url: str, start: int | None = None, end: int | None = None, cache: str = "default"
    ) -> FakeResponse:
        self.log.append((url, start, end, cache))
        fault = self.faults[url].pop(0) if self.faults[url] else None
        if fault is not None and fault.offline:
            raise NetworkError("Failed to fetch")
        self.open += 1
        return FakeResponse(self, url, start, end, fault)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def urls(self, ending: str = "") -> list[str]:
        return [url for url, *_ in self.log if url.endswith(ending)]


class FakeResponse:
    """An answer of a ``FakeServer``."""

    def __init__(self, server: FakeServer, url: str, start: int | None, end: int | None, fault: Fault | None) -> None:
        self._server, self._fault, self._at, self._ended = server, fault or Fault(), 0, False
        body = server.files.get(url)
        whole = len(body or b"")
        self.start = None
        self.etag = server.etag if self._fault.body is None else "of another file"
        self.content_type = server.types.get(url, self._fault.content_type)
        if self._fault.body is not None:
            self.status, self._body = self._fault.status, self._fault.body
            whole = len(self._body)
        elif self._fault.status != 200 or body is None:
            self.status, self._body = (404 if body is None else self._fault.status), b"no"
        elif start is not None and server.ranges:
            self.status, self._body, self.start = 206, body[start:end], start
        else:
            self.status, self._body = 200, body
        self.total = whole if server.announces else None

    async def piece(self, most: int) -> np.ndarray | None:
        await asyncio.sleep(0)
        if self._server.gate is not None:
            await self._server.gate.wait()
        stop = min(len(self._body), len(self._body) if self._fault.cut_at is None else self._fault.cut_at)
        if self._at >= stop:
            if self._fault.cut_at is None or self._fault.ends_early:
                return None
            raise NetworkError("the connection was cut")
        piece = self._body[self._at : min(stop, self._at + min(most, self._server.piece_bytes))]
        self._at += len(piece)
        self._server.sent += len(piece)
        return np.frombuffer(piece, np.uint8)

    def cancel(self) -> None:
        if not self._ended:
            self._ended = True
            self._server.open -= 1


class FakeDisk:
    """``Files`` with a quota, exclusive writers, and a way to lose everything."""

    persistent = True

    def __init__(self, quota: int = 1 << 40) -> None:
        self.quota = quota
        self.content: dict[str, bytearray] = {}
        self.handles: list[FakeFile] = []
        self.gone = False

    @property
    def used(self) -> int:
        return sum(map(len, self.content.values()))

    def wipe(self) -> None:
        """What "clear site data" does: the files are gone, and open handles fail from now on."""
        self.content.clear()
        self.gone = True
        for handle in self.handles:
            handle.lost = True

    async def open(self, name: str, write: bool = False) -> FakeFile | None:
        await asyncio.sleep(0)
        if self.gone and write:
            raise StorageError("NotFoundError: the folder is gone")
        if name not in self.content and not write:
            return None
        others = [handle for handle in self.handles if handle.name == name]
        if any(handle.writes for handle in others) or (write and others):
            raise StorageBusy("NoModificationAllowedError: in use")
        self.content.setdefault(name, bytearray())
        handle = FakeFile(self, name, write)
        self.handles.append(handle)
        return handle

    async def delete(self, name: str) -> None:
        if any(handle.name == name for handle in self.handles):
            raise StorageBusy("NoModificationAllowedError: in use")
        self.content.pop(name, None)

    async def names(self) -> list[str]:
        return list(self.content)


class FakeFile:
    """An open file of a ``FakeDisk``."""

    def __init__(self, disk: FakeDisk, name: str, writes: bool) -> None:
        self.disk, self.name, self.writes, self.lost = disk, name, writes, False
        self._data = disk.content[name]

    def _check(self) -> None:
        if self.lost or self not in self.disk.handles:
            raise StorageError("InvalidStateError: the file is gone")

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> np.ndarray:
        self._check()
        data = self._data[offset : offset + length]
        if len(data) != length:
            raise StorageError("NotReadableError: short")
        return np.frombuffer(bytes(data), np.uint8)

    def write(self, offset: int, buffer: np.ndarray) -> None:
        self._check()
        assert self.writes
        self._grow(max(len(self._data), offset + buffer.size))
        self._data[offset : offset + buffer.size] = buffer.tobytes()

    def _grow(self, nbytes: int) -> None:
        if self.disk.used + nbytes - len(self._data) > self.disk.quota:
            raise StorageFull("QuotaExceededError: no room")
        self._data.extend(bytes(max(0, nbytes - len(self._data))))

    def resize(self, nbytes: int) -> None:
        self._check()
        assert self.writes
        self._grow(nbytes)
        del self._data[nbytes:]

    def flush(self) -> None:
        self._check()

    def close(self) -> None:
        if self in self.disk.handles:
            self.disk.handles.remove(self)


def new_store(server: FakeServer, disk: FakeDisk | None, begin_reading: BeginReading = no_reading_ahead) -> Store:
    """A store as a new visit makes it: nothing in memory. Without a disk everything is in memory."""
    buffers = NumpyBuffers()
    memory = MemoryFiles(buffers)
    return Store(memory if disk is None else disk, memory, buffers, server, begin_reading)


def model_bytes(size: int = 4500, seed: int = 0) -> bytes:
    """A sound GGUF file with one tensor of random bytes; no chunk of it equals another."""
    head = (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, size - 64, 24, 0)
    )
    return head.ljust(64, b"\0") + np.random.default_rng(seed).bytes(size - 64)


def publish(server: FakeServer, data: bytes, chunk_bytes: int = CHUNK, **fields: Any) -> dict[str, Any]:
    """Puts a model's manifest and chunks on the server, as the build does."""
    assert chunk_bytes <= MAX_CHUNK_BYTES
    chunks = []
    for at in range(0, len(data), chunk_bytes):
        piece = data[at : at + chunk_bytes]
        digest = hashlib.sha256(piece).hexdigest()
        server.files[f"/models/tiny/{digest}.bin"] = piece
        chunks.append({"sha256": digest, "bytes": len(piece), "url": f"{digest}.bin"})
    manifest = {
        "name": "tiny",
        "kind": "language",
        "title": "Tiny",
        "licence": "MIT",
        "languages": ["en"],
        "format": "gguf",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "chunk_bytes": chunk_bytes,
        "chunks": chunks,
        **fields,
    }
    server.files[MANIFEST] = json.dumps(manifest).encode()
    server.types[MANIFEST] = "application/json"
    return manifest


def chunk_url(manifest: dict[str, Any], index: int) -> str:
    return f"/models/tiny/{manifest['chunks'][index]['url']}"


class Reports:
    """A progress callback that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int | None]] = []

    def __call__(self, stage: str, loaded: int, total: int | None) -> None:
        self.seen.append((stage, loaded, total))

    def stages(self) -> set[str]:
        return {stage for stage, _, _ in self.seen}


def layout_of(rows: int = 20, name: str = "m") -> PackLayout:
    """A layout of two blocks, some MiB in all when ``rows`` is large."""
    return plan_layout(
        {block: [PackedTensor(f"{name}{block}", (SourceRows("t"),), "f32", rows, 64)] for block in ("a", "b")}
    )


async def whole(model: StoredModel) -> bytes:
    """All bytes of a model, which is closed then."""
    data = (await model.source.read(0, model.source.size)).tobytes()
    await model.close()
    return data
