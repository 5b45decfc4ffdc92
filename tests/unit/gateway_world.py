"""A gateway before a scripted upstream, over real sockets on both sides, and what is known of its answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from pyapp.gateway.settings import Settings
from tests.unit.gateway_fakes import (
    DONE_CHUNK,
    ROLE_CHUNK,
    Exchange,
    Script,
    Scripted,
    gateway,
    openai_chunk,
    scripted_server,
)

PATH = "/api/ai/cloud-stream"
PROMPT = "Secret garden mug"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
TEXTS = ["Une tasse ", "émaillée 🍵", " fin"]
WHOLE = (
    ROLE_CHUNK
    + b"".join(map(openai_chunk, TEXTS))
    + openai_chunk(finish="stop")
    + openai_chunk(usage=USAGE)
    + DONE_CHUNK
)


@dataclass
class World:
    """A gateway, its upstream, and a client."""

    client: httpx.AsyncClient
    upstream: Scripted

    async def ask(self, **fields: Any) -> httpx.Response:
        return await self.client.post(PATH, json={"prompt": PROMPT, **fields})


@asynccontextmanager
async def world(script: Script, **settings: Any) -> AsyncIterator[World]:
    async with scripted_server(script) as upstream:
        given = Settings(**{"upstream_url": upstream.url, "upstream_key": "k-123", "upstream_model": "m", **settings})
        async with gateway(given) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
            yield World(client, upstream)


def events_of(response: httpx.Response) -> list[Any]:
    """The payloads of a whole stream; its end mark must be there, last, once."""
    assert response.status_code == 200, response.text
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def error_of(response: httpx.Response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    payload = response.json()
    assert set(payload) == {"error"}
    assert set(payload["error"]) == {"code", "message"}
    assert payload["error"]["code"] == code
    message: str = payload["error"]["message"]
    assert "k-123" not in message
    return message


def chunks(*parts: bytes, end: bool = True) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        for part in parts:
            await exchange.chunk(part)
        if end:
            await exchange.end()

    return script


def replies(status: int, body: bytes, **headers: str) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.head(status, content_length=str(len(body)), **headers)
        await exchange.write(body)

    return script
