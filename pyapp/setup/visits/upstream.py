"""A scripted OpenAI-compatible server that knows the text: it goes on with it wherever the request says it stopped."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

SLOW_SECONDS = 0.7
"""Before the first piece of a slow answer."""
SILENT_SECONDS = 30.0
"""Longer than the gateway waits."""
LAST_WORDS = 30
"""Characters, at least, that are repeated by an upstream that begins with the last words."""


class _Endless(StreamingResponse):
    """Leaves the end out: the server then closes the connection in the middle of the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_but_the_end(message: Message) -> None:
            if message.get("more_body", True):
                await send(message)

        await super().__call__(scope, receive, send_but_the_end)


@dataclass
class Upstream:
    """``text`` is the whole answer; ``fault`` and ``at`` as in ``faults``; ``style``: how it goes on."""

    text: str = ""
    fault: str = "none"
    at: int = 0
    style: str = "exact"
    sizes: tuple[int, ...] = (1, 2, 3)
    """Characters of its pieces, in turn."""
    asked: list[str] = field(default_factory=list)
    """The trailing assistant message of each request; empty where there was none."""
    struck: float | None = None
    """When the fault came in the middle of an answer, in s since 1970."""
    strange: list[str] = field(default_factory=list)
    """Those that are no beginning of the text: there is nothing right to go on with."""

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])

    def set(self, fault: str = "none", at: int = 0, style: str = "exact") -> None:
        """What the next requests meet."""
        self.fault, self.at, self.style = fault, at, style
        self.struck = None
        self.asked.clear()
        self.strange.clear()

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        last = body["messages"][-1]
        shown = last["content"] if last["role"] == "assistant" else ""
        self.asked.append(shown)
        if not self.text.startswith(shown):
            self.strange.append(shown)
        if self.fault == "upstream_busy" or (self.fault == "upstream_busy_once" and len(self.asked) == 1):
            return JSONResponse({"error": {"message": "Too many requests."}}, 429)
        if self.fault == "upstream_broken":
            return JSONResponse({"error": {"message": "Something broke."}}, 500)
        kind = _Endless if self.fault == "upstream_cut" else StreamingResponse
        return kind(self._stream(shown, body["max_tokens"]), media_type="text/event-stream")

    async def _stream(self, shown: str, tokens: int) -> AsyncIterator[bytes]:
        if self.fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        if self.fault == "silent":
            await asyncio.sleep(SILENT_SECONDS)
        for number, piece in enumerate(pieces(continued(self.text, shown, self.style), self.sizes)):
            if number == self.at and self.fault in ("error_inside", "upstream_cut", "upstream_stalls"):
                async for chunk in self._fail():
                    yield chunk
                return
            yield _chunk({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
        yield _chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        yield _chunk({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}})
        yield b"data: [DONE]\n\n"

    async def _fail(self) -> AsyncIterator[bytes]:
        self.struck = self.struck or time.time()
        if self.fault == "error_inside":
            yield _chunk({"error": {"message": "the engine ran out of blocks", "code": 500}})
        elif self.fault == "upstream_stalls":
            await asyncio.sleep(SILENT_SECONDS)


def continued(text: str, shown: str, style: str) -> str:
    """What an upstream of this ``style`` answers when ``shown`` has been shown of ``text``."""
    if style == "restarted":
        return text
    start = len(shown)
    if style == "last_words" and shown:
        start = max(0, shown.rfind(" ", 0, max(0, len(shown) - LAST_WORDS)))
    return text[start:]


def pieces(text: str, sizes: Sequence[int]) -> list[str]:
    """``text`` cut into pieces of these ``sizes``, in turn."""
    cut: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(cut) % len(sizes)]
        cut.append(text[at : at + size])
        at += size
    return cut


def _chunk(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"object": "chat.completion.chunk", **payload}, ensure_ascii=False).encode() + b"\n\n"
