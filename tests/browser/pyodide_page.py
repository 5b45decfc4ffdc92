"""Runs test modules inside Pyodide in a worker of a real page: the same FFI path as the product's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page

TESTS = Path(__file__).parents[1]
_START = """([source, site]) => {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  window.python = new Worker(url, { type: "module" });
  window.ask = (message) => new Promise((resolve, reject) => {
    window.python.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve(data.value));
    window.python.onerror = (event) => reject(new Error(event.message));
    window.python.postMessage(message);
  });
  return window.ask({ site });
}"""


class PyodidePage:
    """A page with Python in a worker. ``files`` are paths below ``tests/``, importable there by the same names."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @classmethod
    async def start(cls, page: Page, site: str) -> PyodidePage:
        """``page`` must be on the site already."""
        await page.evaluate(_START, [(TESTS / "browser" / "python_worker.js").read_text(), site])
        return cls(page)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        browser: Browser,
        site: str,
        timeout: float = 30_000,
        prepare: Callable[[Page], Awaitable[None]] | None = None,
    ) -> AsyncIterator[PyodidePage]:
        """A page of its own, for fixtures that outlive a test; ``timeout`` in ms, ``prepare`` before it goes to the
        site."""
        page = await browser.new_page()
        page.set_default_timeout(timeout)
        if prepare:
            await prepare(page)
        await page.goto(site + "/style.css")  # any document of the site will do: the worker takes over its policy
        yield await cls.start(page, site)
        await page.close()

    async def run(self, module: str, call: str, files: list[str], **args: Any) -> Any:
        """Awaits ``module.call(**args)`` in the worker and returns its result as JSON does."""
        texts = {name: (TESTS / name).read_text() for name in files}
        return await self._page.evaluate(
            "(message) => window.ask(message)", {"files": texts, "module": module, "call": call, "args": args}
        )
