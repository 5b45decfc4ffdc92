"""The cloud stream through the browser's own ``fetch``, from Python in a worker under the site's policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from pyapp.gateway.static import StaticSite
from pyapp.routing.wire import Text, Usage, encode_done, encode_event
from tests.browser.pyodide_page import PyodidePage
from tests.unit.gateway_fakes import serve_app

CASES = "browser/cloud_cases.py"
TEXT = "Une tasse émaillée 红色的🍵\u2028\r\n fin"
WHOLE = encode_event(Text(TEXT)) + encode_event(Usage(9, 7, "stop")) + encode_done()


@dataclass
class Gateway:
    """A scripted gateway on the site's own origin."""

    dist: Path
    requests: list[Any] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> Starlette:
        case = Route("/case/{name}", self.case, methods=["POST"])
        icon = Route("/favicon.ico", lambda request: Response(status_code=204))
        return Starlette(routes=[case, icon, Mount("/", StaticSite(self.dist))])

    async def case(self, request: Request) -> Response:
        self.requests.append(await request.json())
        name = request.path_params["name"]
        if name == "html":
            return HTMLResponse("<html>home</html>")
        if name == "busy":
            error = {"code": "cloud_unavailable", "message": "Too many at once."}
            return JSONResponse({"error": error}, 429, {"retry-after": "9"})
        if name == "silent":
            await self._until_left(request)
            return Response()
        body = {"whole": self._whole, "cut": self._cut, "broken": self._broken, "endless": self._endless}[name]
        return StreamingResponse(body(), media_type="text/event-stream")

    async def _until_left(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.left.set()

    async def _whole(self) -> AsyncIterator[bytes]:
        for at in range(len(WHOLE)):
            yield WHOLE[at : at + 1]
            await asyncio.sleep(0.001)

    async def _cut(self) -> AsyncIterator[bytes]:
        yield encode_event(Text("abc"))

    async def _broken(self) -> AsyncIterator[bytes]:
        yield encode_event(Text("abc"))
        await asyncio.sleep(0.2)
        raise ConnectionAbortedError  # the server then closes the connection inside the body

    async def _endless(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield encode_event(Text("abc"))
                await asyncio.sleep(0.05)
        finally:
            self.left.set()


@asynccontextmanager
async def python(page: Page, dist: Path) -> AsyncIterator[tuple[PyodidePage, Gateway, str]]:
    scripted = Gateway(dist)
    async with serve_app(scripted.app(), lifespan="off") as url:
        # Any document of the site will do: the worker takes over its policy.
        await page.goto(f"{url}/style.css")
        yield await PyodidePage.start(page, url), scripted, url
        await page.goto("about:blank")


async def test_answers_and_failures_through_fetch(page: Page, dist: Path) -> None:
    async with python(page, dist) as (worker, gateway, url):

        async def answer(name: str, **seconds: float) -> Any:
            return await worker.run("browser.cloud_cases", "answer", [CASES], url=f"{url}/case/{name}", **seconds)

        assert await answer("whole") == {"text": TEXT, "usage": [9, 7, "stop"], "error": None}
        assert gateway.requests[0]["prompt"] == "Décris la tasse 🍵"

        html = (await answer("html"))["error"]
        assert (html["code"], html["details"]["kind"]) == ("cloud_unavailable", "not_a_stream")

        busy = (await answer("busy"))["error"]
        assert busy["message"] == "Too many at once."
        assert busy["details"] == {"kind": "http", "status": 429, "retry_after": "9", "characters": 0}

        cut = await answer("cut")
        assert (cut["text"], cut["error"]["details"]["kind"]) == ("abc", "cut")

        broken = await answer("broken")
        assert (broken["text"], broken["error"]["details"]["kind"]) == ("abc", "network")

        silent = (await answer("silent", first_seconds=0.5))["error"]
        assert silent["details"] == {"kind": "timeout", "seconds": 0.5, "characters": 0}
        await asyncio.wait_for(gateway.left.wait(), 5)

        nobody = await worker.run("browser.cloud_cases", "answer", [CASES], url="http://127.0.0.1:9/")
        assert nobody["error"]["details"] == {"kind": "network", "characters": 0}
        assert "cannot be reached" in nobody["error"]["message"]


async def test_aborts_reach_the_gateway_through_fetch(page: Page, dist: Path) -> None:
    async with python(page, dist) as (worker, gateway, url):
        for name, how, expected in (
            ("endless", "leave", "abc"),
            ("endless", "cancel", "cancelled"),
            ("silent", "cancel", "cancelled"),
        ):
            gateway.left.clear()
            got = await worker.run("browser.cloud_cases", "leave", [CASES], url=f"{url}/case/{name}", how=how)
            assert got == expected
            await asyncio.wait_for(gateway.left.wait(), 5)
