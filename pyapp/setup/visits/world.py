"""The site that scripted visits go to: the real one with the real gateway, and in between the faults of the visit.

``worker.js`` comes with ``data/faults.js`` before it, weights and the gateway's answers as the faults make them.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from pyapp.gateway.app import CLOUD_STREAM_PATH, create_app
from pyapp.gateway.settings import Settings

from ..chunks import cut
from .faults import NONE, Fault, Visit

FAULTS_JS = (Path(__file__).parents[1] / "data" / "faults.js").read_text(encoding="utf-8")
MODEL = "visits"
"""The name of the tiny model on this site."""
CHUNK_BYTES = 1 << 16
REFUSED = "http://127.0.0.1:9/cloud-stream"
"""The address of a gateway that is down: nothing listens on this port, and the site's policy names no other host."""


def gateway_settings(upstream: str) -> Settings:
    """A gateway in front of ``upstream`` whose patience fits a test."""
    return Settings(
        upstream_url=upstream, first_seconds=1.5, idle_seconds=1.0, upstream_tries=2, retry_wait_seconds=0.2
    )


@dataclass
class Exchange:
    """One request to the gateway: when it came, and when the first byte of its answer went out (s since 1970)."""

    arrived: float
    first_byte: float | None = None

    @property
    def waited(self) -> float | None:
        """Seconds that the gateway took to begin its answer."""
        return None if self.first_byte is None else self.first_byte - self.arrived


