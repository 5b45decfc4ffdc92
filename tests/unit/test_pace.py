"""Steps a submit: as many as fit the time that a token may come late, one until that is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyapp.engine.pace import MOST_SECONDS, MOST_STEPS, Pace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def after(step_seconds: float, rounds: int, most: int = MOST_STEPS) -> Pace:
    clock = Clock()
    pace = Pace(most, clock)
    for _ in range(rounds):
        count = pace.steps
        clock.now += step_seconds * count
        pace.arrived(count, more=True)
    return pace


def test_one_step_until_something_is_known() -> None:
    assert after(0.0005, 0).steps == after(0.0005, 1).steps == 1
    assert after(0.0005, 2).steps == 8


def test_no_more_steps_than_a_token_may_wait_for() -> None:
    assert [after(ms / 1000, 9).steps for ms in (0.1, 0.99, 1.5, 3, 5, 500)] == [MOST_STEPS, 4, 2, 1, 1, 1]
    assert after(0.0005, 9, most=1).steps == 1


def test_a_rest_of_the_device_is_not_measured() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    pace.arrived(1, more=False)
    clock.now += 60
    pace.arrived(1, more=True)
    clock.now += 0.001
    pace.arrived(1, more=True)
    assert pace.steps == 4


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=50))
def test_any_times_give_a_pace(times: list[tuple[float, bool]]) -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    for seconds, more in times:
        clock.now += seconds
        pace.arrived(pace.steps, more)
        assert 1 <= pace.steps <= MOST_STEPS
    assert MOST_SECONDS < 0.03
