"""Telemetry where the gateway has shops: records go with the shop's token, which the cloud stream shares."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyapp.client import Client
from pyapp.door import telemetry
from pyapp.gateway.settings import Settings
from pyapp.routing.gateways import Gateways
from pyapp.routing.httpx_transport import HttpxTransport
from tests.unit.door_fakes import World
from tests.unit.gateway_fakes import gateway, scripted_server
from tests.unit.gateway_world import TEXTS, WHOLE, chunks
from tests.unit.test_access_token import ANSWER, SHOP, STREAM, TELEMETRY, TOKEN, FakeGateway, FakeReply
from tests.unit.test_gateway_access import SECRET, sites
from tests.unit.test_gateway_access import SHOP as ANCESTOR
from tests.unit.test_gateway_telemetry import KEY, SUMMARY, TABLE


@dataclass
class ReportingGateway(FakeGateway):
    """Takes telemetry too, at the same terms."""

    refusing: bool = False
    reported: list[int] = field(default_factory=list)
    """Of each report that was taken, how many records it had."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> FakeReply:
        reply = await super().post(url, body, headers)
        if url.endswith("/telemetry") and reply.status == 200:
            if self.refusing:
                return FakeReply(401, b"", {})
            self.reported.append(len(self.posts[-1][1]["records"]))
            return FakeReply(204, b"", {})
        return reply

    def asked(self) -> list[tuple[str, str | None]]:
        """Address and authorization of each request so far."""
        return [(url, headers.get("authorization")) for url, _, headers in self.posts]


async def opened(to: ReportingGateway, **options: Any) -> Client:
    gateways = Gateways(to, to)
    services = replace(
        World().services(),
        base="https://tandem.example/",
        cloud_side=gateways.cloud_side,
        reporter=gateways.reporter,
    )
    wishes = {"site": SHOP.key, "ancestor": SHOP.ancestor, "cloud": STREAM, "telemetry": TELEMETRY}
    return await Client.create(services=services, **{**wishes, **options})


async def write(client: Client) -> str:
    events = [event async for event in client.generate(prompt="Hi", max_tokens=8)]
    return "".join(event["text"] for event in events if event["type"] == "text")


async def until_sent() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_records_of_a_device_go_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BATCH", 1)
    to = ReportingGateway()
    client = await opened(to)
    assert [await write(client), await write(client)] == ["Hello"] * 2
    await until_sent()
    assert to.asked() == [(TOKEN, None), (TELEMETRY, "Bearer t1"), (TELEMETRY, "Bearer t1")]
    assert to.reported == [1, 1]
    assert to.posts[0][1] == {"site": SHOP.key, "ancestor": SHOP.ancestor}
    await client.close()


async def test_stream_and_telemetry_of_one_gateway_share_the_token() -> None:
    to = ReportingGateway()
    client = await opened(to, mode="only_in_cloud")
    assert await write(client) == "abc"
    await client.close()
    assert to.asked() == [(TOKEN, None), (STREAM, "Bearer t1"), (TELEMETRY, "Bearer t1")]


async def test_another_gateway_has_tokens_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BATCH", 1)
    to = ReportingGateway()
    client = await opened(to, mode="only_in_cloud", telemetry="https://other.example/ai/telemetry")
    await write(client)
    await until_sent()
    assert [url for url, _ in to.asked()] == [TOKEN, STREAM, "https://other.example/ai/token"]
    await client.close()


async def test_without_a_site_key_records_go_without_a_token() -> None:
    to = ReportingGateway()
    to._stream = lambda authorization: FakeReply(200, ANSWER, {"content-type": "text/event-stream"})  # type: ignore[method-assign]
    client = await opened(to, site=None, ancestor=None)
    await write(client)
    await client.close()
    assert to.asked() == [(TELEMETRY, None)]
    assert to.reported == [1]


async def test_a_refused_token_is_replaced_once_and_the_records_then_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BATCH", 1)
    to = ReportingGateway(refusing=True)
    client = await opened(to)
    assert await write(client) == "Hello"
    await until_sent()
    assert [url for url, _ in to.asked()] == [TOKEN, TELEMETRY, TOKEN, TELEMETRY]
    await client.close()


async def test_the_close_asks_for_no_token() -> None:
    to = ReportingGateway()
    client = await opened(to)
    await write(client)
    await client.close()
    assert to.posts == []


async def test_a_token_that_is_not_given_delays_neither_texts_nor_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BATCH", 1)
    to = ReportingGateway(gate=asyncio.Event())
    client = await opened(to)
    async with asyncio.timeout(5):
        assert [await write(client) for _ in range(3)] == ["Hello"] * 3
        await until_sent()
        began = time.monotonic()
        await client.close()
    assert time.monotonic() - began < telemetry.CLOSE_SECONDS + 1
    assert [url for url, _ in to.asked()] == [TOKEN]


async def test_a_failure_to_get_a_token_stays_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "BATCH", 1)
    to = ReportingGateway(token_reply=FakeReply(403, b"{}", {}))
    client = await opened(to)
    assert await write(client) == "Hello"
    await until_sent()
    await client.close()
    assert to.asked() == [(TOKEN, None)]
    assert caplog.messages == []


@pytest.mark.parametrize(("mode", "text"), [("prefer_on_device", "Hello"), ("only_in_cloud", "".join(TEXTS))])
async def test_a_real_gateway_counts_the_texts_of_a_shop(tmp_path: Path, mode: str, text: str) -> None:
    """The client over httpx, the gateway under uvicorn with shops and telemetry, and an upstream that writes."""
    (config := tmp_path / "gateway.toml").write_text(sites() + TABLE)
    transport = HttpxTransport()
    gateways = Gateways(transport, transport)
    async with scripted_server(chunks(WHOLE)) as upstream:
        settings = Settings(upstream_url=upstream.url, config=config, token_secrets=SECRET, metrics_key="m-key")
        async with gateway(settings) as url, httpx.AsyncClient(base_url=url, timeout=10) as operator:
            services = replace(
                World().services(), base=f"{url}/", cloud_side=gateways.cloud_side, reporter=gateways.reporter
            )
            client = await Client.create(
                services=services, mode=mode, site="pk_rosa_1", ancestor=ANCESTOR, telemetry="/api/ai/telemetry"
            )
            assert await write(client) == text
            async with asyncio.timeout(20):
                while (await operator.get(SUMMARY, headers=KEY)).json()["texts"] < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            page = (await operator.get("/api/ai/metrics", headers=KEY)).text
            await client.close()
    await transport.aclose()
    served = "device" if mode == "prefer_on_device" else "cloud"
    assert f'tandem_client_texts_total{{mode="{mode}",outcome="stop",served="{served}",site="rosa"}} 1.0' in page
