"""Site keys, tokens and limits through the whole gateway: who gets in, who is told what, and what is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyapp.errors import BadArgument
from pyapp.gateway import access
from pyapp.gateway.app import create_app
from pyapp.gateway.settings import Settings
from tests.unit.gateway_fakes import DONE_CHUNK, Exchange, Script, gateway, openai_chunk, scripted_server
from tests.unit.gateway_world import PATH, PROMPT, WHOLE, chunks, error_of, events_of, replies

TOKEN_PATH = "/api/ai/token"
SECRET = "0123456789abcdef" * 2
SHOP = "https://shop.rosa.example"
SITES = """
[sites.rosa]
key = "pk_rosa_1"
ancestors = ["https://shop.rosa.example", "https://*.rosa.example"]
{caps}
[sites.blau]
key = "pk_blau_1"
ancestors = ["https://blau.example"]
"""
ASK = {"prompt": PROMPT, "max_tokens": 8}


def sites(caps: str = "") -> str:
    return SITES.format(caps=caps)


@asynccontextmanager
async def shop(
    folder: Path, toml: str, script: Script | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway with that configuration; the pages are those of ``folder``."""
    (config := folder / "gateway.toml").write_text(toml)
    async with scripted_server(script or chunks(WHOLE)) as upstream:
        fixed: dict[str, Any] = {"upstream_url": upstream.url, "config": config}
        if "[sites" in toml:
            fixed["token_secrets"] = SECRET
        async with (
            gateway(Settings(**{**fixed, **settings}), folder) as url,
            httpx.AsyncClient(base_url=url, timeout=10) as client,
        ):
            yield client


async def token(client: httpx.AsyncClient, site: str = "pk_rosa_1", ancestor: str = SHOP) -> dict[str, str]:
    """The header with a fresh token."""
    response = await client.post(TOKEN_PATH, json={"site": site, "ancestor": ancestor})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    assert response.json()["expires_in"] == 300
    return {"authorization": f"Bearer {response.json()['token']}"}


@contextmanager
def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    """Moves the clock that gateways made from now on go by."""
    with monkeypatch.context() as patch:
        now = access.time.time() + seconds
        patch.setattr(access.Access.__init__, "__defaults__", (lambda: now,))
        yield


async def test_without_a_configuration_there_are_no_tokens_and_none_is_needed() -> None:
    async with (
        scripted_server(chunks(WHOLE)) as upstream,
        gateway(Settings(upstream_url=upstream.url)) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        assert (await client.post(TOKEN_PATH, json={})).status_code == 404
        for _ in range(5):
            events_of(await client.post(PATH, json=ASK))


async def test_a_shops_token_opens_the_stream(tmp_path: Path) -> None:
    async with shop(tmp_path, sites()) as client:
        for ancestor in (SHOP, "https://de.rosa.example", "HTTPS://Shop.Rosa.Example:443"):
            events_of(await client.post(PATH, json=ASK, headers=await token(client, ancestor=ancestor)))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "has no access token"),
        ("Basic abc", "has no access token"),
        ("Bearer", "has no access token"),
        ("Bearer v1.abc.def", "token is not valid"),
    ],
)
async def test_without_a_good_token_nothing_is_asked(tmp_path: Path, header: str | None, message: str) -> None:
    asked: list[Exchange] = []

    async def script(exchange: Exchange) -> None:
        asked.append(exchange)

    async with shop(tmp_path, sites(), script) as client:
        # The body is not read either: what is wrong with it is not told.
        response = await client.post(PATH, content=b"no json", headers={"authorization": header} if header else {})
    assert message in error_of(response, 401, "cloud_unavailable")
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert not asked


async def test_tokens_expire_and_outlive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(tmp_path, sites()) as client:
        header = await token(client)
    with later(monkeypatch, 290):
        async with shop(tmp_path, sites()) as client:
            events_of(await client.post(PATH, json=ASK, headers=header))
    with later(monkeypatch, 301):
        async with shop(tmp_path, sites()) as client:
            message = error_of(await client.post(PATH, json=ASK, headers=header), 401, "cloud_unavailable")
    assert message == "The access token has expired; ask for a new one."


async def test_secrets_change_in_two_steps(tmp_path: Path) -> None:
    new = "f" * 32
    async with shop(tmp_path, sites()) as client:
        header = await token(client)
    async with shop(tmp_path, sites(), token_secrets=f"{new},{SECRET}") as client:
        events_of(await client.post(PATH, json=ASK, headers=header))
        newer = await token(client)
    async with shop(tmp_path, sites(), token_secrets=new) as client:
        events_of(await client.post(PATH, json=ASK, headers=newer))
        error_of(await client.post(PATH, json=ASK, headers=header), 401, "cloud_unavailable")


