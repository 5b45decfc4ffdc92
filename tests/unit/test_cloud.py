"""The cloud stream against a scripted gateway: the answer whole, every failure one sentence, aborts that arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from pyapp.errors import BadArgument, CloudUnavailable, ContextFull, TandemError
from pyapp.routing.cloud import CloudStream
from pyapp.routing.httpx_transport import HttpxTransport
from pyapp.routing.wire import (
    CloudEvent,
    SurrogateJoiner,
    Text,
    Usage,
    clean_text,
    encode_done,
    encode_event,
    parse_event,
)
from tests.unit.gateway_fakes import Exchange, Script, Scripted, scripted_server
from tests.unit.gateway_world import chunks, replies

REQUEST = {"messages": [{"role": "user", "content": "Beschreibe die Tasse 🍵"}], "max_tokens": 8}
TEXTS = ["Une ", "tasse ", "émaillée", " 红色", "的🍵", "\u2028", "\r\n", " fin"]
USAGE = Usage(11, 8, "length")
WHOLE = b"".join(encode_event(Text(text)) for text in TEXTS) + encode_event(USAGE) + encode_done()


@asynccontextmanager
async def cloud(script: Script, **seconds: float) -> AsyncIterator[tuple[CloudStream, Scripted]]:
    transport = HttpxTransport(connect_seconds=2.0)
    async with scripted_server(script) as server:
        try:
            yield CloudStream(f"{server.url}/api/ai/cloud-stream", transport, **seconds), server
        finally:
            await transport.aclose()


async def collect(stream: CloudStream) -> list[CloudEvent]:
    async with aclosing(stream.stream(REQUEST)) as events:
        return [event async for event in events]


async def attempt(stream: CloudStream) -> tuple[TandemError, list[CloudEvent]]:
    """The error that a stream must end with, and the events before it."""
    events: list[CloudEvent] = []

    async def run() -> None:
        async for event in stream.stream(REQUEST):
            events.append(event)  # noqa: PERF401 (a comprehension would lose what came before the error)

    with pytest.raises(TandemError) as caught:
        await run()
    assert caught.value.details["characters"] == sum(len(event.text) for event in events if isinstance(event, Text))
    return caught.value, events


async def failure(script: Script, **seconds: float) -> tuple[TandemError, list[CloudEvent]]:
    async with cloud(script, **seconds) as (stream, _):
        return await attempt(stream)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
async def test_the_whole_answer_comes_through_in_pieces_of_any_size(size: int) -> None:
    parts = [WHOLE[at : at + size] for at in range(0, len(WHOLE), size)]
    async with cloud(chunks(*parts)) as (stream, server):
        assert await collect(stream) == [*map(Text, TEXTS), USAGE]
    (exchange,) = server.exchanges
    assert exchange.json == REQUEST
    assert exchange.headers["content-type"] == "application/json"
    assert exchange.headers["accept"] == "text/event-stream"


async def test_comments_unknown_events_and_later_bytes_do_no_harm() -> None:
    noise = (
        b": ping\n\n"
        + b'data: {"notice":"hi"}\n\n'
        + b'event: x\nid: 3\ndata: {"text":"a"}\n\n'
        + b'data: {"text":""}\n\n'
    )
    async with cloud(chunks(noise + encode_done() + b'data: {"text":"late"}\n\n')) as (stream, _):
        assert await collect(stream) == [Text("a")]


@pytest.mark.parametrize("mark", [b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data: [DONE] \r\r", b"data: [DONE]"])
async def test_the_end_mark_in_all_its_spellings(mark: bytes) -> None:
    async with cloud(chunks(encode_event(Text("a")) + mark)) as (stream, _):
        assert await collect(stream) == [Text("a")]


async def test_a_pair_escaped_apart_is_joined() -> None:
    stream_bytes = (
        b'data: {"text":"x\\ud83c"}\n\ndata: {"text":"\\udf75y"}\n\ndata: {"text":"\\ud83c"}\n\ndata: [DONE]\n\n'
    )
    async with cloud(chunks(stream_bytes)) as (stream, _):
        assert await collect(stream) == [Text("x"), Text("🍵y"), Text("\ufffd")]


async def test_a_cut_at_every_byte_is_reported_and_loses_nothing_before_it() -> None:
    whole_events = [WHOLE[: end + 2] for end in range(len(WHOLE)) if WHOLE[end : end + 2] == b"\n\n"]
    last = len(WHOLE) - 2  # from here on the end mark is there
    position = 0

    async def script(exchange: Exchange) -> None:
        await chunks(WHOLE[:position])(exchange) if position else await chunks()(exchange)

    async with cloud(script) as (stream, _):
        for position in range(last):
            error, events = await attempt(stream)
            assert events == [*map(Text, TEXTS), USAGE][: sum(len(part) <= position for part in whole_events)]
            assert isinstance(error, CloudUnavailable)
            assert error.details["kind"] == "cut"
            assert "cut off before its end" in error.message


async def test_a_connection_reset_in_the_stream() -> None:
    error, events = await failure(chunks(encode_event(Text("abc")), end=False))
    assert isinstance(error, CloudUnavailable)
    assert error.details["kind"] == "network"
    assert events == [Text("abc")]


async def test_nobody_listens() -> None:
    async with scripted_server(chunks()) as server:
        url = server.url
    transport = HttpxTransport()
    with pytest.raises(CloudUnavailable, match="cannot be reached") as caught:
        await collect(CloudStream(url, transport))
    await transport.aclose()
    assert caught.value.details == {"kind": "network", "characters": 0}


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, {"error": {"code": "bad_argument", "message": "top_p is 3."}}, BadArgument, "top_p is 3."),
        (400, {"error": {"code": "context_full", "message": "Too long."}}, ContextFull, "Too long."),
        (429, {"error": {"code": "cloud_unavailable", "message": "Later."}}, CloudUnavailable, "Later."),
        (502, {"error": {"code": "device_lost", "message": "Odd."}}, CloudUnavailable, "Odd."),
        (500, {"error": "plain"}, CloudUnavailable, "plain"),
        (500, {"error": {}}, CloudUnavailable, "HTTP 500"),
        (503, ["x"], CloudUnavailable, "HTTP 503"),
    ],
)
async def test_refusals(status: int, body: Any, kind: type[TandemError], message: str) -> None:
    script = replies(status, json.dumps(body).encode(), content_type="application/json", retry_after="7")
    error, _ = await failure(script)
    assert type(error) is kind
    assert message in error.message
    assert (error.details["kind"], error.details["status"], error.details["retry_after"]) == ("http", status, "7")


@pytest.mark.parametrize("status", [404, 500])
async def test_an_html_error_page(status: int) -> None:
    error, _ = await failure(replies(status, b"<html>oops</html>", content_type="text/html"))
    assert isinstance(error, CloudUnavailable)
    assert f"HTTP {status}" in error.message


async def test_an_html_page_with_status_200_is_no_answer() -> None:
    error, _ = await failure(replies(200, b"<html>data: [DONE]\n\n</html>", content_type="text/html; charset=utf-8"))
    assert isinstance(error, CloudUnavailable)
    assert error.details["kind"] == "not_a_stream"
    assert "text/html instead of an event stream" in error.message


@pytest.mark.parametrize(
    ("data", "kind", "in_message"),
    [
        (b'{"error":{"code":"cloud_unavailable","message":"The model fell over."}}', "in_band", "The model fell over."),
        (b'{"error":"short"}', "in_band", "short"),
        (b"<html>", "bad_event", "not a JSON object"),
        (b"[1]", "bad_event", "not a JSON object"),
        (b"[" * 100_000, "bad_event", "not a JSON object"),
        (b"x" * (1 << 21), "endless", "a line of over 1048576 bytes"),
    ],
)
async def test_failures_inside_the_stream(data: bytes, kind: str, in_message: str) -> None:
    error, events = await failure(chunks(encode_event(Text("abc")) + b"data: " + data + b"\n\n"))
    assert isinstance(error, CloudUnavailable)
    assert error.details["kind"] == kind
    assert in_message in error.message
    assert events == [Text("abc")]


@pytest.mark.parametrize("sent", [b"", encode_event(Text("abc"))])
async def test_silence_ends_in_a_timeout_and_the_connection_is_closed(sent: bytes) -> None:
    gone = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        if sent:
            await exchange.chunk(sent)
        await exchange.left.wait()
        gone.set()

    async with cloud(script, first_seconds=0.2, idle_seconds=0.2) as (stream, _):
        error, _events = await attempt(stream)
        await asyncio.wait_for(gone.wait(), 2)
    assert isinstance(error, CloudUnavailable)
    assert error.details["kind"] == "timeout"
    assert "sent nothing for 0.2 seconds" in error.message


@pytest.mark.parametrize("how", ["leave the loop", "cancel the task", "cancel before the head"])
async def test_an_abort_reaches_the_server(how: str) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        arrived.set()
        if how != "cancel before the head":
            await exchange.stream_head()
            await exchange.chunk(encode_event(Text("abc")))
        await exchange.left.wait()
        gone.set()

    async with cloud(script) as (stream, _):
        if how == "leave the loop":
            async with aclosing(stream.stream(REQUEST)) as events:
                assert await anext(events) == Text("abc")
        else:
            task = asyncio.create_task(collect(stream))
            await asyncio.wait_for(arrived.wait(), 2)
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.wait_for(gone.wait(), 2)


@pytest.mark.parametrize("event", [Text('a\u2028\n"é🍵'), Usage(3, 4), Usage(3, 4, "stop", True)])
def test_the_wire_reads_what_it_writes(event: CloudEvent) -> None:
    encoded = encode_event(event).decode()
    assert encoded.startswith("data: ")
    assert encoded.endswith("\n\n")
    assert parse_event(encoded[6:-2]) == event


def test_usage_is_read_in_either_spelling_and_nonsense_counts_as_none() -> None:
    assert parse_event('{"usage":{"promptTokens":3,"completionTokens":4,"finish_reason":"odd"}}') == Usage(3, 4)
    assert parse_event('{"usage":{"prompt_tokens":-3,"completion_tokens":true}}') == Usage(0, 0)


def test_surrogates() -> None:
    joiner = SurrogateJoiner()
    assert [joiner.push("a\ud83c"), joiner.push("\udf75"), joiner.push("\udf75\ud83c"), joiner.push("b")] == [
        "a",
        "🍵",
        "\ufffd",
        "\ufffdb",
    ]
    assert joiner.flush() == ""
    assert clean_text("ok 🍵 \ud83c\udf75 \udc00") == "ok 🍵 🍵 \ufffd"
