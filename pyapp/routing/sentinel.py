"""The pressure sentinel: whether the next turn had better go to the cloud, before anything fails on the device.

    context    the prompt is longer than a device with little memory is good for
    pool       a conversation goes on, and the pool's KV cache has too little room for the answer that was asked for
    memory     memory has run out more than once in this conversation
    slow       the device writes at under half of its own earlier rate, as it does when it is hot
    machine    the browser says that the whole machine is in a critical state, and has been for some seconds

The first two are read off the turn itself, so they end with a new conversation, or with a cache that has more room. The
third ends with the conversation or after a while. The fourth ends when the device has rested; then one turn shows
whether it is fast again. The fifth ends when the browser says so. Those three are known before the turn (``standing``).

A first turn is never moved for the pool's sake: however little room there is, the device is what it was opened for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Kind = Literal["context", "pool", "memory", "slow", "machine"]
MachineState = Literal["nominal", "fair", "serious", "critical"]
"""As the Compute Pressure API has it, best first."""

SMALL_GIB = 4.0
"""A device with less memory than this, shared by everything on it, has little."""
MEMORY_ERRORS = 2
MEMORY_SECONDS = 600.0
"""Memory that ran out longer ago than this says nothing about now: other pages come and go."""
REST_SECONDS = 180.0
EARLIER_TURNS = 3
"""Turns that make a rate to compare with."""
RECENT_TURNS = 3
"""Turns whose median is compared: one slow turn, while a picture was looked at, is no heat."""
MOST_TURNS = 32
"""Nothing older is remembered, of any kind."""
CRITICAL_SECONDS = 5.0
"""A machine is critical for a moment whenever something starts."""
LEAST_TOKENS = 16
"""Shorter answers say little about the rate."""


@dataclass(frozen=True)
class Ahead:
    """The turn that is about to be answered."""

    messages: Sequence[Mapping[str, str]]
    tokens: int
    """Of its prompt."""
    wanted: int
    """The most tokens that the answer may have."""
    room: int
    """Positions of the pool's KV cache: for the prompt and all of the answer but its last token."""


@dataclass(frozen=True)
class Pressure:
    """Why a turn goes to the cloud: ``message`` is a sentence for people."""

    kind: Kind
    message: str


class Sentinel:
    """See the module. ``limit``: tokens of context for a device with little memory, None for any number; ``small``:
    whether this device is one; ``clock``: seconds that never go back."""

    def __init__(self, limit: int | None, small: bool, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._small = small
        self._clock = clock
        self._messages: list[Mapping[str, str]] = []
        """Of the latest turn."""
        self._errors: list[float] = []
        """When memory ran out in this conversation."""
        self._critical_since: float | None = None
        self.renew()

    def renew(self) -> None:
        """The device works in another way from now on (its weights are streamed, say): rates begin anew."""
        self._earlier: deque[float] = deque(maxlen=MOST_TURNS)
        self._recent: list[float] = []
        self._enough = RECENT_TURNS
        """Recent turns that it takes to judge; after a rest one does."""
        self._rested_at = self._clock()
        self._rates = (0.0, 0.0)

    # -- what happens -------------------------------------------------------------------------------------------------

    def wrote(self, tokens: int, seconds: float) -> None:
        """The device wrote ``tokens`` in ``seconds``, from the first to the last of them, undisturbed."""
        if tokens < LEAST_TOKENS or seconds <= 0:
            return
        self._recent.append(tokens / seconds)
        if len(self._recent) < self._enough:
            return
        if len(self._earlier) >= EARLIER_TURNS:
            now, before = median(self._recent), median(self._earlier)
            if now < before / 2:
                self._rates = (now, before)
                self._rested_at = self._clock() + REST_SECONDS
                self._recent, self._enough = [], 1
                return
        self._rested_at, self._enough = self._clock(), RECENT_TURNS
        if len(self._recent) > RECENT_TURNS - 1:
            self._earlier.append(self._recent.pop(0))

    def ran_out(self) -> None:
        """The device's memory was too little for a turn."""
        self._errors = [*self._errors, self._clock()][-MOST_TURNS:]

    def pressed(self, state: MachineState) -> None:
        """The machine is in this state from now on. Critical for long enough, it is so until it is fair again."""
        if state == "critical":
            self._critical_since = self._clock() if self._critical_since is None else self._critical_since
        elif state != "serious" or not self._is_critical():
            self._critical_since = None

    # -- what follows from it -----------------------------------------------------------------------------------------

    def weigh(self, ahead: Ahead) -> Pressure | None:
        """Why the turn had better go to the cloud; None where the device may have it. To be called for every turn."""
        self._follow(ahead.messages)
        if self._small and self._limit is not None and ahead.tokens > self._limit:
            return Pressure(
                "context",
                f"The conversation is {ahead.tokens:,} tokens long, more than the {self._limit:,} that a device with "
                "little memory is good for, so the cloud writes; a new conversation comes back to this device.",
            )
        left = max(0, ahead.room + 1 - ahead.tokens)
        if left < ahead.wanted and any(message["role"] == "assistant" for message in ahead.messages):
            return Pressure(
                "pool",
                f"The conversation is {ahead.tokens:,} tokens long and this device has room for {left:,} more, fewer "
                f"than the {ahead.wanted:,} asked for, so the cloud writes; a new conversation comes back to this "
                "device.",
            )
        return self.standing()

    def standing(self) -> Pressure | None:
        """Why any turn of this conversation had better go to the cloud, as far as that is known before it."""
        since = self._clock() - MEMORY_SECONDS
        self._errors = [when for when in self._errors if when > since]
        if len(self._errors) >= MEMORY_ERRORS:
            return Pressure(
                "memory",
                f"This device's memory ran out {len(self._errors)} times in this conversation, so the cloud writes; a "
                f"new conversation, or {MEMORY_SECONDS / 60:.0f} minutes, bring it back.",
            )
        if (rest := self._rested_at - self._clock()) > 0:
            now, before = self._rates
            return Pressure(
                "slow",
                f"This device has slowed down from {before:.3g} to {now:.3g} tokens a second, so the cloud writes and "
                f"the device rests, {max(1, round(rest))} seconds more.",
            )
        if self._is_critical():
            return Pressure(
                "machine",
                "The browser reports that this machine is overloaded, so the cloud writes until that has passed.",
            )
        return None

    def changes_in(self) -> float | None:
        """Seconds until ``standing`` may say something else although nothing happens; None: it will not."""
        times = [self._rested_at, *(when + MEMORY_SECONDS for when in self._errors)]
        if self._critical_since is not None:
            times.append(self._critical_since + CRITICAL_SECONDS)
        now = self._clock()
        return min((when - now for when in times if when > now), default=None)

    def _is_critical(self) -> bool:
        since = self._critical_since
        return since is not None and self._clock() - since >= CRITICAL_SECONDS

    def _follow(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Notices a new conversation: one that does not go on from the messages before."""
        if list(messages[: len(self._messages)]) != self._messages:
            self._errors = []
        self._messages = list(messages)
