"""The gateway's cloud stream against a scripted upstream: what is passed on, and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from pyapp.gateway.settings import Settings
from tests.unit.gateway_fakes import (
    DONE_CHUNK,
    Exchange,
    gateway,
    openai_chunk,
    serve_app,
)
from tests.unit.gateway_world import (
    PATH,
    PROMPT,
    TEXTS,
    USAGE,
    WHOLE,
    chunks,
    events_of,
    replies,
    world,
)


@pytest.mark.parametrize("size", [1, 5, 100_000])
async def test_the_answer_in_pieces_of_any_size(size: int) -> None:
    """One byte a piece splits every character of several bytes."""
    async with world(chunks(*(WHOLE[at : at + size] for at in range(0, len(WHOLE), size)))) as it:
        response = await it.ask(max_tokens=3)
    assert events_of(response) == [
        *({"text": text} for text in TEXTS),
        {"usage": {**USAGE, "total_tokens": 12, "finish_reason": "stop"}},
    ]
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"


async def test_what_the_upstream_is_asked() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi \ud83c"}]
    async with world(chunks(WHOLE)) as it:
        body = {"messages": messages, "max_tokens": 5000, "temperature": 0.7, "top_p": 0.9, "seed": 42, "other": 1}
        response = await it.client.post(PATH, content=json.dumps(body))
        events_of(response)
        events_of(await it.ask())
    first, second = it.upstream.exchanges
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer k-123"
    assert first.headers["accept-encoding"] == "identity"
    assert first.json == {
        "messages": [messages[0], {"role": "user", "content": "Hi \ufffd"}],
        "max_tokens": 2048,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 42,
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert second.json["messages"] == [{"role": "user", "content": PROMPT}]
    assert (second.json["max_tokens"], second.json["temperature"], second.json["top_p"]) == (256, 0.0, 1.0)
    assert "seed" not in second.json


async def test_text_is_passed_on_before_the_next_has_come() -> None:
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(openai_chunk("first"))
        await go_on.wait()
        await exchange.chunk(openai_chunk("second") + DONE_CHUNK)
        await exchange.end()

    async with world(script) as it, it.client.stream("POST", PATH, json={"prompt": PROMPT}) as response:
        pieces = response.aiter_text()
        assert await asyncio.wait_for(anext(pieces), 3) == 'data: {"text":"first"}\n\n'
        go_on.set()
        rest = "".join([piece async for piece in pieces])
    assert rest.startswith('data: {"text":"second"}\n\n')


async def test_usage_is_estimated_where_the_upstream_gives_none() -> None:
    async with world(chunks(*map(openai_chunk, TEXTS), openai_chunk(finish="length"), DONE_CHUNK)) as it:
        events = events_of(await it.ask())
    assert events[-1] == {
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "finish_reason": "length",
            "estimated": True,
        }
    }


async def test_an_end_without_the_mark_counts_as_whole_after_a_finish_reason_only() -> None:
    async with world(chunks(openai_chunk("a"), openai_chunk(finish="stop"))) as it:
        assert events_of(await it.ask())[0] == {"text": "a"}
    async with world(chunks(openai_chunk("a"))) as it:
        text, error = events_of(await it.ask())
    assert text == {"text": "a"}
    assert error["error"]["code"] == "cloud_unavailable"
    assert "cut its answer off" in error["error"]["message"]


@pytest.mark.parametrize("tail", [b'data: {"error":"plain"}\n\n', b"data: <html>\n\n", b'data: {"error":"cut"}'])
async def test_text_that_comes_together_with_an_error_is_passed_on_first(tail: bytes) -> None:
    async with world(chunks(openai_chunk("abc") + tail)) as it:
        text, error = events_of(await it.ask())
    assert text == {"text": "abc"}
    assert error["error"]["code"] == "cloud_unavailable"


@pytest.mark.parametrize(
    ("tail", "end", "message"),
    [
        (b'data: {"error":{"code":500,"message":"k-123 exploded"}}\n\n', True, "in the middle of its answer"),
        (b'error: x\ndata: {"error":"plain"}\n\n', True, "in the middle of its answer"),
        (b"data: <html>\n\n", True, "not a chat completion chunk"),
        (b'data: {"choices":[{"delta":{"content":5}}]}\n\n', True, "not a chat completion chunk"),
        (b"data: " + b"x" * 70_000, True, "a line of over 65536 bytes"),
        (b"", False, "broke in the middle"),
    ],
)
async def test_failures_in_mid_stream_are_events(tail: bytes, end: bool, message: str) -> None:
    script = chunks(openai_chunk("abc"), *([tail] if tail else []), end=end)
    async with world(script, max_event_bytes=65536) as it:
        text, error = events_of(await it.ask())
    assert text == {"text": "abc"}
    assert error["error"]["code"] == "cloud_unavailable"
    assert message in error["error"]["message"]
    assert "k-123" not in error["error"]["message"]


async def test_an_idle_stream_ends_with_an_error_event() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(openai_chunk("abc"))
        await exchange.left.wait()
        left.set()

    async with world(script, idle_seconds=0.3) as it:
        text, error = events_of(await it.ask())
        await asyncio.wait_for(left.wait(), 2)
    assert text == {"text": "abc"}
    assert "no text for 0.3 seconds" in error["error"]["message"]


async def test_an_endless_answer_ends_after_the_total_time() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        while not exchange.left.is_set():
            await exchange.chunk(openai_chunk("x"))
            await asyncio.sleep(0.02)

    async with world(script, total_seconds=0.5) as it:
        events = events_of(await it.ask())
    assert events[0] == {"text": "x"}
    assert "not complete after 0.5 seconds" in events[-1]["error"]["message"]


@pytest.mark.parametrize("when", ["before the first text", "in the stream"])
async def test_a_client_that_leaves_closes_the_upstream(when: str, caplog: pytest.LogCaptureFixture) -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        if when == "in the stream":
            await exchange.chunk(openai_chunk("abc"))
        arrived.set()
        await exchange.left.wait()
        left.set()

    caplog.set_level(logging.INFO, "tandem.gateway")
    async with world(script) as it:
        if when == "in the stream":
            async with it.client.stream("POST", PATH, json={"prompt": PROMPT}) as response:
                assert await anext(response.aiter_text()) == 'data: {"text":"abc"}\n\n'
        else:
            asking = asyncio.create_task(it.ask())
            await asyncio.wait_for(arrived.wait(), 3)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(left.wait(), 3)
    assert "outcome=client_left" in caplog.messages[-1]


@pytest.mark.parametrize(
    "rest",
    [b"", b'data: {"choices": [], "usa', b"data: [DO", b'data: {"error": {"message": "no"}}\n\n', b": still here\n\n"],
    ids=["nothing", "half of the figures", "half of the mark", "an error", "a comment"],
)
@pytest.mark.parametrize("how", ["ends", "breaks", "stays"])
async def test_a_text_that_has_finished_is_whole_whatever_follows(
    rest: bytes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyapp.gateway.upstream._FIGURES_SECONDS", 0.2)
    over = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(openai_chunk("All of it.") + openai_chunk(finish="stop") + rest)
        if how == "stays":
            await over.wait()
        if how != "breaks":  # else the connection is closed in the middle of the body
            await exchange.end()

    async with world(script) as it:
        events = events_of(await asyncio.wait_for(it.ask(), 5))
        over.set()
    assert [event for event in events if "error" in event] == []
    assert events[0] == {"text": "All of it."}
    assert events[-1]["usage"]["finish_reason"] == "stop"


async def test_nobody_waits_for_an_upstream_that_keeps_its_answer_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its end mark it says no more, and does not end its body either."""
    monkeypatch.setattr("pyapp.gateway.upstream._DRAIN_SECONDS", 60)
    over = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(WHOLE)
        await over.wait()

    async with world(script) as it:
        events = events_of(await asyncio.wait_for(it.ask(), 5))
        over.set()
    assert events[-1]["usage"]["completion_tokens"] == 3


