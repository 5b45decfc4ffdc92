"""The pressure sentinel: each sign of pressure, its end, and all at once against a plain account of the rules."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyapp.routing.sentinel import (
    CRITICAL_SECONDS,
    EARLIER_TURNS,
    LEAST_TOKENS,
    MEMORY_ERRORS,
    MEMORY_SECONDS,
    MOST_TURNS,
    RECENT_TURNS,
    REST_SECONDS,
    Ahead,
    MachineState,
    Sentinel,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(*contents: str) -> list[dict[str, str]]:
    """A conversation: the user's word, the answer, and so on; an odd number of them, so that the user has the last."""
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]


def ahead(*contents: str, tokens: int = 100, wanted: int = 50, room: int = 4096) -> Ahead:
    return Ahead(said(*contents), tokens, wanted, room)


def kind(sentinel: Sentinel, turn: Ahead) -> str | None:
    pressure = sentinel.weigh(turn)
    return None if pressure is None else pressure.kind


@pytest.mark.parametrize(
    ("limit", "small", "tokens", "expected"),
    [
        (2048, True, 2048, None),
        (2048, True, 2049, "context"),
        (2048, False, 4000, None),
        (None, True, 4000, None),
        (10, True, 11, "context"),
    ],
)
def test_long_context_on_a_device_with_little_memory(
    limit: int | None, small: bool, tokens: int, expected: str | None
) -> None:
    assert kind(Sentinel(limit, small, Clock()), ahead("a", tokens=tokens)) == expected


def test_new_conversation_comes_back() -> None:
    sentinel = Sentinel(2048, True, Clock())
    assert kind(sentinel, ahead("a", "b", "c", tokens=3000)) == "context"
    assert kind(sentinel, ahead("z", tokens=30)) is None


@pytest.mark.parametrize(("tokens", "expected"), [(51, None), (52, "pool"), (100, "pool"), (900, "pool")])
def test_pool_with_too_little_room_for_the_answer(tokens: int, expected: str | None) -> None:
    # The last token of an answer is never fed back, so it takes no room: 51 + 50 tokens fit into 100 positions.
    turn = ahead("a", "b", "c", tokens=tokens, wanted=50, room=100)
    assert kind(Sentinel(2048, False, Clock()), turn) == expected


def test_first_turn_is_never_moved_for_the_pools_sake() -> None:
    sentinel = Sentinel(2048, False, Clock())
    assert kind(sentinel, ahead("a", tokens=99, room=100)) is None
    system = [{"role": "system", "content": "s"}, *said("a")]
    assert sentinel.weigh(Ahead(system, 99, 50, 100)) is None


def test_memory_that_runs_out_again_and_again() -> None:
    clock = Clock()
    sentinel = Sentinel(None, False, clock)
    for _ in range(MEMORY_ERRORS):
        assert kind(sentinel, ahead("a", "b", "c")) is None
        sentinel.ran_out()
    assert kind(sentinel, ahead("a", "b", "c")) == "memory"
    assert kind(sentinel, ahead("a", "b", "c", "d", "e")) == "memory", "the conversation goes on"
    clock.now += MEMORY_SECONDS
    assert kind(sentinel, ahead("a", "b", "c", "d", "e")) is None


@pytest.mark.parametrize("reset", [ahead("a", "b", "c"), ahead("z", "b", "c", "d", "e", "f", "g")])
def test_memory_errors_are_of_one_conversation(reset: Ahead) -> None:
    sentinel = Sentinel(None, False, Clock())
    for _ in range(MEMORY_ERRORS):
        sentinel.weigh(ahead("a", "b", "c", "d", "e"))
        sentinel.ran_out()
    assert kind(sentinel, reset) is None
    assert kind(sentinel, ahead("a", "b", "c", "d", "e")) is None, "what is over is over"


def test_conversations_that_begin_with_the_same_instructions_are_told_apart() -> None:
    sentinel = Sentinel(None, False, Clock())
    first, second = ([{"role": "system", "content": "s"}, {"role": "user", "content": text}] for text in "ab")
    for _ in range(MEMORY_ERRORS):
        assert sentinel.weigh(Ahead(first, 9, 9, 99)) is None
        sentinel.ran_out()
    assert kind(sentinel, Ahead(first, 9, 9, 99)) == "memory"
    assert sentinel.weigh(Ahead(second, 9, 9, 99)) is None


def write(sentinel: Sentinel, *rates: float) -> None:
    for rate in rates:
        sentinel.wrote(int(rate * 100), 100)


