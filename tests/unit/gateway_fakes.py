"""Servers for the gateway's tests: a scripted upstream that controls every byte, and the gateway under uvicorn."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import uvicorn

from pyapp.gateway.app import create_app
from pyapp.gateway.settings import Settings


@dataclass
class Exchange:
    """One request to a scripted server, and the means to answer it."""

    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the other side has closed its connection."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def head(self, status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Status", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def stream_head(self) -> None:
        await self.head(200, content_type="text/event-stream", transfer_encoding="chunked")

    async def chunk(self, data: bytes) -> None:
        """One HTTP chunk, in a TCP segment of its own as far as that can be arranged."""
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))
        await asyncio.sleep(0.002)

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")


Script = Callable[[Exchange], Awaitable[None]]


@dataclass
class Scripted:
    url: str
    exchanges: list[Exchange]


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[Scripted]:
    """An HTTP/1.1 server that reads one request a connection and lets ``script`` answer it."""
    exchanges: list[Exchange] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            exchange = Exchange(head[0].split()[1], headers, body, reader, writer)
            exchanges.append(exchange)
            watcher = asyncio.create_task(_watch(exchange))
            try:
                await script(exchange)
            finally:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Scripted(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", exchanges)
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _watch(exchange: Exchange) -> None:
    with suppress(OSError):
        while await exchange.reader.read(1024):
            pass
    exchange.left.set()


@asynccontextmanager
async def serve_app(app: Any, lifespan: Literal["on", "off"] = "on") -> AsyncIterator[str]:
    """An ASGI application under a real uvicorn on a free port; gives its base URL."""
    started = asyncio.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                lifespan=lifespan,
                timeout_graceful_shutdown=1,
            )
        )
        task = asyncio.create_task(server.serve([listener]))
        async with asyncio.timeout(5):
            await started.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def gateway(settings: Settings, site: Path | None = None) -> AsyncIterator[str]:
    """The real application under a real server; gives its base URL."""
    async with serve_app(create_app(site, settings)) as url:
        yield url


def openai_chunk(text: str | None = None, finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    """One chunk of a streamed chat completion as llama.cpp writes it."""
    payload: dict[str, Any] = {"object": "chat.completion.chunk", "choices": []}
    if text is not None or finish:
        delta = {} if text is None else {"content": text}
        payload["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}]
    if usage:
        payload["usage"] = usage
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


ROLE_CHUNK = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}\n\n'
DONE_CHUNK = b"data: [DONE]\n\n"
