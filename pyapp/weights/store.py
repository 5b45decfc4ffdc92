"""The store: a model's weights, downloaded once, checked, kept, and packed.

    model = await ensure_model("/models/smollm2-135m/manifest.json", progress)
    file = await read_gguf(model.source)
    blob = await open_packed(model.key, layout)
    if blob is None:
        blob = await create_packed(model.key, layout)
        await pack(file, model.source, layout, blob, progress)
        await blob.commit()
        await model.release_chunks(file.data_offset)
    await blob.read_js(offset, length)

Storage that fails (a full quota, a private window, a cache that is emptied meanwhile, another tab in the same file)
never ends a download: the store goes on in memory, and ``StoredModel.persistent`` says so.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import numpy as np

from ..errors import BadModel, BadWeights
from .buffers import Buffer, Buffers
from .chunks import Chunks
from .download import ManifestOrigin, Origin, Tick, UrlOrigin
from .files import Files, MemoryFiles, StorageError, delete_all, read_json, write_json
from .gguf import read_gguf
from .manifest import URL_CHUNK_BYTES, Manifest, join_url, name_of_url, parse_manifest, url_key
from .network import Network, get_json
from .packed import BeginReading, PackedBlob, Shelf, no_reading_ahead
from .packing import PackLayout, Progress
from .source import Bytes, check_range

STAGE = "weights"
STORED_STAGE = "stored"
"""Reported in the place of "weights" while nothing is asked of the network: what is here was kept before."""
MEMORY_STAGE = "weights_in_memory"
"""Reported once when the weights cannot be kept and go on in memory."""


class AbortSignal(Protocol):
    aborted: bool


class StoredModel:
    """A model whose bytes can be read.

    Attributes:
        name: as in the manifest, or after the file's name.
        key: names the content; what ``open_packed`` and ``create_packed`` take.
        manifest: the manifest's fields; for a bare URL the same fields as far as they are known.
        source: the model file. Ranges that were released are downloaded again when they are read.
    """

    def __init__(self, store: Store, manifest: dict[str, Any], url: str, chunks: Chunks, origin: Origin) -> None:
        self.name: str = manifest["name"]
        self.key = chunks.key
        self.manifest = manifest
        self.source = ChunkSource(chunks, origin, store.buffers)
        self._store, self._url, self._chunks = store, url, chunks

    @property
    def format(self) -> str:
        """ "gguf" or "safetensors"."""
        return str(self.manifest["format"])

    @property
    def persistent(self) -> bool:
        """Whether the bytes outlive the page."""
        return not self._chunks.in_memory

    async def sidecar(self, field: str) -> Any:
        """The small JSON file beside the manifest that its ``field`` names (``"classes"``), kept for the next visit.

        Raises:
            BadWeights: the manifest names none, or it cannot be had.
        """
        name = self.manifest.get(field)
        if not isinstance(name, str):
            raise BadWeights(f"The manifest of {self.name} names no {field}.", reason="manifest")
        return await self._store.json_of(join_url(self._url, name), f"The {field} file of {self.name}", self.key)

    async def read_ahead(self) -> None:
        """Begins to read the packed weights that an earlier visit has kept, beside all other work, for
        ``open_packed``."""
        await self._store.shelf.read_ahead(self.key)

    async def stop_reading_ahead(self) -> None:
        """Lets go of them where they were not opened."""
        await self._store.shelf.stop_reading_ahead(self.key)

    async def release_chunks(self, keep_bytes: int) -> None:
        """Gives up what comes after the first ``keep_bytes`` (rounded up to chunks) once it is packed.

        Stored chunks are only given up where a packed blob is stored; chunks in memory always are.
        """
        await self._chunks.release(keep_bytes, on_disk=await self._store.shelf.has(self.key))

    async def close(self) -> None:
        """Lets go of open files. The source still works; it opens them again."""
        await self._chunks.close()


class ChunkSource:
    """A ``Source`` over chunks: what is missing is downloaded when it is read."""

    def __init__(self, chunks: Chunks, origin: Origin, buffers: Buffers) -> None:
        self.size = chunks.size
        self._chunks, self._origin, self._buffers = chunks, origin, buffers
        self._filling = asyncio.Lock()

    @property
    def near(self) -> int:
        """How many bytes from the start on can be read without a download."""
        return min([index * self._chunks.chunk_bytes for index in self._chunks.missing()], default=self.size)

    async def read(self, offset: int, length: int) -> Bytes:
        check_range(offset, length, self.size)
        out, at = np.empty(length, np.uint8), 0
        while at < length:
            index, start = divmod(offset + at, self._chunks.chunk_bytes)
            count = min(length - at, self._chunks.bytes_of(index) - start)
            buffer = await self._chunks.read(index, start, count)
            if buffer is None:
                await self._fetch(index)
                buffer = await self._chunks.read(index, start, count)
            if buffer is None:
                raise BadWeights(f"Storage lost bytes {offset + at} to {offset + at + count} twice.", reason="storage")
            self._buffers.copy_out(buffer, out[at : at + count])
            at += count
        return out

    async def _fetch(self, index: int) -> None:
        async with self._filling:
            if index in self._chunks.missing():
                await self._origin.fill(self._chunks, [index], lambda _index, _come: None)


class Store:
    """Everything above over given files, buffers and network: ``browser`` gives the real ones, tests give others."""

    def __init__(
        self,
        files: Files,
        memory: MemoryFiles,
        buffers: Buffers,
        network: Network,
        begin_reading: BeginReading = no_reading_ahead,
    ) -> None:
        self.files, self.memory, self.buffers, self.network = files, memory, buffers, network
        self.shelf = Shelf(files, memory, buffers, begin_reading)
        self._turns: dict[str, asyncio.Lock] = {}

    async def ensure_model(self, url: str, progress: Progress, signal: AbortSignal | None = None) -> StoredModel:
        """Makes all of a model's bytes available: a manifest's, or a ``.gguf`` file's.

        What an earlier visit has kept is not downloaded again; where packed weights are stored, the file's own
        released bytes are not either. ``progress("weights", bytes here, bytes in all)``; ``progress("stored", ...)`` as
        long as nothing is asked of the network.

        Raises:
            BadWeights: bytes that cannot be had or are not the promised ones; finished chunks stay for the next try.
            BadModel: the URL gives something else than a GGUF file.
            asyncio.CancelledError: the task was cancelled, or ``signal`` was aborted.
        """
        async with self._turns.setdefault(url, asyncio.Lock()):
            if url.split("?")[0].split("#")[0].lower().endswith(".gguf"):
                return await self._ensure_url(url, progress, signal)
            return await self._ensure_manifest(url, progress, signal)

    async def open_packed(self, key: str, layout: PackLayout) -> PackedBlob | None:
        """The packed weights that were kept for this model and layout; None where there are none."""
        return await self.shelf.open(key, layout)

    async def create_packed(self, key: str, layout: PackLayout) -> PackedBlob:
        """Room for the packed weights: stored where possible, else in memory."""
        return await self.shelf.create(key, layout)

    async def json_of(self, url: str, what: str, key: str) -> Any:
        """A small JSON file that is kept with the model ``key``. Raises BadWeights."""
        name = f"{key}.json-{url_key(url)}"
        kept = await read_json(self.files, self.buffers, name)
        if kept is not None:
            return kept["value"]
        value = await get_json(self.network, self.buffers, url, what)
        await self._keep_json(name, {"value": value})
        return value

    async def _ensure_manifest(self, url: str, progress: Progress, signal: AbortSignal | None) -> StoredModel:
        manifest = await self._manifest(url)
        chunks = Chunks(
            self.files, self.buffers, manifest.key, manifest.size, manifest.chunk_bytes, list(manifest.hashes)
        )
        await chunks.load()
        origin = ManifestOrigin(manifest, self.network, self.buffers)
        await self._fill(chunks, origin, progress, signal)
        return StoredModel(self, manifest.fields, url, chunks, origin)

    async def _manifest(self, url: str) -> Manifest:
        """From the server, so that a new version is seen; the kept one where the server is out of reach."""
        name = f"manifest-{url_key(url)}"
        kept = await read_json(self.files, self.buffers, name)
        try:
            what = f"The manifest {url!s:.200}"
            fields = await get_json(self.network, self.buffers, url, what, attempts=1 if kept else 3)
        except BadWeights as error:
            if kept is None or error.details.get("reason") != "network":
                raise
            return parse_manifest(kept, url)
        manifest = parse_manifest(fields, url)
        if kept != fields:
            old = kept.get("sha256") if isinstance(kept, dict) else None
            if isinstance(old, str) and len(old) == 64 and old[:32] != manifest.key:
                await delete_all(self.files, f"{old[:32]}.")
            await self._keep_json(name, fields)
        return manifest

    async def _ensure_url(self, url: str, progress: Progress, signal: AbortSignal | None) -> StoredModel:
        origin, name, key = UrlOrigin(url, self.network, self.buffers), f"url-{url_key(url)}", url_key(url)
        kept = await read_json(self.files, self.buffers, name)
        kept = kept if _is_look(kept) else None
        try:
            found = await origin.look()
        except BadWeights as error:
            if kept is None or error.details.get("reason") != "network":
                raise
            found = kept
        if found["size"] == 0:
            raise BadModel("The model file is empty (0 bytes).", bytes=0)
        if kept is not None and (kept["etag"] != found["etag"] or found["size"] not in (None, kept["size"])):
            await delete_all(self.files, f"{key}.")
        elif kept is not None:
            found["size"] = kept["size"]
        pieces: list[Buffer] = []
        if found["size"] is None:
            pieces, found["etag"] = await origin.measure(URL_CHUNK_BYTES)
        size = found["size"] or sum(map(self.buffers.size, pieces))
        chunks = Chunks(self.files, self.buffers, key, size, URL_CHUNK_BYTES, [None] * -(-size // URL_CHUNK_BYTES))
        await chunks.load()
        chunks.origin = {"etag": found["etag"]}
        await self._keep_json(name, {"size": size, "etag": found["etag"]})
        for index, piece in enumerate(pieces):
            await chunks.put(index, piece, await self.buffers.sha256(piece))
        if pieces:
            await self._check_whole(ChunkSource(chunks, origin, self.buffers), chunks)
        await self._fill(chunks, origin, progress, signal, came=bool(pieces))
        fields = {"name": name_of_url(url), "title": name_of_url(url), "kind": "language", "format": "gguf"}
        return StoredModel(self, {**fields, "bytes": size, "url": url}, url, chunks, origin)

    async def _check_whole(self, source: ChunkSource, chunks: Chunks) -> None:
        """Where no length was announced, only the file itself tells whether all of it came. Raises BadModel."""
        try:
            await read_gguf(source)
        except BadModel:
            await chunks.forget()
            await delete_all(self.files, f"url-{chunks.key}")
            raise

    async def _fill(
        self, chunks: Chunks, origin: Origin, progress: Progress, signal: AbortSignal | None, *, came: bool = False
    ) -> None:
        """``came``: whether some of it has been downloaded already."""
        tick = _meter(chunks, progress, signal)
        try:
            # Twice, since storage may lose in the meantime what had arrived (someone empties the cache).
            for _ in range(2):
                wanted = chunks.missing()
                if chunks.released is not None and await self.shelf.has(chunks.key):
                    wanted = [index for index in wanted if index < chunks.released]
                if not wanted:
                    break
                came = True
                await origin.fill(chunks, wanted, tick)
                await chunks.settle()
        finally:
            if chunks.in_memory:
                progress(MEMORY_STAGE, chunks.size, chunks.size)
            await chunks.close()
        progress(STAGE if came else STORED_STAGE, chunks.size, chunks.size)

    async def _keep_json(self, name: str, value: Any) -> None:
        try:
            await write_json(self.files, self.buffers, name, value)
        except StorageError:
            await delete_all(self.files, name)


def _meter(chunks: Chunks, progress: Progress, signal: AbortSignal | None) -> Tick:
    """Adds up what has come of each chunk that is asked for."""
    coming: dict[int, int] = {}

    def tick(index: int, come: int) -> None:
        if signal is not None and signal.aborted:
            raise asyncio.CancelledError
        coming[index] = come
        here = chunks.size - sum(chunks.bytes_of(each) for each in chunks.missing() if each not in coming)
        progress(STAGE, here - sum(chunks.bytes_of(each) - coming[each] for each in coming), chunks.size)

    return tick


def _is_look(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and type(value.get("size")) is int
        and value["size"] > 0
        and isinstance(value.get("etag"), str)
    )


_default: Store | None = None


async def default_store() -> Store:
    """The browser's store, made at the first call. Outside of a browser there is none."""
    global _default
    if _default is None:
        from .browser import browser_store

        _default = await browser_store()
    return _default


async def ensure_model(url: str, progress: Progress, signal: AbortSignal | None = None) -> StoredModel:
    """``Store.ensure_model`` of the browser's store."""
    return await (await default_store()).ensure_model(url, progress, signal)


async def open_packed(key: str, layout: PackLayout) -> PackedBlob | None:
    """``Store.open_packed`` of the browser's store."""
    return await (await default_store()).open_packed(key, layout)


async def create_packed(key: str, layout: PackLayout) -> PackedBlob:
    """``Store.create_packed`` of the browser's store."""
    return await (await default_store()).create_packed(key, layout)