def test_device_that_slows_down_rests_and_comes_back() -> None:
    clock = Clock()
    sentinel = Sentinel(2048, False, clock)
    turn = ahead("a")
    write(sentinel, 40, 42, 38, 40, 39)
    write(sentinel, 15)
    assert kind(sentinel, turn) is None, "one slow turn is no heat"
    write(sentinel, 15)
    pressure = sentinel.weigh(turn)
    assert pressure is not None
    assert pressure.kind == "slow"
    assert "from 40 to 15 tokens a second" in pressure.message
    clock.now += REST_SECONDS - 1
    assert "1 seconds more" in sentinel.weigh(turn).message  # type: ignore[union-attr]
    clock.now += 1
    assert kind(sentinel, turn) is None
    write(sentinel, 16)
    assert kind(sentinel, turn) == "slow", "one turn shows that it is still hot"
    clock.now += REST_SECONDS
    write(sentinel, 40)
    write(sentinel, 15)
    assert kind(sentinel, turn) is None, "from here on as before"


def test_half_the_rate_is_still_enough() -> None:
    sentinel = Sentinel(2048, False, Clock())
    write(sentinel, *[40] * 6, *[20] * 3)
    assert kind(sentinel, ahead("a")) is None


def test_device_that_shows_to_be_fast_while_it_rests_need_not_rest() -> None:
    sentinel = Sentinel(2048, False, Clock())
    write(sentinel, *[40] * 6, *[10] * 2)
    assert kind(sentinel, ahead("a")) == "slow"
    write(sentinel, 39)  # the cloud was away
    assert kind(sentinel, ahead("a")) is None


def test_short_answers_and_standing_clocks_say_nothing_of_the_rate() -> None:
    sentinel = Sentinel(2048, False, Clock())
    write(sentinel, *[40] * 8)
    for _ in range(10):
        sentinel.wrote(LEAST_TOKENS - 1, 100)
        sentinel.wrote(100, 0)
    assert kind(sentinel, ahead("a")) is None


def test_other_way_of_working_has_rates_of_its_own() -> None:
    sentinel = Sentinel(2048, False, Clock())
    write(sentinel, *[40] * 8)
    sentinel.renew()
    write(sentinel, *[4] * 20)
    assert kind(sentinel, ahead("a")) is None
    write(sentinel, *[1] * 3)
    assert kind(sentinel, ahead("a")) == "slow"
    sentinel.renew()
    assert kind(sentinel, ahead("a")) is None


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([(0, "critical")], "machine"),
        ([(0, "serious")], None),
        ([(0, "critical"), (CRITICAL_SECONDS - 1, "critical")], "machine"),
        ([(0, "critical"), (CRITICAL_SECONDS - 1, "serious")], None),
        ([(0, "critical"), (CRITICAL_SECONDS, "serious")], "machine"),
        ([(0, "critical"), (CRITICAL_SECONDS, "serious"), (1, "critical")], "machine"),
        ([(0, "critical"), (CRITICAL_SECONDS, "fair")], None),
        ([(0, "critical"), (CRITICAL_SECONDS, "nominal"), (1, "serious")], None),
    ],
    ids=str,
)
def test_machine_that_is_critical_for_some_seconds(
    states: list[tuple[float, MachineState]], expected: str | None
) -> None:
    clock = Clock()
    sentinel = Sentinel(None, False, clock)
    for after, state in states:
        clock.now += after
        sentinel.pressed(state)
    clock.now += 0 if len(states) > 2 else CRITICAL_SECONDS
    assert kind(sentinel, ahead("a")) == expected


def test_moment_of_a_critical_machine_changes_nothing() -> None:
    clock = Clock()
    sentinel = Sentinel(None, False, clock)
    sentinel.pressed("critical")
    clock.now += CRITICAL_SECONDS - 1
    assert kind(sentinel, ahead("a")) is None
    assert sentinel.changes_in() == 1


def test_what_is_known_before_the_turn_and_for_how_long() -> None:
    clock = Clock()
    sentinel = Sentinel(10, True, clock)
    assert (sentinel.standing(), sentinel.changes_in()) == (None, None)
    assert kind(sentinel, ahead("a", tokens=11)) == "context"
    assert sentinel.standing() is None, "the next one may be shorter"
    write(sentinel, *[40] * 6, *[10] * 3)
    for _ in range(MEMORY_ERRORS):
        sentinel.ran_out()
    seen = []
    while (seconds := sentinel.changes_in()) is not None:
        standing = sentinel.standing()
        seen.append((None if standing is None else standing.kind, seconds))
        clock.now += seconds
    assert seen == [("memory", REST_SECONDS), ("memory", MEMORY_SECONDS - REST_SECONDS)]
    assert sentinel.standing() is None


