"""The gateway as somebody meets it who means it harm: bodies, headers, tokens and figures that no page would send."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyapp.errors import BadArgument
from pyapp.gateway import access
from pyapp.gateway.limits import Accounts, Caps, Ticket
from pyapp.gateway.settings import Settings
from tests.unit.gateway_fakes import Exchange, openai_chunk
from tests.unit.gateway_world import PATH, WHOLE, chunks, error_of, events_of, replies, world
from tests.unit.test_gateway_access import ASK, SECRET, SHOP, TOKEN_PATH, shop, sites, token
from tests.unit.test_gateway_retry import QUICK, in_turn


async def raw(url: str, request: bytes) -> bytes:
    """What comes back for these very bytes within two seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    writer.write(request)
    try:
        async with asyncio.timeout(2):
            return await reader.read(65536)
    finally:
        writer.close()


def post(path: str, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST %s HTTP/1.1" % path.encode(), b"host: g", *headers, b"", body])


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ([b"content-length: -5"], b"", 400),
        ([b"content-length: " + b"9" * 5000], b"", 400),
        ([b"content-length: " + b"9" * 19], b"", 413),
        ([b"content-length: 5", b"content-length: 6"], b"", 400),
        ([b"transfer-encoding: chunked"], b"zz\r\n", 400),
        ([b"transfer-encoding: chunked", b"content-length: 5"], b"0\r\n\r\n", 400),
        ([b"transfer-encoding: gzip, chunked"], b"0\r\n\r\n", 400),
        ([b"transfer-encoding: chunked"], b"fffff\r\n" + b"x" * 6000, 413),
        ([b"content-encoding: gzip", b"content-length: 3"], b"\x1f\x8b\x08", 400),
    ],
)
@pytest.mark.parametrize("path", [PATH, TOKEN_PATH])
async def test_bodies_and_their_lengths(
    tmp_path: Path, path: str, headers: list[bytes], body: bytes, status: int
) -> None:
    async with shop(tmp_path, sites(), max_body_bytes=4096) as client:
        bearer = (await token(client))["authorization"].encode()
        answer = await raw(str(client.base_url), post(path, b"authorization: " + bearer, *headers, body=body))
    assert int(answer.split()[1]) == status


async def test_a_body_that_drips_holds_its_client_s_place_only_for_a_while(tmp_path: Path) -> None:
    toml = "[client]\nconcurrent = 1\n" + sites()
    async with shop(tmp_path, toml, body_seconds=0.3) as client:
        header = await token(client)
        port = client.base_url.port
        for path in (TOKEN_PATH, PATH):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            bearer = header["authorization"].encode()
            writer.write(post(path, b"authorization: " + bearer, b"content-length: 4000"))
            dripping = asyncio.create_task(_drip(writer))
            await asyncio.sleep(0.1)
            error_of(await client.post(PATH, json=ASK, headers=header), 429, "busy")
            async with asyncio.timeout(2):
                assert (await reader.readline()).split()[1] == b"408"
            events_of(await client.post(PATH, json=ASK, headers=header))
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            writer.close()


async def _drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b" ")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "header", ["x-forwarded-for", "x-real-ip", "forwarded", "client-ip", "true-client-ip", "cf-connecting-ip"]
)
async def test_no_header_makes_one_client_into_many(tmp_path: Path, header: str) -> None:
    async with shop(tmp_path, "[client]\nrequests_per_minute = 2") as client:
        values = ("1.1.1.1", "for=2.2.2.2", "127.0.0.1, 3.3.3.3")
        statuses = [(await client.post(PATH, json=ASK, headers={header: value})).status_code for value in values]
    assert statuses == [200, 200, 429]


async def test_proxies_are_not_everybody(tmp_path: Path) -> None:
    for network in ("0.0.0.0/0", "::/0"):
        with pytest.raises(BadArgument, match="everybody, so that each client could choose its address"):
            async with shop(tmp_path, f'trusted_proxies = ["{network}"]'):
                pass


