"""How often a lost device is made ready again, by a clock that the test moves."""

from __future__ import annotations

import pytest

from pyapp.door.rebuilds import HOUR, Rebuilds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_cap_counts_within_a_sliding_hour() -> None:
    clock = Clock()
    rebuilds = Rebuilds(2, clock)
    for at in (0.0, 600.0):
        clock.now = at
        assert rebuilds.refusal() is None
        rebuilds.begin()
        rebuilds.succeeded()
    clock.now = 1200.0
    assert rebuilds.refusal() == "it was rebuilt 2 times within the hour, the most allowed; next in 40 min"
    clock.now = HOUR - 1
    assert "next in 1 s" in str(rebuilds.refusal())
    clock.now = HOUR
    assert rebuilds.refusal() is None, "the first one is an hour old"
    rebuilds.begin()
    assert "next in 10 min" in str(rebuilds.refusal()), "the second one is not"


def test_none_where_none_are_allowed() -> None:
    assert Rebuilds(0, Clock()).refusal() == "rebuilds are switched off"


@pytest.mark.parametrize("failures", [1, 2, 3, 5])
def test_failures_in_a_row_double_the_wait(failures: int) -> None:
    clock = Clock()
    rebuilds = Rebuilds(1000, clock)
    for _ in range(failures):
        rebuilds.begin()
        rebuilds.failed()
    wait = 5.0 * 2 ** (failures - 1)
    assert f"next may begin in {wait:.0f} s" in str(rebuilds.refusal())
    clock.now = wait - 0.1
    assert rebuilds.refusal() is not None
    clock.now = wait
    assert rebuilds.refusal() is None
    rebuilds.succeeded()
    rebuilds.failed()
    assert "next may begin in 5 s" in str(rebuilds.refusal()), "a success begins the row anew"
