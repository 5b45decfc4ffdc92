"""Times from submits: the round trip is taken out, noise does not make a time negative, and no submit gets too long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyapp.engine.timing import GPU_SHARE, LONG, SHORTEST, Reading, Timing, dispatches_of, measure, slope, timing_of

TRIP = 0.003


class Gpu:
    """Takes ``each`` seconds for one, and a round trip that ``noise`` (by number of the submit) is added to."""

    def __init__(self, each: float, noise: Callable[[int], float] = lambda number: 0.0) -> None:
        self.each, self.noise = each, noise
        self.submits: list[int] = []

    async def run(self, times: int) -> Reading:
        self.submits.append(times)
        return Reading(TRIP + self.noise(len(self.submits)) + times * self.each)

    @property
    def longest(self) -> float:
        return max(self.submits) * self.each


def test_a_slope_is_the_median_and_that_of_the_shortest() -> None:
    # 100, 300 and 200 us more for 10 more; the shortest of all: 1,000 and 1,250.
    both = slope([1.0e-3, 1.1e-3, 1.05e-3], [1.1e-3 + 0.15e-3, 1.4e-3, 1.25e-3], 10)
    assert both == (pytest.approx(25), pytest.approx(25))
    assert slope([1.0e-3, 1.1e-3], [1.5e-3, 1.3e-3], 10) == (pytest.approx(35), pytest.approx(30))


def test_a_time_is_never_negative() -> None:
    assert slope([2e-3], [1e-3], 4) == (SHORTEST, SHORTEST)


def test_a_part_of_a_time() -> None:
    assert Timing(60.0, 30.0, 90.0, "gpu", 5).over(30) == Timing(2.0, 1.0, 3.0, "gpu", 150)


@pytest.mark.parametrize("each", [1e-6, 8e-6, 1e-4, 1e-3])
async def test_the_round_trip_is_taken_out(each: float) -> None:
    gpu = Gpu(each)
    timing = await measure(gpu.run)
    assert timing.us == pytest.approx(each * 1e6)
    assert LONG / 3 < gpu.longest < 1.2 * LONG or max(gpu.submits) == 16385  # of 1 us there is room for no more


async def test_a_noisy_round_trip_hardly_shows() -> None:
    """One tenth of a kernel's time, where a short submit alone would have given hundreds of times as much."""
    gpu = Gpu(8e-6, lambda number: (number * 7919 % 10) * 1e-4)
    assert (await measure(gpu.run)).us == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize("each", [0.03, 0.5])
async def test_what_is_slow_is_done_once_more_only(each: float) -> None:
    gpu = Gpu(each)
    timing = await measure(gpu.run)
    assert max(gpu.submits) == 2
    assert timing.us == pytest.approx(each * 1e6)


async def test_there_may_be_room_for_a_few_only() -> None:
    gpu = Gpu(1e-4)
    timing = await measure(gpu.run, most=5)
    assert max(gpu.submits) == 6
    assert (timing.us, timing.us_min, timing.times) == (pytest.approx(100), pytest.approx(100), 5)


async def test_a_shorter_submit_when_asked() -> None:
    gpu = Gpu(1e-4)
    await measure(gpu.run, seconds=0.004)
    assert gpu.longest < 0.006


# -- the GPU's clock -------------------------------------------------------------------------------------------------


class Clocked(Gpu):
    """Has a clock of its own that goes in steps of ``grain`` seconds; the CPU takes ``cpu`` for each, before the GPU
    begins. ``wrong``: numbers of the submits of which it says nothing."""

    def __init__(self, each: float, cpu: float = 0.0, grain: float = 1e-4, wrong: frozenset[int] = frozenset()) -> None:
        super().__init__(each)
        self.cpu, self.grain, self.wrong = cpu, grain, wrong
        self.now = 0.0

    async def run(self, times: int) -> Reading:
        wall = (await super().run(times)).wall + times * self.cpu
        begin, self.now = self.now, self.now + wall + 0.37e-4
        ticks = (begin + times * self.each) // self.grain - begin // self.grain
        return Reading(wall, None if len(self.submits) in self.wrong else ticks * self.grain)


@pytest.mark.parametrize("each", [2e-6, 8e-6, 1e-4, 2e-3])
async def test_by_the_gpus_clock_what_the_cpu_does_is_not_in_a_time(each: float) -> None:
    gpu = Clocked(each, cpu=4e-6)
    timing = await measure(gpu.run)
    assert timing.clock == "gpu"
    assert timing.us == pytest.approx(each * 1e6, rel=0.04)  # which is two grains in 5 ms
    assert timing.wall_us == pytest.approx(each * 1e6 + 4)
    assert gpu.longest < 1.5 * LONG * GPU_SHARE


@pytest.mark.parametrize("grain", [1e9, 1.0])
async def test_a_clock_that_stands_still_makes_no_submit_longer_and_the_wall_clock_counts(grain: float) -> None:
    gpu = Clocked(1e-4, grain=grain)
    timing = await measure(gpu.run)
    assert (timing.clock, timing.us) == ("wall", pytest.approx(100))
    assert gpu.longest < 1.2 * LONG


async def test_a_submit_of_which_the_clock_says_nothing_makes_it_the_wall_clocks() -> None:
    right = Clocked(1e-4)
    await measure(right.run)
    wrong = Clocked(1e-4, wrong=frozenset([len(right.submits)]))
    timing = await measure(wrong.run)
    assert (timing.clock, timing.us, timing.wall_us) == ("wall", pytest.approx(100), pytest.approx(100))


def test_the_wall_clock_is_told_beside_the_gpus() -> None:
    short = [Reading(1e-3, 1e-4), Reading(1.2e-3, 1e-4)]
    long = [Reading(3e-3, 11e-4), Reading(3.4e-3, 13e-4)]
    timing = timing_of(short, long, 10)
    assert (timing.us, timing.us_min) == (pytest.approx(110), pytest.approx(100))
    assert (timing.wall_us, timing.clock, timing.times) == (pytest.approx(210), "gpu", 10)


def test_dispatches_of_spans() -> None:
    assert dispatches_of(((0, 3), (5, 6))) == 4
