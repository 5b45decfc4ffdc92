"""The circuit breaker: whether a device that has failed before is worth another try, and when.

    closed     the device is used. Failures are counted by kind; one kind reaching its threshold opens the breaker,
               and a success clears all counts.
    open       the device is left alone until the wait is over.
    half-open  the wait is over. One trial is admitted; its success closes the breaker, its failure opens it again for
               twice as long. A trial that an abort or an error of the request's own ended proves nothing: the next one
               may begin at once. One that nobody ever settled (the page was left) gives way to another at its deadline.

Nothing is remembered for ever: ``KEPT_SECONDS`` after the last failure, or after the wait where that ends later, the
record is as good as new. So the state can be kept across visits, as a plain dict: ``state`` and ``from_state``.

Written here because no library fits. pybreaker 1.4 keeps one count and one fixed wait, runs calls under a thread lock,
and its coroutines are Tornado's; aiobreaker 1.2 is its asyncio fork, last released in 2021; purgatory 3.0 is typed and
can store a circuit, but also has one threshold and one fixed wait. None counts by kind, lets the wait grow, gives a
trial a deadline, or tells an abort from a success or a failure, which is what this file is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

Kind = Literal["device_lost", "out_of_memory", "bad_weights", "wrong_result", "stall"]
Condition = Literal["closed", "open", "half_open"]

KINDS: tuple[Kind, ...] = get_args(Kind)
THRESHOLDS: Mapping[Kind, int] = {
    "device_lost": 3,  # drivers are reset for many reasons, most of them not ours
    "out_of_memory": 2,  # the same models meet the same memory
    "bad_weights": 3,
    "wrong_result": 1,  # a GPU that computes rubbish shows the shopper rubbish
    "stall": 2,
}
"""Failures of a kind since the last success at which the breaker opens."""
FIRST_WAIT = 600.0
"""Seconds that the breaker stays open for the first time; they double with every trial that fails."""
LONGEST_WAIT = 86400.0
TRIAL_SECONDS = 600.0
"""A trial includes a download and a first text."""
KEPT_SECONDS = 86400.0
_MOST = 1000
"""Kept counts above this are nonsense."""


class Breaker:
    """See the module. ``clock`` gives seconds that go on between visits, as ``time.time`` does."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._counts: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._last = 0.0
        """When the last failure was."""
        self._openings = 0
        """How often it has opened in a row; 0: it is closed."""
        self._until = 0.0
        self._trial: float | None = None
        """The deadline of the trial that is under way."""

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def condition(self) -> Condition:
        self._expire()
        if not self._openings:
            return "closed"
        return "open" if self._clock() < self._until else "half_open"

    @property
    def counts(self) -> dict[Kind, int]:
        """Failures by kind since the last success, those that there were. A copy."""
        self._expire()
        return {kind: count for kind, count in self._counts.items() if count}

    def wait(self) -> float:
        """Seconds until the device may be tried; 0 where it may be now."""
        match self.condition:
            case "closed":
                return 0.0
            case "open":
                return self._until - self._clock()
        return max(0.0, self._trial - self._clock()) if self._trial is not None else 0.0

    # -- asking it ----------------------------------------------------------------------------------------------------

    def admit(self) -> bool:
        """Whether the device may be tried now. Where that makes it the trial, whoever asked has to say how it ended."""
        if self.wait() > 0:
            return False
        if self.condition == "half_open":
            self._trial = self._clock() + TRIAL_SECONDS
        return True

    # -- telling it ---------------------------------------------------------------------------------------------------

    def succeeded(self) -> None:
        """The device did its work, whether or not it had been admitted: there is no better proof."""
        self._forget()

    def failed(self, kind: Kind) -> None:
        """The device failed. What fails while the breaker is open was not asked: it waits anew, but not longer."""
        condition = self.condition
        self._counts[kind] = min(_MOST, self._counts[kind] + 1)
        self._last = self._clock()
        self._trial = None
        if condition == "closed" and self._counts[kind] < THRESHOLDS[kind]:
            return
        if condition != "open":
            self._openings += 1
        self._until = self._last + _wait(self._openings)

    def aborted(self) -> None:
        """The user ended the work, or an error of the request's own did: neutral, but a trial is over."""
        self._expire()
        self._trial = None

    # -- between visits -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any] | None:
        """What is to be kept, for JSON; None where there is nothing to remember."""
        counts = self.counts
        if not counts and not self._openings:
            return None
        return {
            "counts": dict(counts),
            "last": self._last,
            "openings": self._openings,
            "until": self._until,
            "trial": self._trial,
        }

    @classmethod
    def from_state(cls, kept: Any, clock: Callable[[], float]) -> Breaker:
        """A breaker with a ``state`` of before. Never raises: what makes no sense counts as nothing to remember.

        Times that lie further ahead than this file would have set them (the machine's clock was put back) are brought
        nearer, so that they cannot shut the device out for ever.
        """
        breaker = cls(clock)
        if not isinstance(kept, Mapping) or not isinstance(kept.get("counts"), Mapping):
            return breaker
        now = clock()
        counts, openings = kept["counts"], _whole(kept.get("openings"))
        last, until, trial = (_time(kept.get(name)) for name in ("last", "until", "trial"))
        if last is None or openings is None or (openings and until is None):
            return breaker
        breaker._counts = {kind: _whole(counts.get(kind)) or 0 for kind in KINDS}
        breaker._last = min(last, now)
        breaker._openings = openings
        if openings:
            assert until is not None
            breaker._until = min(until, now + _wait(openings))
            breaker._trial = None if trial is None else min(trial, now + TRIAL_SECONDS)
        breaker._expire()
        return breaker

    def _expire(self) -> None:
        if self._clock() >= max(self._last, self._until) + KEPT_SECONDS:
            self._forget()


def _wait(openings: int) -> float:
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (min(openings, 64) - 1))


def _whole(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return min(value, _MOST) if fits else None


def _time(value: Any) -> float | None:
    try:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return None
    return float(value) if fits else None
