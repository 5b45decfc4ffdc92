"""Telling a device that hangs from one that is slow: nothing at all has come of it for too long.

What counts is headway of any kind (``pulse``): another text or a picture that has its turn, or weights that stream in,
are no stall. A device that is made ready is watched by what is told of it, with more patience (``opening``). Waiting
for another tab, or for a download, is not watched here.

Only time in which this program runs counts, by ticks of a timer: a laptop that slept, a tab that was frozen or whose
timers are throttled, and Python at work on something else have not given the GPU a chance to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import ceil
from typing import Self, TypeVar

from pyapp.errors import DeviceLost

T = TypeVar("T")

TICK_SECONDS = 1.0
GRACE_TICKS = 2
"""After so many the wait is broken off, where giving the device up has not ended it."""
CHUNK = 256
"""Tokens of a prompt that may take as long as one token: about what the engine runs at once."""


def patience(prompt_tokens: int) -> int:
    """How many times as long the first token may take: the prompt is read for it, by shaders that may be new."""
    return 1 + ceil(prompt_tokens / CHUNK)


class Watch:
    """A context in which each ``wait`` for the device ends, at the latest when nothing has come of it for ``seconds``.

    ``seconds``: None for as long as it takes. ``clock`` gives seconds; ``pulse`` a number that changes with whatever
    the device gets done. ``give_up`` hears of a stall first; closing the engine ends what hangs in it.
    """

    def __init__(
        self,
        seconds: float | None,
        clock: Callable[[], float],
        pulse: Callable[[], int],
        give_up: Callable[[DeviceLost], None],
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._pulse = pulse
        self._give_up = give_up
        self._ticking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[object] | None = None
        """Who waits; None while nobody does."""
        self._still = 0.0
        """Seconds without headway."""
        self._allowed = 0.0
        self._stall: DeviceLost | None = None
        self._cancels = 0

    async def __aenter__(self) -> Self:
        if self._seconds is not None:
            self._ticking = asyncio.ensure_future(self._tick(self._seconds))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    async def wait(self, work: Awaitable[T], times: float = 1) -> T:
        """What comes of ``work``, which may take ``times`` as long. Raises: DeviceLost when the device stalls."""
        task = self._task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._still, self._allowed = 0.0, (self._seconds or 0) * times
        try:
            return await work
        except (Exception, asyncio.CancelledError) as error:
            for _ in range(self._cancels):
                task.uncancel()
            if self._stall is None:
                raise
            if task.cancelling() > before:
                raise asyncio.CancelledError from error  # somebody else wants the end too, and nothing instead
            raise self._stall from error
        finally:
            self._task, self._cancels = None, 0

    async def _tick(self, seconds: float) -> None:
        tick = min(TICK_SECONDS, seconds / 4)
        pulse, then, ticks = self._pulse(), self._clock(), 0
        while True:
            await asyncio.sleep(tick)
            now = self._clock()
            # Longer than that is no time in which anything could have been heard.
            passed, then = min(now - then, 2 * tick), now
            if self._task is None or pulse != (pulse := self._pulse()):
                self._still = 0.0
                continue
            self._still += passed
            if self._stall is None and self._still >= self._allowed:
                self._stall = _stalled(self._allowed)
                self._give_up(self._stall)
            elif self._stall is not None:
                ticks += 1
                if ticks > GRACE_TICKS:
                    self._cancels += 1
                    self._task.cancel()


def _stalled(seconds: float) -> DeviceLost:
    return DeviceLost(
        f"The GPU has finished nothing for {seconds:g} seconds; close other pages and programs that use it.",
        kind="stall",
        seconds=seconds,
    )
