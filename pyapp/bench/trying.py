"""Shapes that are tried one after the other, each once its kernels are compiled, until time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar

from ..gpu.kernels import Kernels
from ..gpu.plan import Plan

AT_ONCE = 12
"""Whose kernels are compiled together: many at once keep a driver's threads busy, all at once the page waiting."""
T = TypeVar("T")


async def tried(
    kernels: Kernels, turns: Sequence[T], make: Callable[[T], Plan], *, least: int, ahead: bool, deadline: float,
    left_out: Callable[[int], Any], failed: Callable[[str, Exception], Any],
) -> AsyncGenerator[tuple[T, Plan]]:  # fmt: skip
    """Each of ``turns`` with the plan that ``make`` makes for it, until ``deadline`` (seconds of ``perf_counter``), but
    the first ``least`` of them in any case: ``left_out`` is told how many there was no time for. What cannot be made
    is told to ``failed``; a kernel that the driver refuses is for whoever binds the plan. Close it, if it is not gone
    through.

    ``ahead``: the next ones compile while the caller has these, which shows in no time by the GPU's clock.
    """

    parts = [turns[:least], *(turns[at : at + AT_ONCE] for at in range(least, len(turns), AT_ONCE))]

    def begin(part: Sequence[T]) -> tuple[list[tuple[T, Plan]], asyncio.Task[None]]:
        plans = []
        for turn in part:
            try:
                plans.append((turn, make(turn)))
            except Exception as error:
                failed(str(turn), error)
        return plans, asyncio.ensure_future(kernels.prepare([row for _, plan in plans for row in plan.dispatches]))

    upcoming = None
    try:
        for number, part in enumerate(parts):
            in_time = time.perf_counter() < deadline
            if number and not upcoming and not in_time:
                left_out(sum(map(len, parts[number:])))
                return
            plans, compiling = upcoming = upcoming or begin(part)
            await asyncio.gather(compiling, return_exceptions=True)
            more = ahead and in_time and number + 1 < len(parts)
            upcoming = begin(parts[number + 1]) if more else None
            for done, each in enumerate(plans):
                if number and time.perf_counter() > deadline:
                    left_out(len(plans) - done + sum(map(len, parts[number + 1 :])))
                    return
                yield each
    finally:
        if upcoming:
            upcoming[1].cancel()
            await asyncio.gather(upcoming[1], return_exceptions=True)
