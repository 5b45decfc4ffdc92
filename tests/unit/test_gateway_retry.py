"""The gateway's retry loop: what is tried again, when, how often, and that nothing is once a byte has come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.errors import CloudUnavailable
from pyapp.gateway import retry
from pyapp.gateway.retry import MayPass, Retries, retry_after_seconds
from pyapp.gateway.settings import Settings
from tests.unit.gateway_fakes import DONE_CHUNK, ROLE_CHUNK, Exchange, Script, gateway, openai_chunk, scripted_server
from tests.unit.gateway_world import (
    PATH,
    PROMPT,
    TEXTS,
    WHOLE,
    chunks,
    error_of,
    events_of,
    replies,
    world,
)

NOW = 1_800_000_000.0
QUICK = {"retry_wait_seconds": 0.02}


def in_turn(*answers: Script) -> Script:
    """Each exchange gets the next answer; those beyond the last get the last."""
    left = list(answers)

    async def script(exchange: Exchange) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(exchange)

    return script


async def hang_up(exchange: Exchange) -> None:
    exchange.writer.close()


@pytest.mark.parametrize(
    "failure",
    [replies(429, b"{}"), replies(502, b""), replies(503, b"<html>"), replies(504, b""), hang_up],
    ids=["429", "502", "503", "504", "a connection cut before the head"],
)
async def test_what_may_pass_is_tried_again(failure: Script) -> None:
    async with world(in_turn(failure, failure, chunks(WHOLE)), **QUICK) as it:
        events = events_of(await it.ask())
    assert [event["text"] for event in events[:-1]] == TEXTS
    bodies = [exchange.body for exchange in it.upstream.exchanges]
    assert len(bodies) == 3
    assert len(set(bodies)) == 1


@pytest.mark.parametrize("tries", [1, 2, 4])
async def test_the_last_failure_is_told(tries: int) -> None:
    script = in_turn(*[replies(503, b"")] * (tries - 1), replies(429, b"{}"))
    async with world(script, upstream_tries=tries, **QUICK) as it:
        assert "too many requests" in error_of(await it.ask(), 429, "cloud_unavailable")
    assert len(it.upstream.exchanges) == tries


@pytest.mark.parametrize(
    "answer",
    [
        replies(500, b"oops"),
        replies(400, b"{}"),
        replies(401, b"{}"),
        replies(404, b"{}"),
        replies(200, b"<html>", content_type="text/html"),
        chunks(b'data: {"error":{"message":"x"}}\n\n'),
        chunks(ROLE_CHUNK, end=False),
    ],
    ids=["500", "400", "401", "404", "html", "an error event", "cut after the head"],
)
async def test_what_another_try_would_meet_again_or_pay_for_twice_is_not_tried(answer: Script) -> None:
    async with world(in_turn(answer, chunks(WHOLE)), **QUICK) as it:
        assert (await it.ask()).status_code >= 400
    assert len(it.upstream.exchanges) == 1


@pytest.mark.parametrize("tail", [b'data: {"error":{"code":503,"message":"busy"}}\n\n', b""])
async def test_nothing_is_tried_after_the_first_text(tail: bytes) -> None:
    begun = chunks(openai_chunk("abc"), *([tail] if tail else []), end=bool(tail))
    async with world(in_turn(begun, chunks(WHOLE)), **QUICK) as it:
        text, error = events_of(await it.ask())
    assert text == {"text": "abc"}
    assert error["error"]["code"] == "cloud_unavailable"
    assert len(it.upstream.exchanges) == 1


@pytest.mark.parametrize(
    "form", [lambda: "1", lambda: formatdate(time.time() + 2, usegmt=True)], ids=["seconds", "date"]
)
async def test_retry_after_is_waited_for(form: Callable[[], str]) -> None:
    async def busy(exchange: Exchange) -> None:
        await replies(503, b"", retry_after=form())(exchange)

    async with world(in_turn(busy, chunks(WHOLE))) as it:
        began = time.monotonic()
        events_of(await it.ask())
    assert time.monotonic() - began >= 0.9
    assert len(it.upstream.exchanges) == 2


async def test_waiting_counts_towards_the_time_for_the_first_text() -> None:
    async with world(replies(503, b"", retry_after="3"), first_seconds=0.3) as it:
        began = time.monotonic()
        assert "no text for 0.3 seconds" in error_of(await it.ask(), 504, "cloud_unavailable")
    assert time.monotonic() - began < 2.0


async def test_a_client_that_leaves_in_a_wait_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tandem.gateway")
    async with world(replies(503, b"", retry_after="4")) as it:
        asking = asyncio.create_task(it.ask())
        async with asyncio.timeout(3):
            while not any("next in" in message for message in caplog.messages):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            while not any("outcome=client_left" in message for message in caplog.messages):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert len(it.upstream.exchanges) == 1


async def test_an_upstream_that_comes_back_is_found() -> None:
    async with scripted_server(chunks()) as gone:
        port = int(gone.url.rsplit(":", 1)[1])
    settings = Settings(upstream_url=gone.url, upstream_tries=6, retry_wait_seconds=0.3)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = openai_chunk("back") + openai_chunk(finish="stop") + DONE_CHUNK
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async with gateway(settings) as url, httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post(PATH, json={"prompt": PROMPT}))
        await asyncio.sleep(0.2)
        server = await asyncio.start_server(answer, "127.0.0.1", port)
        async with server:
            assert events_of(await asking)[0] == {"text": "back"}


async def waits(monkeypatch: pytest.MonkeyPatch, retries: Retries, retry_after: str | None = None) -> list[float]:
    """The waits of a loop whose every try fails."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def attempt() -> None:
        details = {} if retry_after is None else {"retry_after": retry_after}
        raise MayPass(CloudUnavailable("no", **details), "503")

    monkeypatch.setattr(retry.anyio, "sleep", sleep)
    reasons: list[str] = []
    with pytest.raises(CloudUnavailable, match="no"):
        await retries.run(attempt, reasons.append)
    assert reasons == ["503"] * len(slept)
    return slept


