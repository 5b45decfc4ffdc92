"""Goes on visits: one page of the site, a new client for each visit, one after another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page

from pyapp.gateway.app import CLOUD_STREAM_PATH

from ..serve import serving
from .faults import NONE, Visit
from .judge import Outcome, Seen, Server, Truth, judged
from .upstream import Upstream
from .world import FAULTS_JS, MODEL, REFUSED, World

PAGE_JS = (Path(__file__).parents[1] / "data" / "visits_page.js").read_text(encoding="utf-8")
MODEL_FILE = "tests/data/tiny/tiny-qwen2-Q4_0-untied.gguf"
DEADLINE = 90.0
"""Seconds within which a visit must end."""
PROMPT = "Once"
"""This model's greedy answer to it repeats itself little, and at no step are two tokens nearly as likely."""
TOKENS = 48
STALL = 3
"""Seconds after which a GPU from which nothing comes is given up, where one stalls."""
CLOSING = 30.0
"""Seconds more that a page may take to forget what was stored and to close the client."""
HUNG: Seen = {"ended": "hung", "events": [], "opened": None, "struck": None, "status": None, "error": None}


@dataclass
class Visitor:
    """Goes to ``url``, which ``world`` serves, in ``page``. ``options`` are more of those of ``createClient``."""

    page: Page
    url: str
    world: World
    upstream: Upstream
    options: dict[str, Any]
    tokens: int = TOKENS
    deadline: float = DEADLINE
    truth: Truth | None = None
    adapter: str = ""
    """The GPU's name, once arrived."""

    async def arrive(self) -> None:
        """Opens a page that runs nothing by itself, and finds out what the whole text is."""
        browser = self.page.context.browser
        assert browser is not None
        session = await browser.new_browser_cdp_session()

        async def crash() -> None:
            await session.send("Browser.crashGpuProcess")

        await self.page.expose_function("crashGpu", crash)
        await self._load()
        seen = await self._seen(Visit(-1, "only_on_device", NONE, 0, NONE, 0, "exact", fresh=True))
        text = "".join(event["text"] for event in seen["events"] if event["type"] == "text")
        assert seen["ended"] == "done", seen["error"]
        self.truth = Truth(text, seen["events"][-2]["completionTokens"])
        self.upstream.text = text
        self.adapter = seen["status"]["adapter"]

    async def _load(self) -> None:
        await self.page.goto(f"{self.url}/style.css")
        await self.page.evaluate(f"() => {{ {FAULTS_JS} }}")
        await self.page.evaluate(PAGE_JS)

    async def go_on(self, visits: Sequence[Visit], say: Callable[[str], None]) -> list[Outcome]:
        """All of them, one after another; ``say`` hears of those that went wrong."""
        outcomes = []
        for visit in visits:
            outcome = await self.go(visit)
            outcomes.append(outcome)
            if outcome.wrong:
                say(f"  visit {visit}: {'; '.join(outcome.wrong)}")
        return outcomes

    async def go(self, visit: Visit) -> Outcome:
        """One visit. A page that answers no more is a visit that hung: the next one gets a fresh page."""
        try:
            async with asyncio.timeout(self.deadline + CLOSING):
                seen = await self._seen(visit)
        except TimeoutError:
            seen = HUNG
        if seen["ended"] == "hung":
            await self._load()  # which ends whatever still works, and holds the GPU or files
        return self._judged(visit, seen)

    async def open(self, visit: Visit) -> None:
        """A client that stays, for ``write_on``."""
        self._meet(visit)
        await self.page.evaluate("(options) => visits.open(options)", self._options(visit))

    async def write_on(self, visit: Visit) -> Outcome:
        """One more text of the client that ``open`` made."""
        self._meet(visit)
        argument = {"request": self._request, "deadline": 1000 * self.deadline}
        return self._judged(visit, await self.page.evaluate("(argument) => visits.text(argument)", argument))

    def _judged(self, visit: Visit, seen: Seen) -> Outcome:
        assert self.truth is not None, "arrive first"
        struck = self.world.struck or self.upstream.struck
        server = Server(list(self.world.exchanges), list(self.upstream.strange), struck and 1000 * struck)
        return judged(visit, seen, server, self.truth)

    def _meet(self, visit: Visit) -> None:
        self.world.set(visit)
        self.upstream.set(visit.cloud.name, visit.cloud_at, visit.style)

    def _options(self, visit: Visit) -> dict[str, Any]:
        cloud = REFUSED if visit.cloud.name == "down" else CLOUD_STREAM_PATH
        made = {"mode": visit.mode, "cloud": cloud, "model": MODEL, "vision": None, "cloudWhileLoading": visit.early}
        made |= self.options
        return {**made, "stallSeconds": STALL} if visit.device.name == "stall" else made

    @property
    def _request(self) -> dict[str, Any]:
        return {"prompt": PROMPT, "maxTokens": self.tokens}

    async def _seen(self, visit: Visit) -> Seen:
        self._meet(visit)
        argument = {
            "fault": self.world.script,
            "options": self._options(visit),
            "request": self._request,
            "fresh": visit.fresh,
            "crashAt": visit.device_at if visit.device.name == "crash" else None,
            "deadline": 1000 * self.deadline,
        }
        return dict(await self.page.evaluate("(argument) => visits.run(argument)", argument))


@asynccontextmanager
async def visitor(
    browser: Browser, root: Path, dist: Path, *, tokens: int = TOKENS, **options: Any
) -> AsyncIterator[Visitor]:
    """Serves the site in ``dist`` and arrives there with a page of ``browser``, which must live through crashes of its
    GPU process (``soak.FORGIVING``). ``options`` are more of those of ``createClient``."""
    upstream = Upstream()
    model = (root / MODEL_FILE).read_bytes()
    with serving(upstream.app()) as address:
        world = World.of(dist, address, model)
        with serving(world) as url, _quiet():
            page = await browser.new_page()
            page.set_default_timeout(300_000)
            made = Visitor(page, url, world, upstream, options, tokens)
            await made.arrive()
            yield made
            await page.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Answers without an end are what the servers are there for: nobody wants to read of them."""
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "tandem.gateway")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
