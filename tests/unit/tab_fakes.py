"""The browser's side of several tabs: one lock, a queue, and a channel that everybody but the speaker hears."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class FakeTabs:
    """All tabs of a site. ``lock`` makes what ``Services.tab_lock`` makes; ``refused``: there are no locks here."""

    def __init__(self, *, refused: bool = False) -> None:
        self.refused = refused
        self.holder: FakeTabLock | None = None
        self.queue: deque[tuple[FakeTabLock, asyncio.Future[bool]]] = deque()
        self.members: list[FakeTabLock] = []
        self.tabs: list[Any] = []
        """For the tests: whatever they call a tab."""
        self.said: list[str] = []
        self.answer_seconds = 0.0
        """How long the browser takes to say who waits, and whether the lock was free."""

    def lock(self, hear: Callable[[str], None]) -> FakeTabLock:
        self.members.append(FakeTabLock(self, hear))
        return self.members[-1]

    def crash(self, lock: FakeTabLock) -> None:
        """The tab is gone from one moment to the next, and the browser frees what it had."""
        self.members.remove(lock)
        lock.release()

    def pass_on(self) -> None:
        self.holder = None
        while self.queue:
            lock, turn = self.queue.popleft()
            if not turn.cancelled():
                self.holder = lock
                turn.set_result(True)
                return


class FakeTabLock:
    """See ``pyapp.door.tabs.TabLock``."""

    def __init__(self, tabs: FakeTabs, hear: Callable[[str], None]) -> None:
        self._tabs = tabs
        self.hear = hear
        self.closed = False

    async def acquire(self, *, wait: bool) -> bool:
        tabs = self._tabs
        assert not self.closed
        if tabs.refused:
            return True
        assert tabs.holder is not self, "a tab that has the lock would wait for itself"
        try:
            return await (self._queue() if wait else self._ask())
        except asyncio.CancelledError:
            self.release()
            raise

    async def _ask(self) -> bool:
        tabs = self._tabs
        free = tabs.holder is None and not tabs.queue
        if free:
            tabs.holder = self
        if tabs.answer_seconds:
            await asyncio.sleep(tabs.answer_seconds)
        return free

    async def _queue(self) -> bool:
        tabs = self._tabs
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        tabs.queue.append((self, turn))
        if tabs.holder is None:
            tabs.pass_on()
        return await turn

    def release(self) -> None:
        """As in ``tabs.mjs``: who waits is told that the place is lost."""
        tabs = self._tabs
        for _, turn in [entry for entry in tabs.queue if entry[0] is self]:
            if not turn.done():
                turn.set_result(False)
        tabs.queue = deque(entry for entry in tabs.queue if entry[0] is not self)
        if tabs.holder is self:
            tabs.pass_on()

    async def wanted(self) -> bool:
        await asyncio.sleep(self._tabs.answer_seconds)
        return bool(self._tabs.queue)

    def say(self, line: str) -> None:
        assert not self.closed
        self._tabs.said.append(line)
        for member in self._tabs.members:
            if member is not self and not member.closed:
                asyncio.get_running_loop().call_soon(member.hear, line)

    def close(self) -> None:
        self.release()
        self.closed = True
