"""The short form of the scripted visits of ``build.py soak``."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser

from pyapp.setup.visits.driver import visitor
from pyapp.setup.visits.faults import deal
from pyapp.setup.visits.report import available, markdown
from tests.browser.test_soak import forgiving

__all__ = ["forgiving"]

ROOT = Path(__file__).parents[2]
SEED = 1
VISITS = 40


async def test_every_visit_ends_in_a_whole_text_or_one_clear_error(forgiving: Browser, dist: Path) -> None:
    async with visitor(forgiving, ROOT, dist, adapter="software") as made:
        wrong: list[str] = []
        outcomes = await made.go_on(deal(VISITS, SEED), wrong.append)
    assert not wrong, (
        f"python3 build.py soak --alternations 0 --aborts 0 --losses 0 --visits {VISITS} --seed {SEED}"
        + ("\n".join(["", *wrong]))
    )
    print(markdown(outcomes))
    texts, asked = available(outcomes)
    assert texts == asked > 0
    assert {outcome.ended for outcome in outcomes} >= {"text", "error no_device", "error cloud_unavailable"}
    assert any(outcome.taken_over is not None for outcome in outcomes)
