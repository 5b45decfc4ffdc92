"""Filling a model's missing chunks from where it lies: a manifest's chunks, or one URL.

Both keep every finished chunk, whatever happens later, and stop their requests when they are cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ..errors import BadModel, BadWeights
from .buffers import Buffer, Buffers, to_numpy
from .chunks import Chunks
from .manifest import Manifest
from .network import Body, Network, NetworkError, Response, backoff, check_status, looks_like_html, web_page

PARALLEL = 3
"""Chunks on their way at once: hides the latency of each request; more only takes memory."""

Tick = Callable[[int, int], None]
"""Hears (chunk, bytes of it that have come)."""


class Origin(Protocol):
    """Where chunks can be had."""

    async def fill(self, chunks: Chunks, wanted: Sequence[int], tick: Tick) -> None:
        """Puts the ``wanted`` chunks. Raises BadWeights (or BadModel) when one cannot be had."""
        ...


class ManifestOrigin:
    """Chunks at addresses of their own, with known hashes. Any static server will do."""

    def __init__(self, manifest: Manifest, network: Network, buffers: Buffers) -> None:
        self._manifest, self._network, self._buffers = manifest, network, buffers

    async def fill(self, chunks: Chunks, wanted: Sequence[int], tick: Tick) -> None:
        queue = deque(wanted)

        async def work() -> None:
            while queue:
                index = queue.popleft()
                await chunks.put(index, await self._chunk(chunks, index, tick), self._manifest.hashes[index])

        tasks = [asyncio.ensure_future(work()) for _ in range(min(PARALLEL, len(queue)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _chunk(self, chunks: Chunks, index: int, tick: Tick) -> Buffer:
        """The chunk, with the hash that is promised: a wrong one is fetched once more, past any cache on the way."""
        what = f"chunk {index + 1} of {chunks.count} of {self._manifest.name}"
        # What goes to disk needs no second copy in the HTTP cache; what does not, is found there by the next visit.
        cache, attempt = "default" if chunks.in_memory else "no-store", 0
        while True:
            try:
                buffer = await self._fetch(index, chunks.bytes_of(index), what, cache, tick)
            except NetworkError as error:
                await backoff(self._network, attempt, what.capitalize(), error)
                attempt += 1
                continue
            have, promised = await self._buffers.sha256(buffer), self._manifest.hashes[index]
            if have == promised:
                return buffer
            head = to_numpy(self._buffers, self._buffers.view(buffer, 0, min(64, self._buffers.size(buffer)))).tobytes()
            if looks_like_html(head):
                raise web_page(what)
            if cache == "reload":
                size = self._buffers.size(buffer)
                raise BadWeights(
                    f"{what.capitalize()} is not the one promised: its {size} bytes hash to {have[:12]}…, the manifest "
                    f"says {chunks.bytes_of(index)} bytes and {promised[:12]}…. The site's models must be built again.",
                    reason="hash",
                    chunk=index,
                    sha256=have,
                    promised=promised,
                )
            cache = "reload"

    async def _fetch(self, index: int, nbytes: int, what: str, cache: str, tick: Tick) -> Buffer:
        tick(index, 0)
        response = await self._network.get(self._manifest.urls[index], cache=cache)
        try:
            check_status(response, what)
            # One byte more than promised shows that there is more.
            return await Body(response, self._buffers).read(nbytes + 1, lambda come: tick(index, min(come, nbytes)))
        finally:
            response.cancel()


class UrlOrigin:
    """One file at one address, cut here: from the first missing byte on where the server can, else from the start."""

    def __init__(self, url: str, network: Network, buffers: Buffers) -> None:
        self._url, self._network, self._buffers = url, network, buffers
        self._what = f"The file {url!s:.200}"

    async def look(self) -> dict[str, Any]:
        """Asks for the first byte only. Returns ``{"size": bytes or None, "etag": text, "ranges": bool}``.

        Raises BadWeights: not there, or out of reach.
        """
        attempt = 0
        while True:
            try:
                found = await self._ask(0, 1)
                # A server of another origin may hide how long the whole is behind a part, but not behind the whole.
                return (
                    found if found["size"] is not None else {**await self._ask(None, None), "ranges": found["ranges"]}
                )
            except NetworkError as error:
                await backoff(self._network, attempt, self._what, error)
                attempt += 1

    async def _ask(self, start: int | None, end: int | None) -> dict[str, Any]:
        response = await self._network.get(self._url, start, end, cache="no-store")
        response.cancel()
        if response.status == 416:
            raise BadModel("The model file is empty (0 bytes).", bytes=0)
        check_status(response, self._what)
        return {"size": response.total, "etag": response.etag, "ranges": response.status == 206}

    async def measure(self, most: int) -> tuple[list[Buffer], str]:
        """The whole file as pieces of at most ``most`` bytes, from a server that does not say how long it is; and the
        ETag that they came with."""
        attempt = 0
        while True:
            try:
                response = await self._network.get(self._url, cache="no-store")
                try:
                    check_status(response, self._what)
                    body = Body(response, self._buffers)
                    pieces = [await body.read(most)]
                    self._check_start(pieces[0])
                    while self._buffers.size(pieces[-1]) == most:
                        pieces.append(await body.read(most))
                    return [piece for piece in pieces if self._buffers.size(piece)], response.etag
                finally:
                    response.cancel()
            except NetworkError as error:
                await backoff(self._network, attempt, self._what, error)
                attempt += 1

    async def fill(self, chunks: Chunks, wanted: Sequence[int], tick: Tick) -> None:
        missing, attempt = set(wanted), 0
        while missing:
            before = len(missing)
            try:
                await self._run(chunks, missing, tick)
            except NetworkError as error:
                attempt = 0 if len(missing) < before else attempt
                await backoff(self._network, attempt, self._what, error)
                attempt += 1

    async def _run(self, chunks: Chunks, missing: set[int], tick: Tick) -> None:
        """One request, for the first run of missing chunks; removes from ``missing`` what has been kept."""
        first = last = min(missing)
        while last + 1 in missing:
            last += 1
        start = first * chunks.chunk_bytes
        end = last * chunks.chunk_bytes + chunks.bytes_of(last)
        part = first > 0 or end < chunks.size
        response = await self._network.get(self._url, start if part else None, end if part else None, cache="no-store")
        try:
            check_status(response, self._what)
            await self._check_same(chunks, response)
            at = (start if response.start is None else response.start) if response.status == 206 else 0
            body = Body(response, self._buffers)
            if at > start:
                raise NetworkError(f"the answer begins at byte {at} instead of {start}")
            await self._pass_over(chunks, body, at, start)
            for index in range(first, last + 1):
                buffer = await body.read(chunks.bytes_of(index), partial(tick, index))
                if self._buffers.size(buffer) < chunks.bytes_of(index):
                    raise NetworkError("the answer ended early")
                await self._keep(chunks, index, buffer)
                missing.discard(index)
        finally:
            response.cancel()

    async def _pass_over(self, chunks: Chunks, body: Body, at: int, start: int) -> None:
        """Reads on from ``at`` to ``start``. What is there already must come again as it is kept, or what follows is
        another file's, whatever its ETag says."""
        partly = min(-at % chunks.chunk_bytes, start - at)
        await body.skip(partly)
        for index in range((at + partly) // chunks.chunk_bytes, start // chunks.chunk_bytes):
            buffer = await body.read(chunks.bytes_of(index))
            if self._buffers.size(buffer) < chunks.bytes_of(index):
                raise NetworkError("the answer ended early")
            if chunks.hashes[index] not in (None, await self._buffers.sha256(buffer)):
                raise await self._changed(chunks)

    async def _keep(self, chunks: Chunks, index: int, buffer: Buffer) -> None:
        if index == 0:
            self._check_start(buffer)
        sha256 = await self._buffers.sha256(buffer)
        if chunks.hashes[index] not in (None, sha256):
            raise await self._changed(chunks)
        await chunks.put(index, buffer, sha256)

    def _check_start(self, buffer: Buffer) -> None:
        if self._buffers.size(buffer) == 0:
            raise BadModel("The model file is empty (0 bytes).", bytes=0)
        head = to_numpy(self._buffers, self._buffers.view(buffer, 0, min(64, self._buffers.size(buffer)))).tobytes()
        if looks_like_html(head):
            raise web_page(self._what)
        if not head.startswith(b"GGUF"):
            raise BadModel(f"{self._what} is no GGUF file: it begins with {head[:4]!r}.")

    async def _check_same(self, chunks: Chunks, response: Response) -> None:
        known = chunks.origin.get("etag", "")
        other_size = response.total is not None and response.total != chunks.size
        if other_size or (known and response.etag and known != response.etag):
            raise await self._changed(chunks)

    async def _changed(self, chunks: Chunks) -> BadWeights:
        await chunks.forget()
        return BadWeights(
            f"{self._what} changed on its server while it was being used. What was stored of it has been deleted; "
            "load it again.",
            reason="changed",
        )
