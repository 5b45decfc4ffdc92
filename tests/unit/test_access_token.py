"""The shop's token on the client's side: asked for once, kept as long as it is good, replaced once when refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.errors import CloudUnavailable
from pyapp.gateway.settings import Settings
from pyapp.routing.access_token import Shop, ShopTransport, TokenSource
from pyapp.routing.cloud import CloudStream
from pyapp.routing.gateways import Gateways
from pyapp.routing.httpx_transport import HttpxTransport
from pyapp.routing.wire import Text, Usage, encode_done, encode_event
from tests.unit.door_fakes import World
from tests.unit.gateway_fakes import gateway as gateway_at
from tests.unit.gateway_fakes import scripted_server
from tests.unit.gateway_world import TEXTS, WHOLE, chunks
from tests.unit.test_gateway_access import ASK

STREAM = "https://tandem.example/api/ai/cloud-stream"
TOKEN = "https://tandem.example/api/ai/token"
TELEMETRY = "https://tandem.example/api/ai/telemetry"
SHOP = Shop("pk_rosa_5f2c9e", "https://shop.rosa.example")
ANSWER = encode_event(Text("abc")) + encode_event(Usage(3, 1, "stop")) + encode_done()


@dataclass
class FakeReply:
    status: int
    body: bytes
    headers: dict[str, str]
    closed: bool = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self.body

    async def close(self) -> None:
        self.closed = True


@dataclass
class FakeGateway:
    """``Transport``: gives tokens t1, t2, … and takes those in ``good``."""

    good: Callable[[str], bool] = lambda token: True
    seconds: float = 300
    token_reply: FakeReply | None = None
    gate: asyncio.Event | None = None
    now: float = 1000.0
    posts: list[tuple[str, Any, Mapping[str, str]]] = field(default_factory=list)
    replies: list[FakeReply] = field(default_factory=list)
    given: int = 0

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> FakeReply:
        self.posts.append((url, json.loads(body), headers))
        reply = await self._token() if url == TOKEN else self._stream(headers.get("authorization", ""))
        self.replies.append(reply)
        return reply

    async def _token(self) -> FakeReply:
        if self.gate is not None:
            await self.gate.wait()
        if self.token_reply is not None:
            return self.token_reply
        self.given += 1
        return _json(200, {"token": f"t{self.given}", "expires_in": self.seconds})

    def _stream(self, authorization: str) -> FakeReply:
        token = authorization.removeprefix("Bearer ")
        if token == authorization or not self.good(token):
            return _json(401, {"error": {"code": "cloud_unavailable", "message": "The access token is not valid."}})
        return FakeReply(200, ANSWER, {"content-type": "text/event-stream"})

    @property
    def tokens_asked(self) -> int:
        return sum(url == TOKEN for url, _, _ in self.posts)

    def source(self, **more: Any) -> TokenSource:
        return TokenSource(STREAM, SHOP, self, clock=lambda: self.now, **more)


def _json(status: int, payload: Any, **headers: str) -> FakeReply:
    return FakeReply(status, json.dumps(payload).encode(), {"content-type": "application/json", **headers})


async def failure(source: TokenSource) -> CloudUnavailable:
    with pytest.raises(CloudUnavailable) as caught:
        await source.token()
    return caught.value


async def test_a_token_is_asked_for_beside_the_stream_and_goes_with_each_request() -> None:
    gateway = FakeGateway()
    transport = ShopTransport(gateway, gateway.source())
    for _ in range(2):
        reply = await transport.post(STREAM, b'{"prompt": "x"}', {"accept": "text/event-stream"})
        assert reply.status == 200
    (token_url, claim, headers), *streams = gateway.posts
    assert (token_url, claim) == (TOKEN, {"site": SHOP.key, "ancestor": SHOP.ancestor})
    assert "authorization" not in headers
    expected = (STREAM, {"prompt": "x"}, {"accept": "text/event-stream", "authorization": "Bearer t1"})
    assert streams == [expected, expected]


@pytest.mark.parametrize(("seconds", "good_for"), [(300, 285), (60, 48), (1, 0.8)])
async def test_a_token_is_kept_until_shortly_before_its_end(seconds: float, good_for: float) -> None:
    gateway = FakeGateway(seconds=seconds)
    source = gateway.source()
    assert await source.token() == "t1"
    gateway.now += good_for - 0.01
    assert await source.token() == "t1"
    gateway.now += 0.02
    assert await source.token() == "t2"


async def test_the_time_that_asking_takes_counts() -> None:
    gateway = FakeGateway(gate=asyncio.Event())
    source = gateway.source()
    asking = asyncio.create_task(source.token())
    await asyncio.sleep(0)
    gateway.now += 200
    gateway.gate.set()  # type: ignore[union-attr]
    assert await asking == "t1"
    gateway.now += 85
    assert await source.token() == "t2"


async def test_many_callers_share_one_request() -> None:
    gateway = FakeGateway(gate=asyncio.Event())
    source = gateway.source()
    callers = [asyncio.create_task(source.token()) for _ in range(20)]
    await asyncio.sleep(0)
    gateway.gate.set()  # type: ignore[union-attr]
    assert await asyncio.gather(*callers) == ["t1"] * 20
    assert gateway.tokens_asked == 1


async def test_a_caller_that_leaves_takes_nobody_along() -> None:
    gateway = FakeGateway(gate=asyncio.Event())
    source = gateway.source()
    first, second = (asyncio.create_task(source.token()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    gateway.gate.set()  # type: ignore[union-attr]
    assert await second == "t1"
    assert first.cancelled()


async def test_a_refused_token_is_replaced_once() -> None:
    gateway = FakeGateway(good=lambda token: token != "t1")
    reply = await ShopTransport(gateway, gateway.source()).post(STREAM, b"{}", {})
    assert reply.status == 200
    assert [url for url, _, _ in gateway.posts] == [TOKEN, STREAM, TOKEN, STREAM]
    assert gateway.replies[1].closed


async def test_a_second_refusal_is_the_answer() -> None:
    gateway = FakeGateway(good=lambda token: False)
    reply = await ShopTransport(gateway, gateway.source()).post(STREAM, b"{}", {})
    assert reply.status == 401
    assert gateway.tokens_asked == 2


async def test_a_newer_token_outlives_the_refusal_of_an_older_one() -> None:
    gateway = FakeGateway()
    source = gateway.source()
    old = await source.token()
    source.refused(old)
    new = await source.token()
    source.refused(old)
    assert await source.token() == new
    assert gateway.tokens_asked == 2


@pytest.mark.parametrize("status", [400, 403, 429, 500, 503])
async def test_other_statuses_are_not_asked_about_again(status: int) -> None:
    gateway = FakeGateway()
    gateway._stream = lambda authorization: _json(status, {"error": "no"})  # type: ignore[method-assign]
    reply = await ShopTransport(gateway, gateway.source()).post(STREAM, b"{}", {})
    assert reply.status == status
    assert [url for url, _, _ in gateway.posts] == [TOKEN, STREAM]


NOT_THE_SHOPS = "The origin 'https://x.example' is not among this site key's domains; the operator has to add it."


@pytest.mark.parametrize(
    ("reply", "says", "details"),
    [
        (
            _json(403, {"error": {"code": "bad_argument", "message": NOT_THE_SHOPS}}),
            NOT_THE_SHOPS,
            {"kind": "no_token", "status": 403},
        ),
        (
            _json(429, {"error": {"code": "busy", "message": "Too often."}}, **{"retry-after": "7"}),
            "Too often.",
            {"kind": "no_token", "status": 429, "retry_after": "7", "cloud_code": "busy"},
        ),
        (FakeReply(502, b"<html>", {}), "HTTP 502", {"kind": "no_token", "status": 502}),
        (
            _json(404, {"error": {"code": "bad_argument", "message": "There is nothing at this address."}}),
            f"no access tokens at {TOKEN}: leave the site key out",
            {"kind": "no_token", "status": 404},
        ),
    ],
)
async def test_what_is_told_where_no_token_is_given(reply: FakeReply, says: str, details: dict[str, Any]) -> None:
    gateway = FakeGateway(token_reply=reply)
    error = await failure(gateway.source())
    assert type(error) is CloudUnavailable  # not BadArgument, after which no other side would be asked
    assert says in error.message
    assert error.details == details
    assert reply.closed


NO_TOKENS: list[bytes] = [
    b"<html>" * 100_000,
    b"[]",
    b"{}",
    b'{"token": 5, "expires_in": 300}',
    b'{"token": "", "expires_in": 300}',
    b'{"token": "a\\r\\nx-evil: 1", "expires_in": 300}',
    b'{"token": "%s", "expires_in": 300}' % (b"a" * 5000),
    b'{"token": "a"}',
    b'{"token": "a", "expires_in": "300"}',
    b'{"token": "a", "expires_in": true}',
    b'{"token": "a", "expires_in": 0}',
]


@pytest.mark.parametrize("body", [*NO_TOKENS, b'{"token": "a", "expires_in": NaN}'])
async def test_what_is_no_token_is_sent_nowhere(body: bytes) -> None:
    gateway = FakeGateway(token_reply=FakeReply(200, body, {}))
    error = await failure(gateway.source())
    assert "answered with something that is no access token" in error.message
    assert error.details == {"kind": "no_token", "status": 200}


async def test_a_failure_is_not_kept() -> None:
    gateway = FakeGateway(token_reply=FakeReply(500, b"", {}))
    source = gateway.source()
    await failure(source)
    gateway.token_reply = None
    assert await source.token() == "t1"


async def test_callers_at_the_same_time_share_a_failure_too() -> None:
    """Else one who comes while telemetry's request hangs would wait for that, and then as long for his own."""
    gateway = FakeGateway(token_reply=FakeReply(500, b"", {}), gate=asyncio.Event())
    source = gateway.source()
    callers = [asyncio.create_task(source.token()) for _ in range(3)]
    await asyncio.sleep(0)
    gateway.gate.set()  # type: ignore[union-attr]
    for result in await asyncio.gather(*callers, return_exceptions=True):
        assert isinstance(result, CloudUnavailable)
    assert gateway.tokens_asked == 1


