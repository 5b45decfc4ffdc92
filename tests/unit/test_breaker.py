"""The circuit breaker: its states one by one, against a model in words of the issue, and with garbage for a memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyapp.routing.breaker import (
    FIRST_WAIT,
    KEPT_SECONDS,
    KINDS,
    LONGEST_WAIT,
    THRESHOLDS,
    TRIAL_SECONDS,
    Breaker,
    Kind,
)

kinds = st.sampled_from(KINDS)


class Clock:
    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, kind: Kind = "device_lost") -> Breaker:
    breaker = Breaker(clock)
    for _ in range(THRESHOLDS[kind]):
        assert breaker.admit()
        breaker.failed(kind)
    return breaker


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_opens_at_its_own_threshold(kind: Kind) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for number in range(1, THRESHOLDS[kind] + 1):
        assert breaker.condition == "closed"
        breaker.failed(kind)
        assert breaker.counts == {kind: number}
    assert breaker.condition == "open"
    assert not breaker.admit()
    assert breaker.wait() == FIRST_WAIT


def test_kinds_are_not_added_up() -> None:
    breaker = Breaker(Clock())
    for kind in ("device_lost", "device_lost", "out_of_memory", "stall", "bad_weights"):
        breaker.failed(kind)
    assert breaker.condition == "closed"
    assert breaker.counts == {"device_lost": 2, "out_of_memory": 1, "stall": 1, "bad_weights": 1}


def test_success_clears_the_counts() -> None:
    breaker = Breaker(Clock())
    for _ in range(10):
        breaker.failed("device_lost")
        breaker.failed("device_lost")
        breaker.succeeded()
    assert breaker.condition == "closed"
    assert breaker.state() is None


def test_one_trial_and_its_success_closes() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += FIRST_WAIT - 1
    assert not breaker.admit()
    clock.now += 1
    assert breaker.condition == "half_open"
    assert breaker.admit()
    assert not breaker.admit(), "one trial only"
    breaker.succeeded()
    assert breaker.condition == "closed"
    assert breaker.admit()


def test_wait_doubles_with_every_trial_that_fails_up_to_a_day() -> None:
    clock = Clock()
    breaker = opened(clock)
    expected = FIRST_WAIT
    for _ in range(12):
        assert breaker.wait() == expected
        clock.now += expected
        assert breaker.admit()
        breaker.failed("stall")  # of any kind, and at once
        expected = min(LONGEST_WAIT, 2 * expected)
    assert expected == LONGEST_WAIT


def test_abort_ends_a_trial_and_counts_for_nothing() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += FIRST_WAIT
    for _ in range(5):
        assert breaker.admit()
        breaker.aborted()
    assert breaker.condition == "half_open"
    assert breaker.counts == {"device_lost": THRESHOLDS["device_lost"]}
    assert breaker.admit()


def test_trial_that_nobody_settles_gives_way_at_its_deadline() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += FIRST_WAIT
    assert breaker.admit()
    later = Breaker.from_state(breaker.state(), clock)
    clock.now += TRIAL_SECONDS - 1
    assert not later.admit()
    assert later.wait() == 1
    clock.now += 1
    assert later.admit()
    later.failed("device_lost")
    assert later.wait() == 2 * FIRST_WAIT, "the lost trial counted for nothing"


def test_failure_of_a_device_that_was_not_admitted_waits_anew_but_not_longer() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 100
    breaker.failed("device_lost")
    assert breaker.wait() == FIRST_WAIT
    breaker.succeeded()
    assert breaker.condition == "closed"


def test_what_is_old_is_forgotten() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.failed("device_lost")
    breaker.failed("device_lost")
    clock.now += KEPT_SECONDS
    breaker.failed("device_lost")
    assert breaker.counts == {"device_lost": 1}
    shut = opened(clock)
    clock.now += FIRST_WAIT + KEPT_SECONDS - 1
    assert shut.condition == "half_open"
    clock.now += 1
    assert shut.condition == "closed"
    assert shut.state() is None


@given(st.lists(kinds, max_size=8), st.floats(0, 1e6))
def test_state_goes_through_json_and_back(failures: list[Kind], later: float) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for kind in failures:
        breaker.failed(kind)
    clock.now += later
    breaker.admit()
    again = Breaker.from_state(json.loads(json.dumps(breaker.state())), clock)
    assert again.state() == breaker.state()
    assert (again.condition, again.wait()) == (breaker.condition, breaker.wait())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
numbers = json_values | st.integers(-(10**400), 10**400) | st.integers(0, 5) | st.floats(1.7e9, 1.9e9)
nearly_right = st.fixed_dictionaries(
    {"counts": json_values | st.dictionaries(kinds | st.text(max_size=5), numbers)},
    optional=dict.fromkeys(("last", "openings", "until", "trial"), numbers),
)


@given(json_values | nearly_right)
def test_any_garbage_is_survived_and_shuts_nobody_out_for_long(kept: Any) -> None:
    clock = Clock()
    breaker = Breaker.from_state(kept, clock)
    assert 0 <= breaker.wait() <= LONGEST_WAIT
    breaker.state()
    clock.now += LONGEST_WAIT
    assert breaker.admit()
    breaker.failed("wrong_result")
    breaker.succeeded()
    assert breaker.condition == "closed"


def test_clock_that_was_put_back_does_not_lengthen_the_wait() -> None:
    clock = Clock()
    kept = opened(clock).state()
    clock.now -= 30 * 86400
    assert Breaker.from_state(kept, clock).wait() == FIRST_WAIT


class Model(RuleBasedStateMachine):
    """The breaker, put away and taken up again at any moment, against the plainest account of its rules: a log."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(self.clock)
        self.failures: list[Kind] = []
        """Since the last success, or since all was forgotten."""
        self.last = self.until = -1e18
        self.waits = 0
        self.trial: float | None = None

    def forget_if_old(self) -> None:
        if self.clock.now >= max(self.last, self.until) + KEPT_SECONDS:
            self.forget()

    def forget(self) -> None:
        self.failures, self.waits, self.trial = [], 0, None
        self.last = self.until = -1e18

    @property
    def condition(self) -> str:
        if self.waits == 0:
            return "closed"
        return "open" if self.clock.now < self.until else "half_open"

    @rule(seconds=st.sampled_from([1, 299, 600, 601, 1200, 20000, 86399, 86400, 200000]))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds
        self.forget_if_old()

    @rule(kind=kinds)
    def fails(self, kind: Kind) -> None:
        before = self.condition
        self.breaker.failed(kind)
        self.failures.append(kind)
        self.last, self.trial = self.clock.now, None
        if before == "half_open" or (before == "closed" and self.failures.count(kind) >= THRESHOLDS[kind]):
            self.waits += 1
        if self.waits:
            self.until = self.clock.now + min(LONGEST_WAIT, FIRST_WAIT * 2 ** (self.waits - 1))

    @rule()
    def succeeds(self) -> None:
        self.breaker.succeeded()
        self.forget()

    @rule()
    def aborts(self) -> None:
        self.breaker.aborted()
        self.trial = None

    @rule()
    def asks(self) -> None:
        free = self.trial is None or self.clock.now >= self.trial
        expected = self.condition == "closed" or (self.condition == "half_open" and free)
        assert self.breaker.admit() is expected
        if expected and self.condition == "half_open":
            self.trial = self.clock.now + TRIAL_SECONDS

    @precondition(lambda self: self.condition == "half_open")
    @rule(tabs=st.integers(2, 4))
    def several_ask_at_once(self, tabs: int) -> None:
        free = self.trial is None or self.clock.now >= self.trial
        assert sum(self.breaker.admit() for _ in range(tabs)) == int(free)
        if free:
            self.trial = self.clock.now + TRIAL_SECONDS

    @rule()
    def next_visit(self) -> None:
        self.breaker = Breaker.from_state(json.loads(json.dumps(self.breaker.state())), self.clock)

    @invariant()
    def agrees(self) -> None:
        assert self.breaker.condition == self.condition
        assert self.breaker.counts == {kind: self.failures.count(kind) for kind in KINDS if kind in self.failures}

    @invariant()
    def opens_again(self) -> None:
        """However it went so far, the device gets its next chance within a day."""
        assert self.breaker.wait() <= LONGEST_WAIT


TestModel = Model.TestCase