async def test_waits_grow_with_jitter_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    first = await waits(monkeypatch, Retries(7, 2.0))
    for wait, whole in zip(first, [0.25, 0.5, 1.0, 2.0, 2.0, 2.0], strict=True):
        assert whole / 2 <= wait <= whole
    assert first != await waits(monkeypatch, Retries(7, 2.0))


@pytest.mark.parametrize(("asked", "count"), [("2", 2), ("3", 0), ("0", 2), ("99999999999999999999999", 0)])
async def test_a_server_that_asks_for_too_long_a_wait_is_left(
    monkeypatch: pytest.MonkeyPatch, asked: str, count: int
) -> None:
    slept = await waits(monkeypatch, Retries(3, 2.0), asked)
    assert len(slept) == count
    assert all(int(asked) <= wait <= max(int(asked), 0.5) for wait in slept)
    assert all(wait >= 0.125 for wait in slept)  # "0" is no leave to hammer


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        (" 12 ", 12.0),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        (formatdate(NOW - 30, usegmt=True), 0.0),
        ("Fri, 99 Foo 2026 00:00:00 GMT", None),
    ],
)
def test_forms_of_retry_after(text: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(text, NOW) == seconds


@given(st.text(max_size=40))
def test_any_text_in_the_header_is_survived(text: str) -> None:
    seconds = retry_after_seconds(text, NOW)
    assert seconds is None or 0.0 <= seconds < float("inf")


async def test_other_errors_pass_through_at_once() -> None:
    calls = 0

    async def attempt() -> None:
        nonlocal calls
        calls += 1
        raise CloudUnavailable("final")

    run: Awaitable[None] = Retries(3, 0.01).run(attempt, lambda reason: None)
    with pytest.raises(CloudUnavailable, match="final"):
        await run
    assert calls == 1
