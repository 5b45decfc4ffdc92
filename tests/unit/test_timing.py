"""Times from submits: the round trip is taken out, noise does not make a time negative, and no submit gets too long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyapp.engine.timing import LONG, SHORTEST, Timing, dispatches_of, measure, slope

TRIP = 0.003


class Gpu:
    """Takes ``each`` seconds for one, and a round trip that ``noise`` (by number of the submit) is added to."""

    def __init__(self, each: float, noise: Callable[[int], float] = lambda number: 0.0) -> None:
        self.each, self.noise = each, noise
        self.submits: list[int] = []

    async def run(self, times: int) -> float:
        self.submits.append(times)
        return TRIP + self.noise(len(self.submits)) + times * self.each

    @property
    def longest(self) -> float:
        return max(self.submits) * self.each


def test_a_slope_is_the_median_and_that_of_the_shortest() -> None:
    # 100, 300 and 200 us more for 10 more; the shortest of all: 1,000 and 1,250.
    timing = slope([1.0e-3, 1.1e-3, 1.05e-3], [1.1e-3 + 0.15e-3, 1.4e-3, 1.25e-3], 10)
    assert timing.us == pytest.approx(25)
    assert timing.us_min == pytest.approx(25)
    timing = slope([1.0e-3, 1.1e-3], [1.5e-3, 1.3e-3], 10)
    assert (timing.us, timing.us_min) == (pytest.approx(35), pytest.approx(30))


def test_a_time_is_never_negative() -> None:
    assert slope([2e-3], [1e-3], 4) == Timing(SHORTEST, SHORTEST, 4)


def test_a_part_of_a_time() -> None:
    assert Timing(60.0, 30.0, 5).over(30) == Timing(2.0, 1.0, 150)


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


def test_dispatches_of_spans() -> None:
    assert dispatches_of(((0, 3), (5, 6))) == 4
