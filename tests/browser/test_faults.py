"""The stream of the cloud cut after each of its bytes: what is shown goes on as if it had never been cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from pyapp.setup.visits.driver import visitor
from pyapp.setup.visits.faults import CLOUD, NONE, Visit
from tests.browser.test_soak import forgiving

__all__ = ["forgiving"]

ROOT = Path(__file__).parents[2]
TOKENS = 6


@pytest.mark.parametrize("how", ["cut", "closed"])
async def test_a_stream_cut_after_any_byte_is_gone_on_with(forgiving: Browser, dist: Path, how: str) -> None:
    """``cut``: the connection breaks; ``closed``: the answer ends as if that were all."""
    async with visitor(forgiving, ROOT, dist, tokens=TOKENS, adapter="software") as made:
        made.upstream.sizes = (7,)
        whole = Visit(0, "prefer_in_cloud", NONE, 0, NONE, 0, "exact", fresh=False)
        await made.open(whole)
        assert (await made.write_on(whole)).wrong == ()
        length = len(made.world.sent)
        assert length > 100
        wrong: list[Any] = []
        by_device = 0
        fault = next(each for each in CLOUD if each.name == how)
        for at in range(length):
            made.world.cut_after = at
            outcome = await made.write_on(Visit(at, "prefer_in_cloud", NONE, 0, fault, 99, "exact", fresh=False))
            wrong += [(at, complaint) for complaint in outcome.wrong]
            by_device += outcome.detected is not None
        assert not wrong
        assert by_device > length / 2, "the device has to take over"
