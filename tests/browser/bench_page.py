"""The bench page on the software adapter, and what it posts."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

from playwright.async_api import Page, Route

from pyapp.setup.worker_script import put_before_worker
from tests.browser.conftest import Open
from tests.browser.door import serve_data


async def bench(open_page: Open, site: str, *, script: str = "", **query: str) -> list[dict[str, Any]]:
    """The rows that the page posts until it says that it is done. ``script`` runs before its worker's own."""
    rows: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def log(route: Route) -> None:
        rows.put_nowait(json.loads(route.request.post_data or ""))
        await route.fulfill(status=204)

    page: Page = await open_page("")
    await page.route("**/log", log)
    if script:
        await put_before_worker(page, script, "bench-worker.js")
    await serve_data(page)
    await page.goto(f"{site}/bench.html?{urlencode({'adapter': 'software', **query})}")
    posted: list[dict[str, Any]] = []
    while not posted or "done" not in posted[-1]:
        posted.append(await asyncio.wait_for(rows.get(), 300))
    return posted
