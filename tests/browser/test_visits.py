"""The short form of the scripted visits of ``build.py soak``: each visit a test, one after another in one page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from pyapp.setup.visits.driver import Visitor, visitor
from pyapp.setup.visits.faults import Visit, deal
from pyapp.setup.visits.judge import Outcome
from pyapp.setup.visits.report import available
from tests.browser.test_soak import forgiving

__all__ = ["forgiving"]

ROOT = Path(__file__).parents[2]
SEED = 1
VISITS = deal(40, SEED)
AGAIN = f"python3 build.py soak --alternations 0 --aborts 0 --losses 0 --visits {len(VISITS)} --seed {SEED}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def made(forgiving: Browser, dist: Path) -> AsyncIterator[Visitor]:
    async with visitor(forgiving, ROOT, dist, adapter="software") as made:
        yield made


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return []


@pytest.mark.parametrize("visit", VISITS, ids=str)
async def test_a_visit_ends_in_a_whole_text_or_one_clear_error(
    made: Visitor, outcomes: list[Outcome], visit: Visit
) -> None:
    outcome = await made.go(visit)
    outcomes.append(outcome)
    assert not outcome.wrong, AGAIN


def test_the_visits_had_all_that_can_happen(outcomes: list[Outcome]) -> None:
    if len(outcomes) < len(VISITS):
        return  # some of them were asked for by name
    texts, asked = available(outcomes)
    assert texts == asked > 0
    assert {outcome.ended for outcome in outcomes} >= {"text", "error no_device", "error cloud_unavailable"}
    assert any(outcome.taken_over is not None for outcome in outcomes)