@pytest.mark.parametrize(
    ("was", "becomes"), [("pk_rosa_1", "pk_rosa_2"), ("https://shop.rosa.example", "https://x.example")]
)
async def test_a_key_or_domain_taken_out_is_out_at_once(tmp_path: Path, was: str, becomes: str) -> None:
    only_apex = sites().replace(', "https://*.rosa.example"', "")
    async with shop(tmp_path, only_apex) as client:
        header = await token(client)
    async with shop(tmp_path, only_apex.replace(was, becomes)) as client:
        message = error_of(await client.post(PATH, json=ASK, headers=header), 401, "cloud_unavailable")
    assert "no longer allowed" in message


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"site": "pk_none_1", "ancestor": SHOP}, 403, "site key is not known"),
        ({"site": "", "ancestor": SHOP}, 403, "site key is not known"),
        ({"site": "\ud800", "ancestor": SHOP}, 403, "site key is not known"),
        ({"site": "pk_blau_1", "ancestor": SHOP}, 403, "is not among this site key's domains"),
        ({"site": "pk_rosa_1", "ancestor": "https://rosa.example"}, 403, "is not among"),
        ({"site": "pk_rosa_1", "ancestor": "null"}, 403, "is not among"),
        ({"site": "pk_rosa_1", "ancestor": "\ud800"}, 403, "is not among"),
        ({"site": "pk_rosa_1"}, 400, "ancestor must be a text"),
        ({"site": 5, "ancestor": SHOP}, 400, "site must be a text"),
        ([], 400, "must be a JSON object"),
        ({"site": "x" * 5000}, 413, "larger than 4096 bytes"),
    ],
)
async def test_tokens_that_are_not_given(tmp_path: Path, fields: Any, status: int, message: str) -> None:
    async with shop(tmp_path, sites()) as client:
        assert message in error_of(await client.post(TOKEN_PATH, content=json.dumps(fields)), status, "bad_argument")


@pytest.mark.parametrize("place", ["cross-site", "same-site", "none"])
async def test_pages_of_other_origins_get_no_token(tmp_path: Path, place: str) -> None:
    body = {"site": "pk_rosa_1", "ancestor": SHOP}
    async with shop(tmp_path, sites()) as client:
        response = await client.post(TOKEN_PATH, json=body, headers={"sec-fetch-site": place})
        assert "widget's own page only" in error_of(response, 403, "bad_argument")
        assert "access-control-allow-origin" not in response.headers
        assert (await client.post(TOKEN_PATH, json=body, headers={"sec-fetch-site": "same-origin"})).status_code == 200
        assert (await client.get(TOKEN_PATH)).status_code == 405


@pytest.mark.parametrize(
    ("query", "ancestors"),
    [
        ("?site=pk_rosa_1", "https://shop.rosa.example https://*.rosa.example"),
        ("?lang=de&site=pk_blau_1", "https://blau.example"),
        ("", "'self'"),
        ("?site=", "'self'"),
        ("?site=pk_none_1", "'self'"),
        ("?site=pk_rosa_1&site=pk_blau_1", "'self'"),
        ("?site=*;script-src%20*", "'self'"),
        ("?site=%ff", "'self'"),
    ],
)
async def test_the_widget_is_shown_by_its_own_shops_pages_only(tmp_path: Path, query: str, ancestors: str) -> None:
    (tmp_path / "widget.html").write_bytes(b"widget")
    (tmp_path / "index.html").write_bytes(b"home")
    async with shop(tmp_path, sites()) as client:
        first = await client.get(f"/widget.html{query}")
        again = await client.get(f"/widget.html{query}", headers={"if-none-match": first.headers["etag"]})
        other = await client.get(f"/{query}")
    for response, status in ((first, 200), (again, 304)):
        assert response.status_code == status
        policy = response.headers["content-security-policy"]
        assert policy.split("; ")[-1] == f"frame-ancestors {ancestors}"
    assert other.headers["content-security-policy"].endswith("frame-ancestors 'self'")


async def test_sites_without_a_secret_are_refused_at_the_start(tmp_path: Path) -> None:
    (config := tmp_path / "gateway.toml").write_text(sites())
    with pytest.raises(BadArgument, match="TANDEM_TOKEN_SECRETS is not set"):
        create_app(None, Settings(embedded="off", config=config))


async def test_secrets_without_a_site_are_refused_at_the_start(tmp_path: Path) -> None:
    """Else taking the last shop out would open the gateway to everybody."""
    (config := tmp_path / "gateway.toml").write_text("[client]\nconcurrent = 2")
    with pytest.raises(BadArgument, match="lists no site, so the gateway would be open"):
        create_app(None, Settings(embedded="off", config=config, token_secrets=SECRET))


