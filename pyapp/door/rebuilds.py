"""How often a lost device is made ready again: a number of times an hour, and after a failure not at once.

This is about one visit, and a device that has worked on it. Whether a visit opens the device at all is the breaker's
affair (``visits``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

HOUR = 3600.0
FIRST_DELAY = 5.0
"""Seconds from a rebuild that failed to the next one; they double with every failure in a row."""


class Rebuilds:
    """Counts rebuilds. ``refusal`` says whether one may begin; whoever begins one says how it ended.

    ``clock`` gives seconds that never go back.
    """

    def __init__(self, per_hour: int, clock: Callable[[], float]) -> None:
        self._per_hour = per_hour
        self._clock = clock
        self._begun: deque[float] = deque()
        self._failures = 0
        self._earliest = 0.0

    @property
    def ever(self) -> bool:
        """Whether there are rebuilds at all."""
        return self._per_hour > 0

    def refusal(self) -> str | None:
        """Why none may begin now, with figures, as the rest of a sentence; None where one may."""
        if not self.ever:
            return "rebuilds are switched off"
        now = self._clock()
        while self._begun and self._begun[0] <= now - HOUR:
            self._begun.popleft()
        if len(self._begun) >= self._per_hour:
            wait = self._begun[0] + HOUR - now
            return f"it was rebuilt {len(self._begun)} times within the hour, the most allowed; next in {_time(wait)}"
        if now < self._earliest:
            return f"the last rebuild failed; the next may begin in {_time(self._earliest - now)}"
        return None

    def begin(self) -> None:
        """Counts a rebuild that begins now."""
        self._begun.append(self._clock())

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        """Puts the next one off."""
        self._earliest = self._clock() + FIRST_DELAY * 2**self._failures
        self._failures += 1


def _time(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 120 else f"{round(seconds / 60)} min"