@dataclass
class World:
    """An ASGI application. ``visit`` says what fails."""

    gateway: Any
    dist: Path
    files: dict[str, bytes]
    """What this site has besides ``dist``, or instead: path -> bytes."""
    device: Fault = NONE
    device_at: int = 0
    cloud: Fault = NONE
    cloud_at: int = 0
    cut_after: int | None = None
    """Bytes of the gateway's answer that get through, whatever the fault."""
    exchanges: list[Exchange] = field(default_factory=list)
    struck: float | None = None
    """When this side's fault first came, in s since 1970."""
    sent: bytes = b""
    """The last answer of the gateway, as it would have been without a fault."""
    _done: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, dist: Path, upstream: str, model: bytes) -> World:
        """The site in ``dist`` with a gateway in front of ``upstream``, and ``model``, a .gguf file, in chunks."""
        index = json.loads((dist / "models" / "index.json").read_bytes())
        index["models"].append({"name": MODEL, "kind": "language"})
        files = {**model_files(model), "/models/index.json": json.dumps(index).encode()}
        return cls(create_app(dist, gateway_settings(upstream)), dist, files)

    def set(self, visit: Visit) -> None:
        """What the next requests meet."""
        self.device, self.device_at = visit.device, visit.device_at
        self.cloud, self.cloud_at = visit.cloud, visit.cloud_at
        self.exchanges.clear()
        self.struck, self.sent = None, b""
        self._done.clear()

    @property
    def script(self) -> dict[str, Any]:
        """The fault as ``data/faults.js`` reads it."""
        return {"kind": self.device.name, "at": self.device_at} if self.device.where == "browser" else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == "/worker.js":
            prelude = f"self.fault = {json.dumps(self.script)};\n{FAULTS_JS}".encode()
            await self._whole(scope, receive, _Prefixed(send, prelude))
        elif path in self.files or (path.endswith(".bin") and self.device.where == "weights"):
            await self._weights(path, receive, send)
        elif path == CLOUD_STREAM_PATH:
            await self._cloud(scope, receive, send)
        else:
            await self.gateway(scope, receive, send)

    def _strike(self) -> None:
        self.struck = self.struck or time.time()

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The site's file itself: not packed, and not left out because the browser has it."""
        unwanted = (b"accept-encoding", b"if-none-match", b"if-modified-since")
        headers = [(name, value) for name, value in scope["headers"] if name not in unwanted]
        await self.gateway({**scope, "headers": headers}, receive, send)

    # -- weights ------------------------------------------------------------------------------------------------------

    async def _weights(self, path: str, receive: Receive, send: Send) -> None:
        body = self.files[path] if path in self.files else (self.dist / path.lstrip("/")).read_bytes()
        fault = self.device.name if path.endswith(".bin") else ""
        if fault.endswith("_once"):
            fault = "" if fault in self._done else fault.removesuffix("_once")
            self._done.add(self.device.name)
        if fault.startswith("weights_"):
            self._strike()
        if fault == "weights_missing":
            await _reply(send, 404, "text/plain", b"Not found")
        elif fault == "weights_html":
            await _reply(send, 200, "text/html", b"<!doctype html><title>Home</title>")
        elif fault in ("weights_cut", "weights_stall"):
            await _reply(send, 200, "application/octet-stream", body, until=len(body) // 2)
            if fault == "weights_stall":
                while (await receive())["type"] != "http.disconnect":
                    pass
        else:
            if fault == "weights_corrupt":
                body = body[:100] + bytes([body[100] ^ 1]) + body[101:]
            kind = "application/json" if path.endswith(".json") else "application/octet-stream"
            await _reply(send, 200, kind, body)

    # -- the gateway --------------------------------------------------------------------------------------------------

    async def _cloud(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(time.time())
        self.exchanges.append(exchange)
        fault = self.cloud.name
        if self.cloud is not NONE and not self.cloud.moments:
            self._strike()
        if fault == "html":
            await _reply(send, 200, "text/html", b"<!doctype html><title>Log in to the network</title>")
        elif fault in ("busy", "broken"):
            error = {"code": "cloud_unavailable", "message": "Too many requests at once; try again in a minute."}
            body = json.dumps({"error": error}).encode() if fault == "busy" else b"Internal Server Error"
            await _reply(send, 429 if fault == "busy" else 500, "application/json", body)
        else:
            await self.gateway(scope, receive, _Gate(self, exchange, send))


@dataclass
class _Prefixed:
    """Sends a file with something before it, which nobody may keep."""

    send: Send
    prelude: bytes

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            unwanted = (b"content-length", b"etag", b"last-modified", b"cache-control")
            headers = [(name, value) for name, value in message["headers"] if name.lower() not in unwanted]
            message = {**message, "headers": [*headers, (b"cache-control", b"no-store")]}
        else:
            message = {**message, "body": self.prelude + message.get("body", b"")}
            self.prelude = b""
        await self.send(message)


@dataclass
class _Gate:
    """Lets the gateway's answer through as far as the fault allows, and notes when it begins."""

    world: World
    exchange: Exchange
    send: Send
    through: int = 0
    over: bool = False

    async def __call__(self, message: Message) -> None:
        if self.over:
            return
        if message["type"] == "http.response.body" and (body := message.get("body", b"")):
            self.exchange.first_byte = self.exchange.first_byte or time.time()
            self.world.sent += body
            room = self._room()
            if room is not None and room < len(body):
                await self.send({"type": "http.response.body", "body": body[:room], "more_body": True})
                await self._break()
                return
            self.through += len(body)
        await self.send(message)

    def _room(self) -> int | None:
        """Bytes that may still pass; None: all there are."""
        world = self.world
        if world.cut_after is not None:
            return max(0, world.cut_after - self.through)
        if world.cloud.name not in ("cut", "closed"):
            return None
        # In the middle of the event after so many pieces.
        events = world.sent.split(b"\n\n")
        if len(events) <= world.cloud_at + 1:
            return None
        return max(0, len(b"\n\n".join(events[: world.cloud_at])) + 5 - self.through)

    async def _break(self) -> None:
        self.world._strike()
        self.over = True
        if self.world.cloud.name == "closed":  # the end of the answer, as if it were whole
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})
        # Else the server closes the connection, once the gateway has come to an end that is not let through.


def model_files(model: bytes) -> dict[str, bytes]:
    """A .gguf file as the site has its models: path -> bytes."""
    files, entries = {}, []
    for entry, piece in cut(BytesIO(model), CHUNK_BYTES):
        entries.append(entry)
        files[f"/models/{MODEL}/{entry['url']}"] = piece
    manifest = {
        "name": MODEL, "title": "A tiny model", "kind": "language", "format": "gguf", "licence": "Apache-2.0",
        "bytes": len(model), "sha256": hashlib.sha256(model).hexdigest(), "chunk_bytes": CHUNK_BYTES, "chunks": entries,
    }  # fmt: skip
    return {**files, f"/models/{MODEL}/manifest.json": json.dumps(manifest).encode()}


async def _reply(send: Send, status: int, kind: str, body: bytes, until: int | None = None) -> None:
    """An answer; with ``until`` only so many bytes of it, and no end."""
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body[:until], "more_body": until is not None})