async def test_a_closed_source_gives_what_it_has() -> None:
    gateway = FakeGateway(gate=asyncio.Event())
    source = gateway.source()
    asking = asyncio.create_task(source.token())
    await asyncio.sleep(0)
    source.close()
    late = asyncio.create_task(source.token())
    await asyncio.sleep(0)
    gateway.gate.set()  # type: ignore[union-attr]
    assert [await asking, await late, await source.token()] == ["t1"] * 3
    gateway.now += 300
    assert (await failure(source)).details == {"kind": "closed"}
    assert gateway.tokens_asked == 1


async def test_a_silent_gateway_is_given_up() -> None:
    error = await failure(FakeGateway(gate=asyncio.Event()).source(seconds=0.05))
    assert error.message == "The cloud gateway gave no access token within 0.05 seconds; try again."
    assert error.details == {"kind": "timeout", "seconds": 0.05}


async def write(gateway: FakeGateway, **options: Any) -> list[Any]:
    """The events of one text of a client whose cloud is ``gateway``."""
    world = World()
    services = world.services()
    # The site's own base in a browser is its origin.
    fields = {**vars(services), "base": "https://tandem.example/"}
    fields["cloud_side"] = Gateways(gateway, gateway).cloud_side
    client = await Client.create(services=type(services)(**fields), **options)
    try:
        return [event async for event in client.generate(prompt="Hi", max_tokens=4)]
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("options", "claim"),
    [
        ({"site": SHOP.key, "ancestor": SHOP.ancestor}, {"site": SHOP.key, "ancestor": SHOP.ancestor}),
        ({"site": SHOP.key}, {"site": SHOP.key, "ancestor": "https://tandem.example"}),
    ],
)
async def test_a_client_with_a_site_key_asks_for_its_shop(options: dict[str, Any], claim: dict[str, str]) -> None:
    gateway = FakeGateway()
    events = await write(gateway, mode="only_in_cloud", **options)
    assert [event["text"] for event in events if event["type"] == "text"] == ["abc"]
    assert [(url, "authorization" in headers) for url, _, headers in gateway.posts] == [(TOKEN, False), (STREAM, True)]
    assert gateway.posts[0][1] == claim


