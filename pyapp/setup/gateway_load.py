"""Many clients of one event stream server at once, in one process that does little else than read clocks.

They speak HTTP/1.1 by hand over ``asyncio.Protocol``: a client library would cost more than the gateway that is
measured. What they ask for, and how the tokens tell when they were sent: ``scripted_upstream``.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

MARK = re.compile(rb"@(\d+):(\d+);")
LONGEST_MARK = 48
END = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
TOKENS = (128, 384)
"""Of an answer, at least and at most: drawn, so that the streams do not begin and end together."""


@dataclass
class Figures:
    """What all clients of one run saw."""

    streams: int = 0
    """Answers that came whole: every token once, in order, and the end mark."""
    cut: list[str] = field(default_factory=list)
    """Why the others did not."""
    late_us: array[int] = field(default_factory=lambda: array("I"))
    """µs from the upstream's sending of each token to its arrival here."""


class Client(asyncio.Protocol):
    """One connection that asks again as soon as an answer is whole, until it is told to ``stop``."""

    def __init__(self, request: Callable[[int], bytes], figures: Figures, draw: Callable[[], int]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._figures = figures
        self._draw = draw
        self._stopping = False
        self._tail = b""
        self._tokens = 0
        self._next = 0
        self._transport: asyncio.Transport | None = None

    def stop(self) -> None:
        """No further request; the answer in progress is read to its end."""
        self._stopping = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._tail + data
        read = 0
        for found in MARK.finditer(data):
            if int(found[1]) != self._next:
                return self._cut(f"token {found[1].decode()} came in place of {self._next}")
            self._next += 1
            self._figures.late_us.append((now - int(found[2])) // 1000)
            read = found.end()
        if data.endswith(LAST_CHUNK) and END in data[read:]:
            if self._next != self._tokens:
                return self._cut(f"the end came after {self._next} of {self._tokens} tokens")
            self._figures.streams += 1
            return self._finish() if self._stopping else self._ask()
        if self._next == 0 and b"HTTP/1.1" in data and b"HTTP/1.1 200" not in data:
            return self._cut(f"refused: {data[:200].decode(errors='replace')}")
        # A mark may be cut anywhere; the end, which comes once, must be seen whole.
        self._tail = data[read:] if self._next == self._tokens else data[max(read, len(data) - LONGEST_MARK) :]
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._cut(f"the connection ended after {self._next} of {self._tokens} tokens ({error})")

    def _ask(self) -> None:
        assert self._transport
        self._tail, self._next = b"", 0
        self._tokens = self._draw()
        self._transport.write(self._request(self._tokens))

    def _cut(self, why: str) -> None:
        self._figures.cut.append(why)
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        assert self._transport
        self._transport.close()


def requests_to(url: str) -> Callable[[int], bytes]:
    """The bytes that ask ``url`` for an answer of so many tokens."""
    parts = urlsplit(url)

    def request(tokens: int) -> bytes:
        payload: dict[str, Any] = {
            "messages": [{"role": "user", "content": "Describe a red ceramic cup for a shop in three sentences."}],
            "max_tokens": tokens,
            "stream": True,
        }
        body = json.dumps(payload).encode()
        head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body

    return request


async def load(
    url: str, clients: int, seconds: float, spread: float, tokens: tuple[int, int] = TOKENS, seed: int = 1
) -> Figures:
    """``clients`` at once at ``url`` for ``seconds``, started over the first ``spread`` seconds; then each reads the
    answer that it is at to its end. ``tokens``: of an answer, at least and at most."""
    figures, loop = Figures(), asyncio.get_running_loop()
    request, draw = requests_to(url), partial(random.Random(seed).randint, *tokens)
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    running: list[Client] = []
    until = loop.time() + seconds
    for _ in range(clients):
        made = loop.create_connection(lambda: Client(request, figures, draw), host, port)
        running.append((await made)[1])
        await asyncio.sleep(spread / clients)
    await asyncio.sleep(max(0.0, until - loop.time()))
    for client in running:
        client.stop()
    await asyncio.wait([client.done for client in running])
    return figures
