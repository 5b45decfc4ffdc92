"""The stream of the cloud cut after each of its bytes: what is shown goes on as if it had never been cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.async_api import Browser

from pyapp.setup.visits.driver import visitor
from pyapp.setup.visits.faults import CLOUD, NONE, Visit
from tests.browser.test_soak import forgiving

__all__ = ["forgiving"]

ROOT = Path(__file__).parents[2]
TOKENS = 3


async def test_a_stream_cut_after_any_byte_is_gone_on_with(forgiving: Browser, dist: Path) -> None:
    """At every other byte the connection breaks; at those between, the answer ends as if that were all."""
    faults = [fault for fault in CLOUD if fault.name in ("cut", "closed")]
    async with visitor(forgiving, ROOT, dist, tokens=TOKENS, adapter="software") as made:
        made.upstream.sizes = (7,)
        whole = Visit(0, "prefer_in_cloud", NONE, 0, NONE, 0, "exact", fresh=False)
        await made.open(whole)
        assert (await made.write_on(whole)).wrong == ()
        answer = made.world.sent
        assert answer.count(b"text") > 1
        wrong: list[Any] = []
        noticed = 0
        for at in range(len(answer)):
            made.world.cut_after = at
            fault = faults[at % 2]
            outcome = await made.write_on(Visit(at, "prefer_in_cloud", NONE, 0, fault, 99, "exact", fresh=False))
            wrong += [(at, fault.name, complaint) for complaint in outcome.wrong]
            noticed += outcome.detected is not None
        assert not wrong
        assert noticed >= answer.index(b"usage"), "until all of the text is there, the device has to take over"
