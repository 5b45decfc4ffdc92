"""One page put through photos, texts, aborts and losses of the GPU, and what must be as it was afterwards."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Error as BrowserError
from playwright.async_api import Page

from .worker_script import put_before_worker

DATA = Path(__file__).parent / "data"
LEDGER = (DATA / "soak_ledger.js").read_text(encoding="utf-8")
PAGE = (DATA / "soak_page.js").read_text(encoding="utf-8")
BEFORE = -1
"""A moment to abort at: before the text has begun."""
LOSS_SHOWN = 4
"""Characters of a text that are out before the GPU is taken away."""
LOSS_TIMES = 6
"""How many times longer than others that text is, so that it is not over by then."""
Table = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How often what is done, in this order; ``tokens`` of each text, ``seed`` of the moments to abort at."""

    alternations: int = 500
    aborts: int = 200
    losses: int = 20
    tokens: int = 16
    seed: int = 1


@dataclass(frozen=True)
class Check:
    """Something that must hold at the end."""

    name: str
    wanted: Any
    found: Any

    @property
    def holds(self) -> bool:
        return bool(self.wanted == self.found)


@dataclass
class Soak:
    """Drives ``page``, a document of the site that runs nothing by itself. ``crash`` takes the GPU away;
    ``options`` are those of ``createClient``; ``say`` hears how far it is."""

    page: Page
    options: dict[str, Any]
    plan: Plan
    crash: Callable[[], Awaitable[None]]
    say: Callable[[str], None] = print
    wrong: Counter[str] = field(default_factory=Counter)
    """What went wrong on the way, and how often."""
    endings: Counter[str] = field(default_factory=Counter)
    """How the texts ended that were to be aborted: some are over before."""
    in_the_middle: int = 0
    """Losses that came while their text was being written."""

    @staticmethod
    async def count_buffers(page: Page) -> None:
        """To be called before the page goes anywhere: puts the ledger below the worker."""
        await put_before_worker(page, LEDGER)

    async def run(self) -> list[Check]:
        """Everything, and what is to be said of it. Raises playwright's Error when the page cannot even begin."""
        await self.page.evaluate(PAGE)
        await self.page.evaluate("([options, tokens]) => soak.open(options, tokens)", [self.options, self.plan.tokens])
        seen, answer, seconds = await self._first()
        begun = await self._books()
        long = {"times": LOSS_TIMES}
        wanted = await self.page.evaluate("(long) => soak.write(long)", long) if self.plan.losses else None
        for doing, times, step in (
            ("alternations", self.plan.alternations, lambda: self._alternate(seen, answer)),
            ("aborts", self.plan.aborts, self._aborter(seconds)),
            ("losses", self.plan.losses, lambda: self._lose(wanted)),
        ):
            await self._times(doing, times, step)
        last_seen, last = await self._attempt("the last answer", self._last()) or (None, None)
        ended = await self._books()
        await self.page.evaluate("() => soak.client.close()")
        left = await self.page.evaluate("() => soak.ledger")
        return [
            Check("went wrong on the way", {}, dict(self.wrong)),
            Check("some texts were aborted", True, self.endings["abort"] > 0 or not self.plan.aborts),
            Check("losses in the middle of a text", self.plan.losses, self.in_the_middle),
            Check("the last labels are the first ones", seen, last_seen),
            Check("the last text is the first one", answer, last),
            *(Check(name, begun[name], ended[name]) for name in begun),
            Check("bytes on the GPU by our own count and by the ledger", ended["bytes on the GPU"], ended["our count"]),
            Check("bytes on the GPU once closed", 0, left and left["bytes"]),
            Check("buffers on the GPU once closed", 0, left and left["buffers"]),
        ]

    async def _first(self) -> tuple[Table, Table, float]:
        """The first labels and text, which take their time, and the seconds of a text."""
        await self._both()
        seen, _ = await self._both()
        start = time.monotonic()
        answer = await self.page.evaluate("() => soak.write()")
        return seen, answer, time.monotonic() - start

    async def _last(self) -> tuple[Table, Table]:
        """Labels and text again. The text comes first, since it waits for a GPU that is on its way back."""
        await self.page.evaluate("() => soak.write()")
        return await self._both()

    async def _both(self) -> tuple[Table, Table]:
        seen = await self.page.evaluate("() => soak.look()")
        return seen, await self.page.evaluate("() => soak.write()")

    async def _books(self) -> Table:
        """What must not change: the ledger below WebGPU, and our own tables."""
        [worker] = self.page.workers
        ledger = await worker.evaluate("() => self.soakLedger")
        memory = await self.page.evaluate("() => soak.client.inspect.memory()")
        slabs = [{key: slab[key] for key in ("size", "role")} for slab in memory["slabs"]]
        return {
            "bytes on the GPU": ledger["bytes"],
            "buffers on the GPU": ledger["buffers"],
            "our count": memory["live"],
            "our objects": memory["objects"],
            "slabs": slabs,
            "tenants": memory["tenants"],
            "lease": memory["lease"],
            "filled cache": sum(span.get("filled", 0) for slab in memory["slabs"] for span in slab["spans"]),
        }

    async def _times(self, doing: str, times: int, step: Callable[[], Awaitable[None]]) -> None:
        start = told = time.monotonic()
        for number in range(times):
            await self._attempt(doing, step())
            if time.monotonic() - told > 30:
                told = time.monotonic()
                self.say(f"  {doing}: {number + 1} of {times}, {told - start:.0f} s")
        if times:
            self.say(f"  {doing}: {times} in {time.monotonic() - start:.0f} s")

    async def _attempt(self, doing: str, work: Awaitable[Any]) -> Any:
        """What ``work`` gives; None, and a line in ``wrong``, where the page throws."""
        try:
            return await work
        except BrowserError as error:
            self.wrong[f"{doing}: {error.message.splitlines()[0]}"] += 1
            return None

    def _expect(self, doing: str, wanted: Any, found: Any) -> None:
        if wanted != found:
            self.wrong[f"{doing}: {found!r:.120} instead of {wanted!r:.120}"] += 1

    async def _alternate(self, seen: Table, answer: Table) -> None:
        again_seen, again = await self._both()
        self._expect("labels", seen, again_seen)
        self._expect("text", answer, again)

    def _aborter(self, seconds: float) -> Callable[[], Awaitable[None]]:
        """Ends a text at a random moment: before it begins, at once, or anywhere up to a little after its end."""
        chance = random.Random(self.plan.seed)

        async def abort() -> None:
            moment = chance.choice((BEFORE, 0, *(chance.uniform(0, 1.1 * seconds * 1000) for _ in range(6))))
            ended = await self.page.evaluate("(ms) => soak.cut(ms)", moment)
            self.endings[str(ended["reason"])] += 1
            if ended["reason"] not in ("abort", "stop", "length"):
                self._expect("abort", "abort", ended["reason"])

        return abort

    async def _lose(self, answer: Table | None) -> None:
        """Takes the GPU away in the middle of a text, which must end as if nothing had happened."""
        await self.page.evaluate("(times) => soak.begin(times)", LOSS_TIMES)
        await self.page.wait_for_function(f"() => soak.shown.length >= {LOSS_SHOWN}")
        await self.crash()
        self.in_the_middle += not await self.page.evaluate("() => soak.ended")
        self._expect("text after a loss", answer, await self.page.evaluate("() => soak.writing"))