async def test_connections_to_the_upstream_are_used_again() -> None:
    """The end mark is not the end of the HTTP body; reading on to that end keeps the connection."""
    connections: set[int] = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        connections.add(scope["client"][1])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": WHOLE, "more_body": True})
        await asyncio.sleep(0.05)  # by then the client has its answer
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with (
        serve_app(app, lifespan="off") as upstream,
        gateway(Settings(upstream_url=upstream)) as base,
        httpx.AsyncClient(base_url=base) as client,
    ):
        for _ in range(5):
            events_of(await client.post(PATH, json={"prompt": PROMPT}))
            await asyncio.sleep(0.15)
    assert len(connections) == 1


async def test_many_streams_at_once_stay_apart() -> None:
    async def script(exchange: Exchange) -> None:
        mine = exchange.json["messages"][0]["content"]
        await exchange.stream_head()
        for number in range(5):
            await exchange.chunk(openai_chunk(f"{mine}.{number} "))
        await exchange.chunk(openai_chunk(finish="stop") + DONE_CHUNK)
        await exchange.end()

    async with world(script) as it:
        responses = await asyncio.gather(*(it.ask(prompt=f"p{number}") for number in range(40)))
    for number, response in enumerate(responses):
        text = "".join(event.get("text", "") for event in events_of(response))
        assert text == "".join(f"p{number}.{step} " for step in range(5))


async def test_the_log_tells_the_figures_and_never_the_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tandem.gateway")
    async with world(chunks(WHOLE)) as it:
        await it.ask()
        await it.ask(prompt=["Secret"])
    async with world(replies(400, b'{"error":{"type":"x","message":"Secret garden k-123"}}')) as it:
        await it.ask()
    logged = "\n".join(caplog.messages)
    assert "call=1 outcome=ok status=200" in logged
    assert f"characters={len(''.join(TEXTS))} prompt_tokens=9 completion_tokens=3" in logged
    assert "outcome=bad_argument status=400" in logged
    for secret in ("Secret", "garden", "tasse", "k-123"):
        assert secret not in logged