async def test_refusals_and_cut_answers_give_their_place_back_before_they_end(tmp_path: Path) -> None:
    for script in (replies(503, b"no"), chunks(openai_chunk("ab"), b'data: {"error": {"message": "no"}}\n\n')):
        async with shop(tmp_path, "[client]\nconcurrent = 1", script) as client:
            statuses = [(await client.post(PATH, json=ASK)).status_code for _ in range(20)]
        assert 429 not in statuses


async def test_a_client_that_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with shop(tmp_path, "[client]\nrequests_per_minute = 2") as client:
        for _ in range(2):
            events_of(await client.post(PATH, json=ASK))
        response = await client.post(PATH, json=ASK)
    message = error_of(response, 429, "busy")
    seconds = int(response.headers["retry-after"])
    assert 55 <= seconds <= 60
    assert message == f"This client is at its limit of requests a minute (2); try again in {seconds} seconds."


async def test_tokens_asked_for_count_as_requests(tmp_path: Path) -> None:
    async with shop(tmp_path, "[client]\nrequests_per_minute = 2\n" + sites()) as client:
        header = await token(client)
        events_of(await client.post(PATH, json=ASK, headers=header))
        response = await client.post(TOKEN_PATH, json={"site": "pk_rosa_1", "ancestor": SHOP})
        error_of(response, 429, "busy")


async def test_streams_at_once_and_the_place_of_one_that_left(tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(openai_chunk("abc"))
        arrived.set()
        await exchange.left.wait()

    async with shop(tmp_path, "[client]\nconcurrent = 1", script) as client:
        async with client.stream("POST", PATH, json=ASK) as first:
            await anext(first.aiter_text())
            response = await client.post(PATH, json=ASK)
            assert "limit of answers at once (1)" in error_of(response, 429, "busy")
            assert response.headers["retry-after"] == "1"
        async with asyncio.timeout(5):
            while True:
                async with client.stream("POST", PATH, json=ASK) as second:
                    if second.status_code == 200:
                        break


@pytest.mark.parametrize(
    ("script", "left"),
    [
        (chunks(WHOLE), 88),  # 9 and 3 tokens, as the upstream counted
        (chunks(openai_chunk("ab"), openai_chunk("cd"), openai_chunk(finish="stop"), DONE_CHUNK), 93),  # 5 and 2
        (chunks(openai_chunk("ab"), end=False), 94),  # cut: 5, and the one piece that came
        (replies(500, b""), 100),
    ],
    ids=["usage", "estimate", "cut", "refused"],
)
async def test_what_a_day_costs(tmp_path: Path, script: Script, left: int) -> None:
    """The prompt is 17 bytes, so 5 tokens by estimate."""
    async with shop(tmp_path, "[client]\ntokens_per_day = 100", script) as client:
        await client.post(PATH, json=ASK)
        response = await client.post(PATH, json={**ASK, "max_tokens": left - 5 + 1})
        assert f"has {left} of its 100 tokens left today" in error_of(response, 429, "busy")
        assert 0 < int(response.headers["retry-after"]) <= 86400
        assert (await client.post(PATH, json={**ASK, "max_tokens": left - 5})).status_code != 429


async def test_one_shop_that_is_full_leaves_the_others_alone(tmp_path: Path) -> None:
    async with shop(tmp_path, sites("requests_per_minute = 1")) as client:
        rosa, blau = await token(client), await token(client, "pk_blau_1", "https://blau.example")
        events_of(await client.post(PATH, json=ASK, headers=rosa))
        message = error_of(await client.post(PATH, json=ASK, headers=rosa), 429, "busy")
        assert message.startswith("This shop is at its limit of requests a minute (1)")
        events_of(await client.post(PATH, json=ASK, headers=blau))


@pytest.mark.parametrize("trusted", [True, False])
async def test_clients_behind_a_trusted_proxy_are_told_apart(tmp_path: Path, trusted: bool) -> None:
    toml = ('trusted_proxies = ["127.0.0.1"]\n' if trusted else "") + "[client]\nrequests_per_minute = 1"
    async with shop(tmp_path, toml) as client:
        statuses = [
            (await client.post(PATH, json=ASK, headers={"x-forwarded-for": address})).status_code
            for address in ("8.8.8.8", "8.8.4.4", "1.1.1.1, 8.8.8.8")
        ]
    assert statuses == ([200, 200, 429] if trusted else [200, 429, 429])


async def test_a_bad_request_gives_its_place_back(tmp_path: Path) -> None:
    async with shop(tmp_path, "[client]\nconcurrent = 1\ntokens_per_day = 100") as client:
        for _ in range(3):
            error_of(await client.post(PATH, content=b"nonsense"), 400, "bad_argument")
            error_of(await client.get(PATH), 405, "bad_argument")
        events_of(await client.post(PATH, json=ASK))
