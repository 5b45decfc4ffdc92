"""Browser tests: one Chromium for the session, a fresh context for each page, and no page may complain in silence.

Playwright's async interface is used throughout: its sync one leaves a running event loop behind that would break the
other asyncio tests of the run. All tests here share the session's loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright, expect

from .store_site import StoreSite

HERE = Path(__file__).parent
# Nothing but this machine can be reached: a request to another host fails, and is reported too.
ONLY_LOCAL = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
LOCAL = {"127.0.0.1", "localhost"}

# Two browsers and their software GPUs share the machine's cores: a page may be held up for longer than the 5 s that
# Playwright waits for what it expects. Only a test that fails waits this long.
expect.set_options(timeout=30_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def site(server: str) -> str:
    """Base URL of the built site with its gateway, without a slash at its end."""
    return server.rstrip("/")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: Path) -> AsyncIterator[Browser]:
    """A headless Chromium with WebGPU on SwiftShader, that reaches this machine only."""
    from pyapp.setup.browser import flags

    async with async_playwright() as playwright:
        media = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        arguments = [*flags("software"), ONLY_LOCAL, *media]
        launched = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield launched
        await launched.close()


@dataclass
class Watch:
    """What pages did that no page should do. A test that provokes an error takes it off with ``expect``."""

    faults: list[str] = field(default_factory=list)

    def page(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text} ({message.location.get('url')})")

    def _request(self, request: Request) -> None:
        url = request.url
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname not in LOCAL:
            self.faults.append(f"request to another host: {url}")

    def expect(self, words: str) -> None:
        """Takes off faults that contain ``words``; there must be one."""
        kept = [fault for fault in self.faults if words not in fault]
        assert len(kept) < len(self.faults), f"no fault with {words!r} in {self.faults}"
        self.faults[:] = kept


@pytest.fixture
def watch() -> Watch:
    return Watch()


Open = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser, site: str, watch: Watch) -> AsyncIterator[Open]:
    """``await open_page("/?lang=en", init=script, **context options)`` -> Page. Faults fail the test at its end.

    ``init`` is JavaScript that runs before the page's own; ``fake`` puts tests/browser/fake_tandem.js in the place of
    tandem.js, for what concerns the drawing alone.
    """
    contexts: list[Any] = []

    async def make(path: str = "/", *, init: str = "", fake: bool = False, **options: Any) -> Page:
        context = await browser.new_context(**{"locale": "en-US", **options})
        contexts.append(context)
        context.on("page", watch.page)
        if init:
            await context.add_init_script(init)
        if fake:
            await context.route("**/tandem.js", lambda route: route.fulfill(path=HERE / "fake_tandem.js"))
        page = await context.new_page()
        if path:
            await page.goto(path if "://" in path else site + path)
        return page

    yield make
    for context in contexts:
        await context.close()
    assert watch.faults == []


@pytest_asyncio.fixture(loop_scope="session")
async def page(open_page: Open) -> Page:
    """An empty page (``about:blank``), watched."""
    return await open_page("")


@pytest.fixture(scope="session")
def store_server(dist: Path) -> Iterator[tuple[str, StoreSite]]:
    """The address of a site for the tests of the store, and what it has."""
    from pyapp.setup.serve import make_app, serving

    site = StoreSite(make_app(dist))
    with serving(site) as url:
        yield url, site


@pytest_asyncio.fixture(loop_scope="session")
async def lasting(chromium: Path, tmp_path: Path) -> AsyncIterator[BrowserContext]:
    """An ordinary profile on disk, where all of Playwright's other contexts are private windows."""
    from pyapp.setup.browser import flags

    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=chromium, args=flags("software"), headless=True
        )
        yield context
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def private(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A private window."""
    context = await browser.new_context()
    yield context
    await context.close()