async def test_a_client_without_a_site_key_asks_for_no_token() -> None:
    gateway = FakeGateway()
    gateway._stream = lambda authorization: FakeReply(200, ANSWER, {"content-type": "text/event-stream"})  # type: ignore[method-assign]
    await write(gateway, mode="only_in_cloud")
    assert [(url, "authorization" in headers) for url, _, headers in gateway.posts] == [(STREAM, False)]


async def test_only_on_device_asks_for_nothing() -> None:
    gateway = FakeGateway()
    events = await write(gateway, mode="only_on_device", site=SHOP.key, ancestor=SHOP.ancestor)
    assert events[-1]["type"] == "done"
    assert gateway.posts == []


async def test_a_device_goes_on_where_the_shop_is_not_let_in() -> None:
    gateway = FakeGateway(token_reply=_json(403, {"error": {"code": "bad_argument", "message": NOT_THE_SHOPS}}))
    events = await write(gateway, mode="prefer_in_cloud", site=SHOP.key, ancestor="https://x.example")
    assert NOT_THE_SHOPS.rstrip(".") in next(event["message"] for event in events if event["type"] == "status")
    assert {event["source"] for event in events if event["type"] == "text"} == {"device"}


def example(language: str) -> str:
    """The one example in that language in docs/deployment.md."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^ *```{language}\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    return str(found)


async def test_the_deployment_page_s_shop_gets_its_text(tmp_path: Path) -> None:
    """Its TOML in a real gateway, its key as it stands in the merchant's page, and the real client over httpx."""
    (config := tmp_path / "gateway.toml").write_text(example("toml"))
    (key,) = re.findall(r'site="([^"]+)"', example("html"))
    transport = HttpxTransport()
    async with scripted_server(chunks(WHOLE)) as upstream:
        settings = Settings(upstream_url=upstream.url, config=config, token_secrets="s" * 32)
        async with gateway_at(settings) as url:
            stream_url = f"{url}/api/ai/cloud-stream"

            async def text_for(shop: Shop) -> str:
                source = TokenSource(stream_url, shop, transport)
                stream = CloudStream(stream_url, ShopTransport(transport, source))
                return "".join([event.text async for event in stream.stream(ASK) if isinstance(event, Text)])

            for ancestor in ("https://shop.rosa.example", "https://de.rosa.example"):
                assert await text_for(Shop(key, ancestor)) == "".join(TEXTS)
            with pytest.raises(CloudUnavailable, match=r"'https://x\.example' is not among this site key's domains"):
                await text_for(Shop(key, "https://x.example"))
            with pytest.raises(CloudUnavailable, match="site key is not known"):
                await text_for(Shop("pk_none_1", "https://shop.rosa.example"))
            with pytest.raises(CloudUnavailable, match="no access token"):
                await anext(CloudStream(stream_url, transport).stream(ASK))
    await transport.aclose()
