"""How a plan is cut into submits where some of its weights pass through the window."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.engine.steps import IN_FLIGHT, StreamedSteps, grouped

BLOCKS = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=20)


def test_a_block_is_waited_for_only_by_what_reads_it() -> None:
    blocks = [None, None, 5, 5, None, 6, None, None, 7]
    assert grouped(((0, 9),), blocks) == [(None, ((0, 2),)), (5, ((2, 5),)), (6, ((5, 8),)), (7, ((8, 9),))]
    assert grouped(((0, 3), (7, 8)), blocks) == [(None, ((0, 2),)), (5, ((2, 3), (7, 8)))]


@given(BLOCKS, st.data())
def test_every_row_runs_once_in_order_with_its_block_in_place(blocks: list[int | None], data: st.DataObject) -> None:
    middle = data.draw(st.integers(0, len(blocks)))
    spans = tuple(span for span in ((0, middle), (min(middle + 1, len(blocks)), len(blocks))) if span[0] < span[1])
    groups = grouped(spans, blocks)
    rows = [(row, block) for block, part in groups for low, high in part for row in range(low, high)]
    assert [row for row, _ in rows] == [row for low, high in spans for row in range(low, high)]
    assert all(blocks[row] in (None, block) for row, block in rows)
    assert all(part for _, part in groups)
    assert all(a != b for (a, _), (b, _) in pairwise(groups))


class World:
    """A plan of three rows, two of which read a block of the window each; the order of everything is written down."""

    def __init__(self, blocks: list[int | None], fail_at: int | None = None) -> None:
        self.log: list[Any] = []
        self.pending: list[asyncio.Future[None]] = []
        self.fail_at = fail_at
        dispatches = tuple(
            SimpleNamespace(operation=str(row), bindings=[SimpleNamespace(tensor=str(row), section="quants", offset=0)])
            for row in range(len(blocks))
        )
        weights = SimpleNamespace(streamed_block=lambda tensor, section, offset: blocks[int(tensor)])
        residency: Any = SimpleNamespace(sets={"m": weights}, bring=self.bring)
        replay: Any = SimpleNamespace(plan=SimpleNamespace(dispatches=dispatches), submit=self.submit)
        device: Any = SimpleNamespace(submitted=self.submitted, settled=self.settled)
        self.steps = StreamedSteps(replay, device, residency, "m")

    async def bring(self, model: str, block: int) -> None:
        await asyncio.sleep(0)
        if block == self.fail_at:
            raise OSError("the disk is gone")
        self.log.append(("block", block, sum(not future.done() for future in self.pending)))

    def submit(self, spans: Any, *, tiles: int, copy: Any = None, staging: Any = None, clear: Any = None) -> Any:
        assert clear == copy  # what is copied is cleared behind it, and nothing before
        self.log.append(("submit", spans))
        return copy

    async def settled(self, future: asyncio.Future[None]) -> None:
        await future

    def submitted(self) -> asyncio.Future[None]:
        self.pending.append(asyncio.get_running_loop().create_future())
        return self.pending[-1]


async def test_each_block_is_brought_before_what_reads_it_and_two_submits_wait_at_most() -> None:
    world = World([None, 4, 5, 6, 7])
    run = asyncio.ensure_future(world.steps.run(((0, 5),), copy="copied", clear="copied"))  # type: ignore[arg-type]
    for done in range(3):
        for _ in range(20):
            await asyncio.sleep(0)
        assert sum(not future.done() for future in world.pending) <= IN_FLIGHT
        if done < len(world.pending):
            world.pending[done].set_result(None)
    assert await run == "copied"
    assert [each[:2] for each in world.log] == [
        ("submit", ((0, 1),)),
        *[step for n in range(4) for step in (("block", 4 + n), ("submit", ((1 + n, 2 + n),)))],
    ]
    assert all(waiting < IN_FLIGHT + 1 for kind, _, *waits in world.log if kind == "block" for waiting in waits)


async def test_a_block_that_cannot_be_had_ends_the_run_before_what_reads_it() -> None:
    world = World([None, 4], fail_at=4)
    with pytest.raises(OSError, match="the disk is gone"):
        await world.steps.run(((0, 2),))
    assert [each for each in world.log if each[0] == "submit"] == [("submit", ((0, 1),))]