async def test_a_claim_that_was_changed_or_put_together_is_not_valid(tmp_path: Path) -> None:
    def forged(fields: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()

    async with shop(tmp_path, sites()) as client:
        rosa = (await token(client))["authorization"].removeprefix("Bearer ")
        blau = (await token(client, "pk_blau_1", "https://blau.example"))["authorization"].removeprefix("Bearer ")
        version, claims, signature = rosa.split(".")
        other = blau.split(".")
        later = forged({"site": "pk_rosa_1", "ancestor": SHOP, "expires": 2**40})
        for made in (
            f"{version}.{other[1]}.{signature}",
            f"{version}.{claims}.{other[2]}",
            f"{version}.{later}.{signature}",
            f"{version}.{later}.",
            f"v0.{claims}.{signature}",
            f"{version}.{claims}.{signature}=",
            f"{version}.{claims}.{claims}.{signature}",
        ):
            response = await client.post(PATH, json=ASK, headers={"authorization": f"Bearer {made}"})
            assert "is not valid" in error_of(response, 401, "cloud_unavailable")


async def test_a_token_counts_for_its_own_shop_whatever_else_the_request_says(tmp_path: Path) -> None:
    async with shop(tmp_path, sites("requests_per_minute = 1")) as client:
        rosa = await token(client)
        events_of(await client.post(PATH, json=ASK, headers=rosa))
        claims = {"site": "pk_blau_1", "ancestor": "https://blau.example"}
        headers = {**rosa, "origin": "https://blau.example", "referer": "https://blau.example/"}
        response = await client.post(f"{PATH}?site=pk_blau_1", json={**ASK, **claims}, headers=headers)
        assert error_of(response, 429, "busy").startswith("This shop")


@pytest.mark.parametrize("value", [-1, 0, 1.5, "8", True, 2**31, 10**30, 1e300, [], {}])
async def test_max_tokens_that_are_none(value: Any) -> None:
    async with world(chunks(WHOLE)) as it:
        assert "max_tokens must be" in error_of(await it.ask(max_tokens=value), 400, "bad_argument")
    assert it.upstream.exchanges == []


async def test_a_number_of_more_digits_than_python_reads() -> None:
    async with world(chunks(WHOLE)) as it:
        body = b'{"prompt": "x", "max_tokens": %s}' % (b"9" * 5000)
        assert "not valid JSON" in error_of(await it.client.post(PATH, content=body), 400, "bad_argument")


async def test_huge_max_tokens_are_cut_and_cost_no_more_than_the_cut(tmp_path: Path) -> None:
    async with shop(tmp_path, "[client]\ntokens_per_day = 100", max_tokens=50) as client:
        events_of(await client.post(PATH, json={**ASK, "max_tokens": 2**31 - 1}))


async def test_days_begin_at_midnight_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [86400.0 * 20_000 + 86_390]
    monkeypatch.setattr(access.Access.__init__, "__defaults__", (lambda: now[0],))
    async with shop(tmp_path, "[client]\ntokens_per_day = 20") as client:
        events_of(await client.post(PATH, json=ASK))  # 12 tokens
        response = await client.post(PATH, json=ASK)
        assert "has 8 of its 20 tokens left today" in error_of(response, 429, "busy")
        assert response.headers["retry-after"] == "10"
        now[0] += 10
        events_of(await client.post(PATH, json=ASK))


@pytest.mark.parametrize(
    ("header", "passed_on"),
    [
        ("17", "17"),
        ("Fri, 31 Dec 9999 23:59:59 GMT", "86400"),
        ("9" * 60, "86400"),
        ("soon", None),
        ("日", None),
        ("1" * 40 + "; x=y", None),
    ],
)
async def test_the_page_is_sent_away_for_a_day_at_most(header: str, passed_on: str | None) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(f"HTTP/1.1 429 No\r\nretry-after: {header}\r\ncontent-length: 0\r\n\r\n".encode())

    async with world(script, upstream_tries=1) as it:
        response = await it.ask()
        error_of(response, 429, "cloud_unavailable")
        assert response.headers.get("retry-after") == passed_on


async def test_no_wait_between_two_tries_is_longer_than_allowed() -> None:
    async with world(replies(503, b"", retry_after="0"), retry_wait_seconds=0.05, upstream_tries=4) as it:
        began = time.monotonic()
        error_of(await it.ask(), 502, "cloud_unavailable")
    assert time.monotonic() - began < 1.5
    assert len(it.upstream.exchanges) == 4


@pytest.mark.parametrize("first", [openai_chunk("a"), b": ping\n\n"], ids=["a text", "a comment"])
async def test_an_answer_that_began_is_asked_for_once(first: bytes) -> None:
    async with world(in_turn(chunks(first, end=False), chunks(WHOLE)), **QUICK) as it:
        await it.ask()
    assert len(it.upstream.exchanges) == 1


@pytest.mark.parametrize("name", ["upstream_key", "metrics_key"])
@pytest.mark.parametrize("key", ["sk-secret\nx: 1", "sk-secrét", "sk-sec ret", "sk-secret\x00"])
def test_a_key_that_fits_no_header_is_refused_without_being_shown(name: str, key: str) -> None:
    with pytest.raises(BadArgument, match=f"TANDEM_{name.upper()} holds a blank") as caught:
        Settings.from_env({"TANDEM_UPSTREAM_URL": "http://h", f"TANDEM_{name.upper()}": key})
    assert "sec" not in caught.value.message


async def test_no_key_and_no_token_is_logged_or_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "tandem")
    keys = {"upstream_key": "sk-upstream-1", "metrics_key": "m-key-123"}
    quoting = in_turn(
        replies(401, b'{"error": "sk-upstream-1"}'),
        replies(503, b"sk-upstream-1"),
        chunks(b'data: {"error": {"message": "sk-upstream-1"}}\n\n'),
    )
    async with shop(tmp_path, sites("requests_per_minute = 3"), quoting, **QUICK, **keys) as client:
        header = await token(client)
        bearer = header["authorization"]
        answers = [await client.post(PATH, json=ASK, headers=header) for _ in range(4)]
        answers.append(await client.post(PATH, json=ASK, headers={"authorization": f"{bearer}x"}))
        keyholders = (bearer, "Bearer m-key-123")
        answers += [await client.get("/api/ai/metrics", headers={"authorization": key}) for key in keyholders]
    async with world(chunks(WHOLE), upstream_url="http://127.0.0.1:9", upstream_tries=1, **keys) as it:
        answers.append(await it.ask())
    told = "\n".join(answer.text for answer in answers)
    written = caplog.text + "".join(capfd.readouterr())
    for outcome in ("cloud_unavailable", "busy", "unauthorized"):
        assert f"outcome={outcome}" in written
    for secret in (*keys.values(), SECRET, bearer.rpartition(".")[2]):
        assert secret not in told
        assert secret not in written


async def test_the_operator_sees_strangers_apart_from_failures(tmp_path: Path) -> None:
    async with shop(tmp_path, sites(), metrics_key="m") as client:
        for _ in range(3):
            await client.post(PATH, json=ASK)
        page = (await client.get("/api/ai/metrics", headers={"authorization": "Bearer m"})).text
    assert 'tandem_gateway_calls_total{outcome="unauthorized",site=""} 3.0' in page
    assert "cloud_unavailable" not in page


async def test_an_upgrade_is_no_way_around(tmp_path: Path) -> None:
    upgrade = [b"upgrade: websocket", b"connection: upgrade", b"sec-websocket-version: 13", b"sec-websocket-key: eA=="]
    async with shop(tmp_path, sites()) as client:
        answer = await raw(str(client.base_url), post(PATH, *upgrade, b"content-length: 0"))
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_a_newcomer_is_counted_where_all_known_clients_are_busy() -> None:
    accounts = Accounts(Caps(concurrent=1), "This client", 2)
    held = [Ticket([accounts.of(name)]) for name in ("a", "b", "c")]
    assert len(accounts) == 3
    assert [accounts.of(name).streams for name in ("a", "b", "c")] == [1, 1, 1]
    for ticket in held:
        ticket.close(0)
