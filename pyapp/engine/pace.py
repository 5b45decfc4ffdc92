"""How many decode steps go into one submit: enough to hide what a submit costs Python, few enough that nobody waits."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_SECONDS = 0.004
"""The tokens of a submit come together, the first of them so much later than it was made at most; an abort, or another
model's turn, waits for the submits in flight."""
MOST_STEPS = 8
SMOOTHING = 0.5
"""Share of a new measurement: within a few submits the pace is that of the device, and one hiccup does not halve it."""


class Pace:
    """Goes by the time from one arrival to the next while more are on their way. ``most``: steps a submit; 1 where a
    step takes long anyway. ``clock`` gives seconds."""

    def __init__(self, most: int = MOST_STEPS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._most = most
        self._clock = clock
        self._last: float | None = None
        self._step_seconds: float | None = None

    @property
    def steps(self) -> int:
        """Steps for the next submit."""
        if self._step_seconds is None:
            return 1
        return max(1, min(self._most, int(MOST_SECONDS / max(self._step_seconds, 1e-6))))

    def arrived(self, steps: int, more: bool) -> None:
        """A submit of so many steps has arrived; ``more``: others are on their way, so the device does not rest."""
        now, last = self._clock(), self._last
        self._last = now if more else None
        if last is None:
            return
        seconds = (now - last) / steps
        known = self._step_seconds
        self._step_seconds = seconds if known is None else known + SMOOTHING * (seconds - known)
