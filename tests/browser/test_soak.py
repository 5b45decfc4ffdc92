"""The short form of ``build.py soak``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from pyapp.setup.browser import flags
from pyapp.setup.cli import make_parser
from pyapp.setup.soak import FORGIVING, put_through, table
from tests.browser.conftest import ONLY_LOCAL

ROOT = Path(__file__).parents[2]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def forgiving(chromium: Path) -> AsyncIterator[Browser]:
    """A browser that lives through any number of crashes of its GPU process."""
    async with async_playwright() as playwright:
        arguments = [*flags("software"), *FORGIVING, ONLY_LOCAL]
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        await browser.close()


async def test_a_short_soak_leaves_everything_as_it_was(forgiving: Browser, site: str) -> None:
    short = ["soak", "--alternations", "6", "--aborts", "8", "--losses", "1", "--tokens", "12"]
    checks = await put_through(forgiving, site, make_parser().parse_args(short), ROOT)
    assert all(check.holds for check in checks), "\n" + table(checks)
    found = {check.name: check.found for check in checks}
    assert found["bytes on the GPU"] > 18e6
    assert found["lease"] == {"holder": None, "waiting": 0}