class Model(RuleBasedStateMachine):
    """The sentinel against an account that keeps everything that ever happened and reads the rules off it."""

    @initialize(limit=st.none() | st.integers(1, 300), small=st.booleans())
    def begin(self, limit: int | None, small: bool) -> None:
        self.clock = Clock()
        self.limit, self.small = limit, small
        self.sentinel = Sentinel(limit, small, self.clock)
        self.topic, self.turns = "a", 1
        self.errors: list[float] = []
        self.earlier: list[float] = []
        self.recent: list[float] = []
        self.rest_until: float | None = None
        self.judged_alone = False
        self.states: list[tuple[float, MachineState]] = []

    def turn(self, tokens: int = 1, room: int = 4096) -> Ahead:
        contents = [self.topic, *(str(number) for number in range(1, 2 * self.turns - 1))]
        return ahead(*contents, tokens=tokens, wanted=50, room=room)

    def expected(self, tokens: int, room: int) -> str | None:
        if self.small and self.limit is not None and tokens > self.limit:
            return "context"
        if self.turns > 1 and tokens + 50 - 1 > room:
            return "pool"
        if sum(self.clock.now - when < MEMORY_SECONDS for when in self.errors) >= MEMORY_ERRORS:
            return "memory"
        resting = self.rest_until is not None and self.clock.now < self.rest_until
        if resting:
            return "slow"
        since: float | None = None
        for (when, state), (until, _) in pairwise([*self.states, (self.clock.now, "nominal")]):
            if state == "critical":
                since = when if since is None else since
            elif state != "serious" or since is None or when - since < CRITICAL_SECONDS:
                since = None
            overloaded = since is not None and until - since >= CRITICAL_SECONDS
        return "machine" if self.states and overloaded else None

    @rule(seconds=st.sampled_from([1, 60, 90, 180, 300, 600]))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(tokens=st.integers(1, 400), room=st.integers(1, 400))
    def a_turn_comes(self, tokens: int, room: int) -> None:
        assert kind(self.sentinel, self.turn(tokens, room)) == self.expected(tokens, room)

    @rule()
    def goes_on(self) -> None:
        self.turns += 1

    @rule(topic=st.sampled_from("abc"), back=st.integers(0, 3))
    def resets(self, topic: str, back: int) -> None:
        turns = max(1, self.turns - back)
        if topic != self.topic or turns < self.turns:
            self.errors = []
        self.topic, self.turns = topic, turns

    @rule()
    def memory_runs_out(self) -> None:
        self.sentinel.ran_out()
        self.errors.append(self.clock.now)

    @rule(rate=st.sampled_from([1.0, 4.0, 10.0, 19.0, 20.0, 40.0]), repeat=st.integers(1, 4))
    def writes(self, rate: float, repeat: int) -> None:
        for _ in range(repeat):
            self.sentinel.wrote(int(rate * 100), 100)
            self.recent.append(rate)
            judged = len(self.recent) >= (1 if self.judged_alone else RECENT_TURNS)
            if not judged:
                continue
            known = self.earlier[-MOST_TURNS:]
            if len(known) >= EARLIER_TURNS and median(self.recent) * 2 < median(known):
                self.rest_until, self.recent, self.judged_alone = self.clock.now + REST_SECONDS, [], True
            else:
                self.rest_until, self.judged_alone = None, False
                if len(self.recent) == RECENT_TURNS:
                    self.earlier.append(self.recent.pop(0))

    @rule(state=st.sampled_from(["nominal", "fair", "serious", "critical"]))
    def is_pressed(self, state: MachineState) -> None:
        self.sentinel.pressed(state)
        self.states.append((self.clock.now, state))

    @rule()
    def is_renewed(self) -> None:
        self.sentinel.renew()
        self.earlier, self.recent, self.rest_until, self.judged_alone = [], [], None, False

    @invariant()
    def sees_the_same(self) -> None:
        if hasattr(self, "sentinel"):  # it also runs before the beginning
            assert kind(self.sentinel, self.turn()) == self.expected(1, 4096)

    @invariant()
    def foresees_the_same_until_it_says(self) -> None:
        if not hasattr(self, "sentinel"):
            return
        now, seconds = self.clock.now, self.sentinel.changes_in()
        before = self.sentinel.standing()
        self.clock.now += 3600.0 if seconds is None else seconds - 0.001
        after = self.sentinel.standing()
        self.clock.now = now
        assert (before and before.kind) == (after and after.kind)

    def teardown(self) -> None:
        """After a while without work, a short new conversation always has the device."""
        if hasattr(self, "sentinel"):
            self.sentinel.pressed("fair")
            self.clock.now += max(MEMORY_SECONDS, REST_SECONDS)
            assert self.sentinel.weigh(ahead("new", tokens=1)) is None


TestModel: Any = Model.TestCase
