"""How long work takes on the GPU: the difference between a long and a short submit of the same takes out the way there
and back, which is a hundred times a short kernel's time.

Two clocks tell it. The GPU's own (``timestamp-query``) has nothing but the pass in it. The wall clock has what the CPU
does for a dispatch as well, since a browser records a whole submit before the GPU begins; in a stream the CPU works
ahead and none of that is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..gpu.device import Device
from ..gpu.pool import Pool
from ..gpu.replay import Replay
from ..gpu.timestamps import Timestamps
from .steps import Spans

LONG = 0.04
"""Seconds that a long submit should take by the wall clock: far more than a round trip varies, and far less than the
0.1 s that a submit may take on slow GPUs and under drivers' watchdogs."""
GPU_SHARE = 1 / 8
"""Of that, what is enough by the GPU's clock: no round trip is in it, only what browsers round off, 0.1 ms at most."""
MOST_DISPATCHES = 16384
"""Of one submit."""
SHORTEST = 1e-3
"""Microseconds: less than that is noise, and is given as that."""
GROWTH = 4


@dataclass(frozen=True)
class Reading:
    """Seconds of one submit: until its end was heard of, and of its pass by the GPU's clock, None where that says
    nothing."""

    wall: float
    gpu: float | None = None


Run = Callable[[int], Awaitable[Reading]]
"""Does something so many times in one submit, and waits until it is done."""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one time: the median of the differences, and the difference of the shortest submits, by ``clock``
    (``gpu`` or ``wall``); the median by the wall clock. ``times``: how many more of them the long submit had."""

    us: float
    us_min: float
    wall_us: float
    clock: str
    times: int

    def over(self, parts: int) -> Timing:
        """That of one of so many equal parts."""
        return Timing(self.us / parts, self.us_min / parts, self.wall_us / parts, self.clock, self.times * parts)


def slope(short: Sequence[float], long: Sequence[float], times: int) -> tuple[float, float]:
    """Microseconds, the median and of the shortest, from the seconds of short and long submits, taken in turns, of
    which the long ones do it ``times`` more times."""
    differences = [after - before for before, after in zip(short, long, strict=True)]
    return max(SHORTEST, median(differences) / times * 1e6), max(SHORTEST, (min(long) - min(short)) / times * 1e6)


def timing_of(short: Sequence[Reading], long: Sequence[Reading], times: int) -> Timing:
    """By the GPU's clock where every submit has a time of it and the long ones took longer."""
    us, us_min = slope([each.wall for each in short], [each.wall for each in long], times)
    before = [each.gpu for each in short if each.gpu is not None]
    after = [each.gpu for each in long if each.gpu is not None]
    if len(before) < len(short) or len(after) < len(long) or sum(after) <= sum(before):
        return Timing(us, us_min, us, "wall", times)
    return Timing(*slope(before, after, times), us, "gpu", times)


async def measure(run: Run, *, rounds: int = 3, seconds: float = LONG, most: int = MOST_DISPATCHES) -> Timing:
    """The time of one of what ``run`` does; a long submit does it at most 1 + ``most`` times and aims at ``seconds``,
    or at ``GPU_SHARE`` of them on the GPU, whichever is reached first.

    The length of the long submit is found out by submits that grow, which also wakes the GPU.
    """

    await run(1)
    alone = min([await run(1) for _ in range(2)], key=lambda each: each.wall)

    async def share(times: int) -> float:
        """Of the time that is aimed at, what so many more take."""
        reading = await run(1 + times)
        gpu = (reading.gpu - alone.gpu) / GPU_SHARE if reading.gpu is not None and alone.gpu is not None else 0.0
        return max(1e-9, reading.wall - alone.wall, gpu) / seconds

    times, taken = 1, await share(1)
    while taken < 1 / (2 * GROWTH) and times < most:
        times = min(most, times * GROWTH)
        taken = await share(times)
    times = max(1, min(most, int(times / taken)))
    short, long = [], []
    for _ in range(rounds):
        short.append(await run(1))
        long.append(await run(1 + times))
    return timing_of(short, long, times)


class Stopwatch:
    """Takes the time of submits on a device: by its own clock where there are ``timestamps``, and by the wall clock
    (``now``, in seconds)."""

    def __init__(
        self, device: Device, timestamps: Timestamps | None = None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device = device
        self._timestamps = timestamps
        self._now = now

    @classmethod
    async def of(cls, pool: Pool, now: Callable[[], float] = time.perf_counter) -> Stopwatch:
        """With the clock of the pool's device, if it has one. Raises ``OutOfMemory``."""
        return cls(pool.device, await pool.timestamps(), now)

    @property
    def by_gpu(self) -> bool:
        """Whether the GPU's clock is read."""
        return self._timestamps is not None

    def submits(
        self, replay: Replay, spans: Spans, *, tiles: int = 1, before: Callable[[], object] | None = None
    ) -> Run:
        """Runs of ``spans``. ``before``: what each submit must find, such as the step state at a position."""

        async def run(times: int) -> Reading:
            if before:
                before()
            start, gpu = self._now(), None
            if self._timestamps is None:
                replay.submit(spans, tiles=tiles, repeat=times)
                await self._device.idle()
            else:
                gpu = await replay.timed(spans, self._timestamps, tiles=tiles, repeat=times)
            return Reading(self._now() - start, gpu)

        return run


def dispatches_of(spans: Spans) -> int:
    """How many dispatches ``spans`` have."""
    return sum(end - begin for begin, end in spans)
