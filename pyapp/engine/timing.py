"""How long work takes on the GPU: the difference between a long and a short submit of the same takes the way there and
back out, which is a hundred times a short kernel's time.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..gpu.device import Device
from ..gpu.replay import Replay
from .steps import Spans

LONG = 0.04
"""Seconds that a long submit should take: far more than a round trip varies, and far less than the 0.1 s that a submit
may take on slow GPUs and under drivers' watchdogs."""
MOST_DISPATCHES = 16384
"""Of one submit."""
SHORTEST = 1e-3
"""Microseconds: less than that is noise, and is given as that."""
GROWTH = 4

Run = Callable[[int], Awaitable[float]]
"""Does something so many times in one submit; returns the seconds until it was done."""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one time: the median of the differences, and the difference of the shortest submits. ``times``:
    how many more of them the long submit had."""

    us: float
    us_min: float
    times: int

    def over(self, parts: int) -> Timing:
        """That of one of so many equal parts."""
        return Timing(self.us / parts, self.us_min / parts, self.times * parts)


def slope(short: Sequence[float], long: Sequence[float], times: int) -> Timing:
    """From the seconds of short and long submits, taken in turns, of which the long ones do it ``times`` more times."""
    differences = [after - before for before, after in zip(short, long, strict=True)]
    return Timing(
        max(SHORTEST, median(differences) / times * 1e6), max(SHORTEST, (min(long) - min(short)) / times * 1e6), times
    )


async def measure(run: Run, *, rounds: int = 3, seconds: float = LONG, most: int = MOST_DISPATCHES) -> Timing:
    """The time of one of what ``run`` does; a long submit does it at most 1 + ``most`` times and aims at ``seconds``.

    The length of the long submit is found out by submits that grow, which also wakes the GPU.
    """
    await run(1)
    alone = min([await run(1) for _ in range(2)])
    times, taken = 1, await run(2)
    while taken - alone < seconds / (2 * GROWTH) and times < most:
        times = min(most, times * GROWTH)
        taken = await run(1 + times)
    each = max(taken - alone, 1e-9) / times
    times = max(1, min(most, int(seconds / each)))
    short, long = [], []
    for _ in range(rounds):
        short.append(await run(1))
        long.append(await run(1 + times))
    return slope(short, long, times)


def submits(
    device: Device, replay: Replay, spans: Spans, *, tiles: int = 1, before: Callable[[], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> Run:  # fmt: skip
    """Runs of ``spans``. ``before``: what each submit must find, such as the step state at a position. ``clock`` gives
    seconds; the usual one where it is None."""
    now = clock or time.perf_counter

    async def run(times: int) -> float:
        if before:
            before()
        start = now()
        replay.submit(spans, tiles=tiles, repeat=times)
        await device.idle()
        return now() - start

    return run


def dispatches_of(spans: Spans) -> int:
    """How many dispatches ``spans`` have."""
    return sum(end - begin for begin, end in spans)
