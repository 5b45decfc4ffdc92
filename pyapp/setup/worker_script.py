"""Scripts that run in a page's worker before ours, to watch the browser below it or to make it fail."""

from __future__ import annotations

from playwright.async_api import BrowserContext, Page, Route


async def put_before_worker(where: Page | BrowserContext, script: str, file: str = "worker.js") -> None:
    """``script``, JavaScript, from the next worker on. ``file``: which worker's."""

    async def worker(route: Route) -> None:
        response = await route.fetch()
        await route.fulfill(response=response, body=script + await response.text())

    await where.route(f"**/{file}", worker)
