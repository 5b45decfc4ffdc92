"""A gateway with a shop: the shop's page gets a text from the cloud through the widget, and nobody else's page does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.routing import Route

from pyapp.gateway.app import create_app
from pyapp.gateway.settings import Settings
from pyapp.setup.serve import serving
from tests.unit.gateway_fakes import DONE_CHUNK, openai_chunk

from .conftest import Open, Watch

KEY = "pk_rosa_5f2c9e"
TEXT = "A mug from the cloud."
STREAM, TOKEN = "/api/ai/cloud-stream", "/api/ai/token"


async def upstream(request: Request) -> StreamingResponse:
    async def body() -> AsyncIterator[bytes]:
        yield openai_chunk(TEXT) + openai_chunk(finish="stop") + DONE_CHUNK

    return StreamingResponse(body(), media_type="text/event-stream")


@dataclass
class Town:
    """A gateway that knows one shop, and two pages with its widget: the shop's own, and one of another origin."""

    folder: Path
    upstream: str
    gateway: str = ""
    shop: str = ""
    other: str = ""
    calls: list[tuple[str, int, str]] = field(default_factory=list)
    """What the gateway was asked: address, status of the answer, the ``Authorization`` header."""

    def app(self, ancestor: str, key: str = KEY, dist: Path | None = None) -> Starlette:
        config = self.folder / "gateway.toml"
        config.write_text(f'[sites.rosa]\nkey = "{key}"\nancestors = ["{ancestor}"]\n')
        return create_app(dist, Settings(upstream_url=self.upstream, config=config, token_secrets="s" * 32))

    def listening(self, app: Starlette) -> Any:
        """``app``, with its API calls written down."""

        async def asgi(scope: Any, receive: Any, send: Any) -> None:
            async def noted(message: Any) -> None:
                if message["type"] == "http.response.start" and scope["path"].startswith("/api/"):
                    headers = dict(scope["headers"])
                    self.calls.append((scope["path"], message["status"], headers.get(b"authorization", b"").decode()))
                await send(message)

            await app(scope, receive, noted)

        return asgi

    async def page(self, request: Request) -> HTMLResponse:
        return HTMLResponse(
            f"""<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,"><body>
            <tandem-copywriter site="{KEY}" lang="en" mode="only_in_cloud" vision="none"></tandem-copywriter>
            <script src="{self.gateway}/embed.js" async></script></body></html>"""
        )


@pytest.fixture
def town(dist: Path, tmp_path: Path) -> Iterator[Town]:
    with ExitStack() as servers:

        def serve(app: Any) -> str:
            return servers.enter_context(serving(app)).rstrip("/")

        town = Town(tmp_path, serve(Starlette(routes=[Route("/v1/chat/completions", upstream, methods=["POST"])])))
        shops = [serve(Starlette(routes=[Route("/", town.page)])) for _ in range(2)]
        # localhost is not 127.0.0.1, where the gateway is.
        town.shop, town.other = (url.replace("127.0.0.1", "localhost") for url in shops)
        town.gateway = serve(town.listening(town.app(town.shop, dist=dist)))
        yield town


async def test_the_shop_s_page_gets_a_text_by_a_token_that_is_good_for_it_alone(town: Town, open_page: Open) -> None:
    page = await open_page(f"{town.shop}/")
    frame = page.frame_locator("iframe")
    await frame.get_by_label("Your own keywords").fill("mug")
    await frame.locator("[data-tandem=write]").click()
    await expect(frame.locator("[data-tandem=copy]")).to_contain_text(TEXT, timeout=60_000)
    [(token_path, token_status, nothing), (path, status, authorization)] = town.calls
    assert (token_path, token_status, nothing) == (TOKEN, 200, "")
    assert (path, status, authorization[:10]) == (STREAM, 200, "Bearer v1.")

    async def asked(app: Starlette) -> int:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            response = await client.post(STREAM, json={"prompt": "x"}, headers={"authorization": authorization})
            return response.status_code

    assert await asked(town.app(town.shop)) == 200
    assert await asked(town.app(town.other)) == 401
    assert await asked(town.app(town.shop, key="pk_blau_1")) == 401


async def test_a_page_of_another_origin_is_refused(town: Town, open_page: Open, watch: Watch) -> None:
    page = await open_page(f"{town.other}/")
    await expect(page.locator("iframe")).to_have_count(1)
    async with page.expect_event("console", lambda message: "frame-ancestors" in message.text):
        await page.reload()
    watch.expect("frame-ancestors")
    await expect(page.frame_locator("iframe").locator("[data-tandem=write]")).to_have_count(0)
    # Nor does it get a token by itself: as "no-cors" the request is sent, and all the same not answered.
    claim = {"site": KEY, "ancestor": town.shop}
    ask = "([url, claim]) => fetch(url, { method: 'POST', mode: 'no-cors', body: JSON.stringify(claim) })"
    async with page.expect_event("console", lambda message: "403" in message.text):
        await page.evaluate(f"(args) => {{ ({ask})(args); }}", [town.gateway + TOKEN, claim])
    watch.expect("403")
    assert town.calls == [(TOKEN, 403, "")]
