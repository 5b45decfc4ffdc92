"""How a plan is cut into submits of bounded work, and what of them is measured."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.engine.bounds import FIRST_SHARE, LEAST_SHARE, MOST_SECONDS, Bounds, Spans, work_of
from pyapp.engine.steps import AHEAD_ROWS, IN_FLIGHT, ResidentSteps
from pyapp.gpu.plan import Dispatch, MemoryPlan, Plan, Shader

ROWS = st.lists(st.tuples(st.floats(0, 1e9), st.booleans()), min_size=1, max_size=20)
TILES = 8
TILE = 4


def plan_of(rows: list[tuple[float, bool]]) -> Plan:
    """A plan with a row for each (work, whether it hangs on the tiles)."""
    dispatches = tuple(
        Dispatch(
            "x", Shader.of("x"), (), (1, TILES * TILE if tiled else 1, 1), bytes=0, flops=int(work), per_tile=tiled
        )
        for work, tiled in rows
    )
    return Plan("x", dispatches, MemoryPlan({}, {}, 0, 0), TILE)


def all_parts(bounds: Bounds, spans: Spans, tiles: int, most: float) -> list[Spans]:
    parts, rest = [], spans
    while rest:
        part, rest = bounds.cut(rest, tiles, most)
        parts.append(part)
    return parts


def rows_of(spans: Spans) -> list[int]:
    return list(chain.from_iterable(range(*span) for span in spans))


def test_a_byte_counts_as_the_operations_done_meanwhile() -> None:
    def work(nbytes: int, flops: int) -> float:
        return work_of(Dispatch("x", Shader.of("x"), (), (1, 1, 1), nbytes, flops))

    assert (work(100, 200), work(100, 2000), work(0, 0)) == (1000, 2000, 1)


@given(ROWS, st.integers(1, TILES), st.floats(0, 3e9), st.data())
def test_every_row_once_in_order_and_no_more_work_than_asked(
    rows: list[tuple[float, bool]], tiles: int, most: float, data: st.DataObject
) -> None:
    middle = data.draw(st.integers(0, len(rows)))
    spans = tuple(s for s in ((0, middle), (min(middle + 1, len(rows)), len(rows))) if s[0] < s[1])
    bounds = Bounds(plan_of(rows))
    parts = all_parts(bounds, spans, tiles, most)
    assert [row for part in parts for row in rows_of(part)] == rows_of(spans)
    assert all(begin < end for part in parts for begin, end in part)
    slack = 1e-6 * bounds.work(spans, tiles) + 1e-6
    for part, following in zip(parts, [*parts[1:], ()][: len(parts)], strict=True):
        work = bounds.work(part, tiles)
        assert work <= most + slack or len(rows_of(part)) == 1
        if following:  # no part is smaller than it must be
            first = rows_of(following)[0]
            assert work + bounds.work(((first, first + 1),), tiles) > most - slack


def test_rows_of_a_chunk_count_by_its_tiles() -> None:
    bounds = Bounds(plan_of([(800, True), (100, False)]))
    assert bounds.work(((0, 2),), TILES) == 900
    assert bounds.work(((0, 2),), 2) == 300
    assert bounds.most(0.0) == 900 * FIRST_SHARE
    assert bounds.most(1e-3) == MOST_SECONDS / 1e-3
    least = 900 * LEAST_SHARE
    assert bounds.telling(least, 1e9) > 0 == bounds.telling(least - 1, 1e9)
    # On a device so slow that no part is large, what a submit may have is measured, or nothing ever would be.
    assert bounds.telling(20, most=40) == 20
    assert bounds.telling(19, most=40) == 0


class Gpu:
    """A device that takes ``seconds`` a unit of work; what was submitted, and how many submits waited at most."""

    def __init__(self, rows: int, seconds: float, tile: int = 1) -> None:
        self.seconds = seconds
        self.parts: list[tuple[Spans, float, Any]] = []
        self.measured: list[float] = []
        self.flying = self.most_flying = self.waits = 0
        self.pace = 0.0
        self.plan = replace(plan_of([(100, False)] * rows), tile=tile)
        self.steps = ResidentSteps(self, self)  # type: ignore[arg-type]

    def submit(
        self, spans: Spans, *, tiles: int, work: float = 0.0, repeat: int = 1, copy: Any = None, staging: Any = None,
        clear: Any = None,
    ) -> Any:  # fmt: skip
        assert (clear is None) == (copy is None)  # what is copied is cleared behind it, and nothing before
        self.parts += [(spans, work, copy)] * repeat
        self.flying += staging is None  # with a copy it is for whoever asked for it to wait
        self.most_flying = max(self.most_flying, self.flying)
        self.measured.append(work)
        return copy

    def submitted(self) -> float:
        return self.measured[-1]

    async def settled(self, work: float) -> None:
        await asyncio.sleep(0)
        self.flying -= 1
        self.waits += 1
        if work:
            self.pace = self.seconds

    async def run(self, repeat: int = 1) -> list[list[int]]:
        self.parts.clear()
        self.most_flying = self.flying = self.waits = 0
        whole = ((0, len(self.plan.dispatches)),)
        copy: Any = "copied"
        assert await self.steps.run(whole, repeat=repeat, copy=copy, staging="staging", clear=copy) == "copied"
        return [rows_of(spans) for spans, _, _ in self.parts]


async def test_a_small_part_goes_first_and_then_all_that_the_bound_allows() -> None:
    gpu = Gpu(16, seconds=1e-6)
    assert await gpu.run() == [[0, 1], list(range(2, 16))]
    assert gpu.waits == 1, "for the first part, which tells the pace"
    assert await gpu.run() == [list(range(16))]
    assert await gpu.run(repeat=4) == [list(range(16))] * 4
    assert (gpu.waits, gpu.most_flying) == (0, 0)


async def test_a_slow_device_gets_many_submits_two_at_a_time() -> None:
    gpu = Gpu(16, seconds=MOST_SECONDS / 300)  # three rows a bound
    await gpu.run()
    assert await gpu.run() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14], [15]]
    assert gpu.most_flying <= IN_FLIGHT
    assert [copy for *_, copy in gpu.parts] == [None] * 5 + ["copied"]
    gpu.seconds *= 10
    await gpu.run()
    assert await gpu.run() == [[row] for row in range(16)], "a row is not cut"


async def test_what_is_too_small_to_tell_anything_is_not_measured() -> None:
    gpu = Gpu(160, seconds=1.0)
    await gpu.steps.run(((0, 1),))
    assert (gpu.parts[0][1], gpu.pace) == (0.0, 0.0)


async def test_chunks_of_a_long_prompt_wait_for_each_other_too() -> None:
    gpu = Gpu(16, seconds=1e-6)
    await gpu.run()
    gpu.parts.clear()
    gpu.waits = gpu.most_flying = 0
    for _ in range(8):
        await gpu.steps.run(((0, 16),))
    assert len(gpu.parts) == 8
    assert (gpu.waits, gpu.most_flying) == (7, IN_FLIGHT)


async def test_the_first_rows_of_a_chunk_go_ahead_of_the_rest() -> None:
    rows = 4 * AHEAD_ROWS
    gpu = Gpu(rows, seconds=1e-6, tile=32)
    await gpu.run()
    assert await gpu.run() == [list(range(AHEAD_ROWS)), list(range(AHEAD_ROWS, rows))]
    assert [copy for *_, copy in gpu.parts] == [None, "copied"]
    assert gpu.measured[-2:] == [0, 100 * rows], "the work that is measured is that of both"
    assert gpu.waits == 0
    gpu.parts.clear()
    copy: Any = "copied"
    await gpu.steps.run(((0, AHEAD_ROWS),), copy=copy, staging="staging", clear=copy)
    assert [rows_of(spans) for spans, *_ in gpu.parts] == [list(range(AHEAD_ROWS))], "nothing is left to go behind them"
    gpu.parts.clear()
    await gpu.steps.run(((0, rows),), repeat=2, copy=copy, staging="staging", clear=copy)
    assert [rows_of(spans) for spans, *_ in gpu.parts] == [list(range(rows))] * 2, "not of what is repeated"
    gpu.parts.clear()
    await gpu.steps.run(((5, rows - 3), (rows - 2, rows)), copy=copy, staging="staging", clear=copy)
    assert [rows_of(spans) for spans, *_ in gpu.parts] == [
        list(range(5, 5 + AHEAD_ROWS)), [*range(5 + AHEAD_ROWS, rows - 3), rows - 2, rows - 1]
    ]  # fmt: skip


async def test_a_pace_that_was_far_too_slow_once_is_found_out() -> None:
    gpu = Gpu(160, seconds=1e-6)
    gpu.pace = 1e-3  # sixteen seconds for the plan: parts of one row
    await gpu.run()
    assert len(gpu.parts) < 10


async def test_whoever_is_cancelled_has_queued_no_more_than_two_submits() -> None:
    gpu = Gpu(16, seconds=MOST_SECONDS / 100)
    await gpu.run()
    gpu.parts.clear()
    run = asyncio.ensure_future(gpu.steps.run(((0, 16),)))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert len(gpu.parts) <= IN_FLIGHT
