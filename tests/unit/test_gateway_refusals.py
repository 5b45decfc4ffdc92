"""What the gateway answers where no stream begins: a status and one clear sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from pyapp.gateway.settings import Settings
from tests.unit.gateway_fakes import (
    ROLE_CHUNK,
    Exchange,
    Script,
    gateway,
    scripted_server,
)
from tests.unit.gateway_world import (
    PATH,
    PROMPT,
    WHOLE,
    chunks,
    error_of,
    replies,
    world,
)


@pytest.mark.parametrize(
    ("script", "status", "code", "message"),
    [
        (replies(429, b"{}", retry_after="17"), 429, "cloud_unavailable", "too many requests"),
        (replies(500, b"oops"), 502, "cloud_unavailable", "HTTP 500"),
        (replies(503, b"", retry_after="17"), 502, "cloud_unavailable", "HTTP 503"),
        (replies(401, b'{"error":{"message":"bad key k-123"}}'), 502, "cloud_unavailable", "TANDEM_UPSTREAM_KEY"),
        (replies(404, b"{}"), 502, "cloud_unavailable", "does not know"),
        (replies(422, b'{"error":[1]}'), 502, "cloud_unavailable", "HTTP 422"),
        (replies(301, b"", location="http://127.0.0.1:1/"), 502, "cloud_unavailable", "HTTP 301"),
        (replies(400, b'{"error":{"type":"exceed_context_size_error"}}'), 400, "context_full", "longer than"),
        (replies(400, b'{"error":{"code":"context_length_exceeded"}}'), 400, "context_full", "longer than"),
        (replies(400, b'{"message":"maximum context length is 8"}'), 400, "context_full", "longer than"),
        (replies(200, b"<html>", content_type="text/html"), 502, "cloud_unavailable", "text/html instead"),
        (replies(200, b"{}", content_type="application/json"), 502, "cloud_unavailable", "application/json instead"),
        (chunks(b'data: {"error":{"message":"x"}}\n\n'), 502, "cloud_unavailable", "reported an error"),
        (chunks(b'data: {"error":{"message":"x"}}'), 502, "cloud_unavailable", "reported an error"),
        (chunks(ROLE_CHUNK), 502, "cloud_unavailable", "cut its answer off"),
    ],
)
async def test_failures_before_the_stream_are_statuses(script: Script, status: int, code: str, message: str) -> None:
    async with world(script) as it:
        response = await it.ask()
    assert message in error_of(response, status, code)
    assert len(it.upstream.exchanges) == 1  # the gateway does not hide a failure behind tries of its own
    if b"17" in (value for _, value in response.headers.raw):
        assert response.headers["retry-after"] == "17"


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_passed_on(status: int) -> None:
    async with world(replies(status, b"{}", retry_after="17")) as it:
        assert (await it.ask()).headers["retry-after"] == "17"


async def test_no_upstream_there() -> None:
    async with scripted_server(chunks()) as gone:
        url = gone.url
    async with gateway(Settings(upstream_url=url)) as base, httpx.AsyncClient(base_url=base) as client:
        message = error_of(await client.post(PATH, json={"prompt": PROMPT}), 502, "cloud_unavailable")
    assert "cannot be reached" in message
    assert url.removeprefix("http://") not in message


@pytest.mark.parametrize("sends", ["nothing", "a head", "a head, pings and roles"])
async def test_a_slow_first_text_is_a_504(sends: str) -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        if sends != "nothing":
            await exchange.stream_head()
        while not exchange.left.is_set():
            if "pings" in sends:
                await exchange.chunk(b": ping\n\n" + ROLE_CHUNK)
            await asyncio.sleep(0.03)
        left.set()

    async with world(script, first_seconds=0.3) as it:
        message = error_of(await it.ask(), 504, "cloud_unavailable")
        await asyncio.wait_for(left.wait(), 2)
    assert "no text for 0.3 seconds" in message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"prompt":', "not valid JSON"),
        (b'{"prompt":"x","temperature":NaN}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'"x"', "must be a JSON object"),
        (b'{"prompt":"\xff"}', "not UTF-8"),
        (b'{"top_p":1}', "either messages or prompt"),
    ],
)
async def test_bad_bodies_get_a_clear_400_and_never_reach_the_upstream(body: bytes, message: str) -> None:
    async with world(chunks(WHOLE)) as it:
        response = await it.client.post(PATH, content=body)
    assert message in error_of(response, 400, "bad_argument")
    assert it.upstream.exchanges == []


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_is_too_big(declared: bool) -> None:
    body = json.dumps({"prompt": "x" * 5000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 100):
            yield body[at : at + 100]

    async with world(chunks(WHOLE), max_body_bytes=4000) as it:
        response = await it.client.post(PATH, content=body if declared else pieces())
    assert "larger than 4000 bytes" in error_of(response, 413, "bad_argument")
    assert it.upstream.exchanges == []


async def test_a_body_that_does_not_arrive() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b'{"prompt":'
        await asyncio.sleep(1.0)
        yield b'"x"}'

    async with world(chunks(WHOLE), body_seconds=0.2) as it:
        response = await it.client.post(PATH, content=slow())
    assert "did not arrive within 0.2 seconds" in error_of(response, 408, "bad_argument")


async def test_other_methods_and_addresses() -> None:
    async with world(chunks(WHOLE)) as it:
        response = await it.client.get(PATH)
        assert "POST only" in error_of(response, 405, "bad_argument")
        assert response.headers["allow"] == "POST"
        error_of(await it.client.post("/api/other"), 404, "bad_argument")
        health = await it.client.get("/healthz")
    assert health.json() == {"status": "ok", "upstream": "external", "ready": True}
