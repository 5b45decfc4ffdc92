"""One attempt to make the device ready: everybody who wants the device waits for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

from pyapp.errors import TandemError


class StillLoading(TandemError):
    """Why the device cannot write yet. The cloud writes meanwhile, or the text waits: never raised to a user."""

    code = "loading"

    def __init__(self) -> None:
        super().__init__("This device is being made ready: its models are still being loaded.")


class Flight:
    """``make_ready`` is the attempt; it says through this object where it has come to.

    It may wait for another tab's turn (``queued``), and then downloads models (``fetching``): both may take as long as
    they like, and can be broken off. A flight called off is over for everybody at once, though its task takes a few
    more steps to leave: the next one begins ``after`` it.
    """

    def __init__(self, make_ready: Callable[[Flight], Coroutine[None, None, None]], after: Flight | None) -> None:
        self.late = asyncio.Event()
        """Set once it may take long: who does not wait for that need not wait for the rest either."""
        self.queued = False
        self.fetching = False
        self.called_off = False
        self._waiting = 0
        self._after = after.task if after is not None and not after.task.done() else None
        self.task: asyncio.Task[None] = asyncio.ensure_future(make_ready(self))

    @property
    def under_way(self) -> bool:
        return not self.called_off and not self.task.done()

    @property
    def wanted(self) -> bool:
        """Whether anybody waits for it who would wait for another tab too."""
        return self._waiting > 0

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Around the waiting of somebody who would wait for another tab too."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def call_off(self) -> None:
        """Leaves the queue, or gives back the turn that has just come, or breaks off the download.

        Does nothing afterwards: the opening of an engine is not broken off.
        """
        if self.under_way and (self.queued or self.fetching):
            self.called_off = True
            self.task.cancel()

    async def clear(self) -> None:
        """Waits until the one before it has let go of the turn."""
        if self._after is not None:
            await asyncio.wait([self._after])
            self._after = None
