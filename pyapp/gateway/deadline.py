"""A time limit that is put off again and again."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

import anyio


class Deadline:
    """Ends its ``with`` block when it was not restarted in time; ``passed`` tells.

    One timer for a whole stream, which looks when it comes up whether it is still due: a timer for each event would
    cost more than the event itself.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """The limit that counts now."""
        self.passed = False
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + seconds
        self._scope = anyio.CancelScope()
        self._timer: asyncio.TimerHandle | None = None

    def restart(self, seconds: float) -> None:
        """``seconds`` from now."""
        self.seconds = seconds
        self._due = self._loop.time() + seconds
        if self._timer and self._due < self._timer.when():  # a shorter limit than the one that the timer was for
            self._set()

    def stop(self) -> None:
        """No limit until ``restart``."""
        self._due = math.inf

    def __enter__(self) -> Deadline:
        self._scope.__enter__()
        self._set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._unset()
        return bool(self._scope.__exit__(kind, error, trace))

    def _set(self) -> None:
        self._unset()
        self._timer = self._loop.call_at(min(self._due, self._loop.time() + self.seconds), self._look)

    def _unset(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._loop.time() < self._due:
            self._set()
            return
        self.passed = True
        self._scope.cancel()
