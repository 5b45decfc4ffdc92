"""Getting bytes over HTTP: what the store needs of the network, and how an answer is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import BadWeights
from .buffers import Buffer, Buffers, to_numpy

ATTEMPTS = 5
"""How often something is asked for without any headway, at 0.5, 1, 2 and 4 seconds from each other."""
MAX_JSON_BYTES = 4 << 20


class NetworkError(Exception):
    """The connection failed or was cut: worth another attempt."""


class Response(Protocol):
    """An answer whose body is still to come."""

    status: int
    content_type: str
    start: int | None
    """Of a 206: offset of its first byte, where the server lets us see it."""
    total: int | None
    """Bytes of the whole file, where the server says so and the body is not compressed."""
    etag: str
    """Changes when the file does: the ETag, else the date of the last change, else empty."""

    async def piece(self, most: int) -> Buffer | None:
        """The next bytes, ``most`` at most; None at the end. Raises NetworkError."""
        ...

    def cancel(self) -> None:
        """Ends the request; harmless when it has ended."""
        ...


class Network(Protocol):
    async def get(self, url: str, start: int | None = None, end: int | None = None, cache: str = "default") -> Response:
        """Asks for a URL, or for the bytes from ``start`` to before ``end`` of it. Raises NetworkError.

        ``cache`` as in ``fetch``: "default", "reload" (past the cache), "no-cache" (ask for changes), "no-store".
        """
        ...

    async def pause(self, seconds: float) -> None: ...


class Body:
    """Reads a response in amounts that the caller chooses."""

    def __init__(self, response: Response, buffers: Buffers) -> None:
        self._response, self._buffers = response, buffers

    async def read(self, nbytes: int, tick: Callable[[int], None] | None = None) -> Buffer:
        """``nbytes`` bytes, fewer only at the end; ``tick`` hears how many have come. Raises NetworkError."""
        out, at = self._buffers.allocate(nbytes), 0
        while at < nbytes:
            piece = await self._response.piece(nbytes - at)
            if piece is None:
                return self._buffers.view(out, 0, at)
            self._buffers.copy(out, at, piece)
            at += self._buffers.size(piece)
            if tick is not None:
                tick(at)
        return out

    async def skip(self, nbytes: int) -> None:
        """Reads and forgets. Raises NetworkError where the body ends before."""
        while nbytes:
            piece = await self._response.piece(min(nbytes, 1 << 20))
            if piece is None:
                raise NetworkError("the answer ended early")
            nbytes -= self._buffers.size(piece)


def check_status(response: Response, what: str) -> None:
    """Raises NetworkError for an answer worth another attempt, BadWeights for one that will stay as it is."""
    status = response.status
    if status in (408, 425, 429) or status >= 500:
        raise NetworkError(f"HTTP {status}")
    if status not in (200, 206):
        raise BadWeights(
            f"{what[0].upper()}{what[1:]} is not there: the server answered HTTP {status}; check the model's address.",
            reason="http",
            status=status,
        )
    if response.content_type.split(";")[0].strip().lower() in ("text/html", "application/xhtml+xml"):
        raise web_page(what)


def looks_like_html(head: bytes) -> bool:
    """Whether bytes begin as a web page does."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:15].lower()
    return start.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--"))


def web_page(what: str) -> BadWeights:
    what = what[0].lower() + what[1:]
    return BadWeights(
        f"The server sent a web page instead of {what}; the address is wrong, or a login or proxy page is in the way.",
        reason="html",
    )


def unreachable(what: str, cause: NetworkError) -> BadWeights:
    return BadWeights(
        f"{what} could not be downloaded ({cause}) in {ATTEMPTS} attempts. What has arrived is kept; check the "
        "connection (and that the server allows this site to read it), then try again.",
        reason="network",
    )


async def backoff(network: Network, attempt: int, what: str, cause: NetworkError) -> None:
    """Waits after the failed ``attempt`` (from 0); raises BadWeights after the last."""
    if attempt + 1 >= ATTEMPTS:
        raise unreachable(what, cause) from None
    await network.pause(0.5 * 2**attempt)


async def get_json(network: Network, buffers: Buffers, url: str, what: str, attempts: int = ATTEMPTS) -> Any:
    """A small JSON document. Raises BadWeights: not there, no JSON, or out of reach."""
    for attempt in range(attempts):
        try:
            response = await network.get(url, cache="no-cache")
            try:
                check_status(response, what)
                data = to_numpy(buffers, await _whole(response, buffers, what)).tobytes()
            finally:
                response.cancel()
        except NetworkError as error:
            if attempt + 1 == attempts:
                raise unreachable(what, error) from None
            await network.pause(0.5 * 2**attempt)
            continue
        if looks_like_html(data):
            raise web_page(what)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise BadWeights(f"{what} at {url!s:.200} is no JSON.", reason="manifest") from None
    raise AssertionError("attempts is at least 1")


async def _whole(response: Response, buffers: Buffers, what: str) -> Buffer:
    data = await Body(response, buffers).read(MAX_JSON_BYTES + 1)
    if buffers.size(data) > MAX_JSON_BYTES:
        raise BadWeights(f"{what} is larger than {MAX_JSON_BYTES} bytes.", reason="manifest")
    return data
