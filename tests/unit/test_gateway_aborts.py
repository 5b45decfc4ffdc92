"""Whatever ends a call, and at whatever moment: its place is free, its tokens are settled, its upstream is closed."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.errors import CloudUnavailable
from pyapp.gateway.access import Access
from pyapp.gateway.config import Config
from pyapp.gateway.endpoint import CloudStreamEndpoint
from pyapp.gateway.limits import Caps
from pyapp.gateway.metrics import Metrics
from pyapp.gateway.settings import Settings
from pyapp.gateway.token_endpoint import TokenEndpoint
from pyapp.routing.wire import CloudEvent, Text, Usage, encode_done
from tests.unit.gateway_fakes import Exchange, gateway, openai_chunk, scripted_server
from tests.unit.gateway_world import PATH

BODY = json.dumps({"prompt": "abcdefgh", "max_tokens": 10}).encode()
MOST_TOKENS = 12  # 2 of the prompt by estimate, 10 of the answer
SCOPE = {"type": "http", "method": "POST", "path": PATH, "query_string": b"", "headers": [], "client": ("8.8.8.8", 1)}


class FakeUpstream:
    """Gives two texts and a usage, with a turn of the loop before each, or fails at ``fails_at`` of these steps."""

    def __init__(self, fails_at: int) -> None:
        self.open = 0
        self._left = fails_at

    async def _step(self) -> None:
        await asyncio.sleep(0)
        self._left -= 1
        if self._left == 0:
            raise CloudUnavailable("The upstream failed.", status=502)

    async def target(self) -> None:
        await self._step()

    async def stream(self, request: Any, retried: Callable[[str], None]) -> AsyncGenerator[list[CloudEvent], None]:
        self.open += 1
        try:
            for event in (Text("a"), Text("b"), Usage(3, 2, "stop")):
                await self._step()
                yield [event]
        finally:
            self.open -= 1
            with anyio.CancelScope(shield=True):  # as a connection may take a turn of the loop to close
                await asyncio.sleep(0)


class Exchanged:
    """The server's side of one call: the body in ``pieces``; ``sends`` messages are taken, the next one fails."""

    def __init__(self, pieces: int, sends: int) -> None:
        self.left = asyncio.Event()
        self.sent = b""
        size = -(-len(BODY) // pieces)
        self._pieces = [BODY[at : at + size] for at in range(0, len(BODY), size)]
        self._sends = sends

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self._pieces and not self.left.is_set():
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent += message.get("body", b"")
        await asyncio.sleep(0)
        self._sends -= 1
        if self._sends < 0:
            raise OSError("gone")
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.left.set()


@given(
    moment=st.integers(0, 40),
    how=st.sampled_from(["leaves", "is cancelled", "runs on"]),
    pieces=st.integers(1, 3),
    fails_at=st.sampled_from([0, 0, 1, 2, 3, 4]),
    sends=st.sampled_from([0, 1, 2, 3, 99, 99, 99]),
)
def test_a_place_is_given_back_at_any_moment(moment: int, how: str, pieces: int, fails_at: int, sends: int) -> None:
    async def run() -> None:
        access = Access(Config(client=Caps(concurrent=1, tokens_per_day=100)), ())
        upstream, metrics = FakeUpstream(fails_at), Metrics(lambda: True)
        endpoint = CloudStreamEndpoint(Settings(embedded="off"), upstream, access, metrics)  # type: ignore[arg-type]
        exchange = Exchanged(pieces, sends)
        call = asyncio.ensure_future(endpoint(dict(SCOPE), exchange.receive, exchange.send))
        for _ in range(moment):
            await asyncio.sleep(0)
        if how == "leaves":
            exchange.left.set()
        elif how == "is cancelled":
            call.cancel()
        with suppress(asyncio.CancelledError):
            async with asyncio.timeout(2):
                try:
                    await call
                except* OSError:
                    assert sends < 99  # the connection that fails is the only error that may come out
        assert call.done()
        assert upstream.open == 0
        page = bytes(metrics.page("").body)
        assert b"tandem_gateway_streams 0.0" in page
        assert (b'outcome="ok"' in page) == (encode_done() in exchange.sent and b"error" not in exchange.sent)
        account = access._clients.of("8.8.8.8")
        assert account.streams == 0
        assert 0 <= account._tokens <= MOST_TOKENS

    asyncio.run(run())


@given(moment=st.integers(0, 12), pieces=st.integers(1, 3), cancelled=st.booleans())
def test_a_request_for_a_token_gives_its_place_back(moment: int, pieces: int, cancelled: bool) -> None:
    async def run() -> None:
        access = Access(Config(client=Caps(concurrent=1)), ())
        exchange = Exchanged(pieces, 99)
        call = asyncio.ensure_future(TokenEndpoint(access, 1.0)(dict(SCOPE), exchange.receive, exchange.send))
        for _ in range(moment):
            await asyncio.sleep(0)
        if cancelled:
            call.cancel()
        else:
            exchange.left.set()
        with suppress(asyncio.CancelledError):
            await call
        assert access._clients.of("8.8.8.8").streams == 0

    asyncio.run(run())


REQUEST = b"POST %s HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%s" % (PATH.encode(), len(BODY), BODY)


@pytest.mark.parametrize("end", ["closed", "reset", "half a body"])
async def test_over_real_connections_the_upstream_is_closed_at_once(
    end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Aborts before the head, in a wait between two tries, and in the stream; then one answer goes through."""
    (config := tmp_path / "gateway.toml").write_text("[client]\nconcurrent = 1")
    at_work: set[int] = set()
    asked = 0
    draw = random.Random(4)

    async def script(exchange: Exchange) -> None:
        nonlocal asked
        asked += 1
        at_work.add(number := asked)
        try:
            await asyncio.sleep(0.01)
            if number % 3 == 1:
                await exchange.head(503, content_length="0", retry_after="0")
                return
            await exchange.stream_head()
            while not exchange.left.is_set():
                await exchange.chunk(openai_chunk("abc"))
                await asyncio.sleep(0.005)
        finally:
            at_work.discard(number)

    def outcomes() -> list[str]:
        return [message.split("outcome=")[1].split()[0] for message in caplog.messages if "outcome=" in message]

    caplog.set_level(logging.INFO, "tandem.gateway")
    async with scripted_server(script) as upstream, gateway(Settings(upstream_url=upstream.url, config=config)) as url:
        for number in range(1, 13):
            _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
            writer.write(REQUEST if end != "half a body" else REQUEST[:-5])
            await writer.drain()
            await asyncio.sleep(draw.uniform(0.0, 0.3))
            if end == "reset":
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
            async with asyncio.timeout(2):
                while len(outcomes()) < number or at_work:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        assert set(outcomes()) == {"client_left"}
        assert (asked == 0) == (end == "half a body")
        async with httpx.AsyncClient(base_url=url) as client, client.stream("POST", PATH, content=BODY) as response:
            assert response.status_code == 200
