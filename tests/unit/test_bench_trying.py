"""Shapes tried until time is up: compiled a dozen at a time, ahead or not, and what is left out is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

import pytest

from pyapp.bench import trying
from pyapp.bench.trying import AT_ONCE, tried
from pyapp.gpu.plan import Dispatch, MemoryPlan, Plan, Shader

LEAST = 3
TURNS = list(range(LEAST + 2 * AT_ONCE + 3))


def plan(turn: int) -> Plan:
    if turn == 1:
        raise ValueError("no such shape")
    row = Dispatch(str(turn), Shader.of("matvec", ROWS=turn), (), (1, 1, 1), 0, 0)
    return Plan("alone", (row,), MemoryPlan({}, {}, 0, 0))


class Bench:
    """Stands for the kernels, the clock and whoever tries: notes what was compiled before each turn."""

    def __init__(self, refused: int = -1, endless: int = -1) -> None:
        self.refused, self.endless = refused, endless
        self.now = 0.0
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled = 0
        self.left_out: list[int] = []
        self.failed: list[str] = []

    async def prepare(self, dispatches: Iterable[Dispatch]) -> None:
        turns = [int(dispatch.operation) for dispatch in dispatches]
        self.begun += turns
        try:
            await (asyncio.Event().wait() if self.endless in turns else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.refused in turns:
            raise ValueError("refused")
        self.ended += turns

    def perf_counter(self) -> float:
        return self.now

    def turns(self, *, ahead: bool, deadline: float = 1e9) -> Any:
        kernels: Any = self
        return aclosing(
            tried(
                kernels, TURNS, plan, least=LEAST, ahead=ahead, deadline=deadline, left_out=self.left_out.append,
                failed=lambda what, error: self.failed.append(f"{what}: {error}"),
            )
        )  # fmt: skip


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench()
    monkeypatch.setattr(trying, "time", bench)
    return bench


@pytest.mark.parametrize("ahead", [False, True])
async def test_every_turn_comes_once_its_kernels_are_there(bench: Bench, ahead: bool) -> None:
    seen, most = [], 0
    async with bench.turns(ahead=ahead) as turns:
        async for turn, made in turns:
            assert made == plan(turn)
            assert turn in bench.ended
            most = max(most, len(bench.begun) - turn)
            await asyncio.sleep(0)
            seen.append(turn)
    assert seen == [turn for turn in TURNS if turn != 1]
    assert (bench.failed, bench.left_out) == (["1: no such shape"], [])
    assert (most > AT_ONCE) == ahead, "those of the next dozen"


async def test_when_time_is_up_the_rest_is_counted_and_nothing_goes_on_compiling(bench: Bench) -> None:
    bench.endless = LEAST + AT_ONCE
    seen = []
    async with bench.turns(ahead=True, deadline=3.5) as turns:
        async for turn, _ in turns:
            seen.append(turn)
            bench.now += 1
            await asyncio.sleep(0)
    assert seen == [0, 2, 3, 4]
    assert (bench.left_out, bench.cancelled) == ([len(TURNS) - 5], 1)


@pytest.mark.parametrize("ahead", [False, True])
async def test_a_few_are_tried_in_any_case_and_nothing_else_is_compiled_then(bench: Bench, ahead: bool) -> None:
    async with bench.turns(ahead=ahead, deadline=-1.0) as turns:
        assert [turn async for turn, _ in turns] == [0, 2]
    assert (bench.begun, bench.left_out, bench.failed) == ([0, 2], [len(TURNS) - 3], ["1: no such shape"])


async def test_a_refused_kernel_is_left_to_whoever_binds_it(bench: Bench) -> None:
    bench.refused = 5
    async with bench.turns(ahead=True) as turns:
        assert [turn async for turn, _ in turns] == [turn for turn in TURNS if turn != 1]
    assert bench.failed == ["1: no such shape"]
