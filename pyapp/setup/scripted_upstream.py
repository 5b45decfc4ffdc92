"""An OpenAI-compatible server that writes at a fixed rate: what the bench of the gateway puts behind it.

``python -m pyapp.setup.scripted_upstream --rate 25`` prints its address and serves until it is ended. Every answer has
as many tokens as it was asked for; each says its number and the moment at which it was sent (``mark``), so that whoever
reads it knows how long it was on its way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import suppress

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-store\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
# As much around a token as vLLM sends.
BEFORE = b'data: {"id":"chatcmpl-5d1c0a2f7b","object":"chat.completion.chunk","created":1790000000,"model":"scripted",'
TOKEN = BEFORE + b'"choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}]}\n\n'
FINISH = BEFORE + b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}\n\n'
USAGE = BEFORE + b'"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n'
DONE = b"data: [DONE]\n\n"
PROMPT_TOKENS = 24


def mark(number: int) -> bytes:
    """A token's text: its number, and now on the clock that all processes of a machine share, in ns."""
    return b"@%d:%d;" % (number, time.monotonic_ns())


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP's chunked transfer coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class ScriptedUpstream(asyncio.Protocol):
    """One connection; requests on it are answered one after the other. ``seconds``: between two tokens."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._next: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._next:
            self._next.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = bytes(self._received).partition(b"\r\n\r\n")
        if not blank:
            return
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if len(body) < length:
            return
        self._received.clear()
        assert self._transport
        self._transport.write(HEAD)
        loop = asyncio.get_running_loop()
        self._send(loop, loop.time(), 0, int(json.loads(body)["max_tokens"]))

    def _send(self, loop: asyncio.AbstractEventLoop, due: float, number: int, tokens: int) -> None:
        """The token with that number, and those after it each at its time, however late this one was."""
        assert self._transport
        if number < tokens:
            self._transport.write(chunk(TOKEN % mark(number)))
            due += self._seconds
            self._next = loop.call_at(due, self._send, loop, due, number + 1, tokens)
            return
        self._next = None
        rest = FINISH + USAGE % (PROMPT_TOKENS, tokens) + DONE
        self._transport.write(chunk(rest) + b"0\r\n\r\n")


async def start(rate: float) -> asyncio.Server:
    """Listens on a free port of the loopback; ``rate`` in tokens/s of each answer."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: ScriptedUpstream(1 / rate), "127.0.0.1", 0, backlog=1024)


def address(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _serve(rate: float) -> None:
    async with await start(rate) as server:
        print(address(server), flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, required=True, help="tokens a second of each answer")
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args().rate))
