"""``build.py soak``: one page for a long time, with everything that happens to pages, and the books at its end."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Route, async_playwright
from playwright.async_api import Error as BrowserError

from .browser import ensure_chromium, flags
from .failure import SetupError
from .serve import make_app, serving
from .site import build_site
from .soaking import Check, Plan, Soak
from .visits.driver import visitor
from .visits.faults import deal
from .visits.judge import Outcome
from .visits.report import keep, markdown

TINY = "tests/data/tiny/tiny-qwen2-Q4_1-tied.gguf"
MODEL_ADDRESS = "/soak-model.gguf"
REBUILDS = 1000
"""An hour; the page's own default is meant for people."""
# After two or three crashes of its GPU process Chromium would refuse every adapter until it is started again.
FORGIVING = ("--disable-gpu-process-crash-limit", "--disable-domain-blocking-for-3d-apis")
WIDTH = 60


def run(options: argparse.Namespace, root: Path) -> int:
    """Prints what held and what did not; exit status 1 when anything is off. Raises SetupError."""
    dist = build_site(root).dist
    checks: list[Check] = []
    outcomes: list[Outcome] = []
    try:
        if options.alternations or options.aborts or options.losses:
            with serving(make_app(dist)) as url:
                checks = asyncio.run(_soak(options, root, url))
            print(table(checks))
        if options.visits:
            outcomes = asyncio.run(_visits(options, root, dist))
    except BrowserError as error:
        raise SetupError(f"The browser could not run the soak: {error.message.splitlines()[0]}") from error
    held = all(check.holds for check in checks) and not any(outcome.wrong for outcome in outcomes)
    return 0 if held else 1


def table(checks: list[Check]) -> str:
    """A line for each check, with both sides where they differ."""
    lines = []
    for check in checks:
        said = f"{check.found!r}"[:WIDTH] if check.holds else f"{check.found!r} instead of {check.wanted!r}"
        lines.append(f"  {'ok ' if check.holds else 'OFF'}  {check.name:52} {said}")
    return "\n".join(lines)


def plan_of(options: argparse.Namespace) -> Plan:
    return Plan(options.alternations, options.aborts, options.losses, options.tokens, options.seed)


def client_options(options: argparse.Namespace) -> dict[str, Any]:
    """For ``createClient``."""
    made = {
        "adapter": options.adapter,
        "model": options.model or MODEL_ADDRESS,
        "vision": options.vision,
        "poolMiB": options.pool,
    }
    return {**made, "rebuildsPerHour": REBUILDS} if options.losses else made


async def put_through(browser: Browser, url: str, options: argparse.Namespace, root: Path) -> list[Check]:
    """The soak in a page of ``browser``, which must have been started with ``FORGIVING``, of the site at ``url``."""

    async def model(route: Route) -> None:
        await route.fulfill(path=root / TINY, content_type="application/octet-stream")

    page = await browser.new_page()
    page.set_default_timeout(600_000)
    page.on("pageerror", lambda error: print(f"  page error: {error}", flush=True))
    await page.route(f"**{MODEL_ADDRESS}", model)
    await Soak.count_buffers(page)
    await page.goto(f"{url}/style.css")
    session = await browser.new_browser_cdp_session()

    async def crash() -> None:
        await session.send("Browser.crashGpuProcess")

    return await Soak(page, client_options(options), plan_of(options), crash).run()


async def _visits(options: argparse.Namespace, root: Path, dist: Path) -> list[Outcome]:
    """Goes on the visits, in as many browsers side by side as are asked for, and prints what came of them."""
    wishes = {"adapter": options.adapter, "poolMiB": options.pool}
    if options.model:
        wishes["model"] = options.model
    visits = deal(options.visits, options.seed)

    async def in_a_browser(number: int) -> tuple[list[Outcome], str]:
        async with _browser(options.adapter) as browser, visitor(browser, root, dist, **wishes) as made:
            part = visits[number :: options.browsers]
            return await made.go_on(part, lambda line: print(line, flush=True)), made.adapter

    found = await asyncio.gather(*map(in_a_browser, range(options.browsers)))
    outcomes = [outcome for part, _ in found for outcome in part]
    adapter = found[0][1]
    print(f"Visits on {adapter}, seed {options.seed}.", markdown(outcomes), sep="\n")
    if options.keep:
        print(f"Written: {keep(outcomes, adapter, options.seed, root / 'docs' / 'results')}")
    return outcomes


async def _soak(options: argparse.Namespace, root: Path, url: str) -> list[Check]:
    async with _browser(options.adapter) as browser:
        return await put_through(browser, url, options, root)


@asynccontextmanager
async def _browser(adapter: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        arguments = [*flags(adapter), *FORGIVING]
        browser = await playwright.chromium.launch(executable_path=ensure_chromium(), args=arguments)
        try:
            yield browser
        finally:
            await browser.close()
