"""The turn at the GPU that the tabs of one site take: one pool at a time, whoever asked first goes first.

A tab keeps its turn while nobody else wants it. When another tab waits, the holder hands it on as soon as it has been
idle for ``HOLD_SECONDS``; one that never is idle hands it on between two pieces of work, once it has had it for
``TURN_SECONDS``. No piece of work is broken off. A tab that is closed or crashes loses its turn by itself: the browser
frees the lock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from pyapp.errors import Busy

HOLD_SECONDS = 2.0
"""A tab that has just worked is likely to work again: for so long its models stay where they are."""
TURN_SECONDS = 10.0
"""Loading models takes seconds, so a turn is worth some work before the next tab loads its own."""
WAIT_SECONDS = 60.0
"""How long a call that cannot do without the GPU waits for its turn."""
ASK_SECONDS = 1.0
"""Whoever waits says so this often: to a new holder, and to one that heard of it before the queue showed it."""


class TabLock(Protocol):
    """One lock that all tabs of the site share; ``tabs.mjs`` in a browser."""

    async def acquire(self, *, wait: bool) -> bool:
        """True once it is held, or where there are no locks. False: another tab has it, or, with ``wait``, ``release``
        has given up the place in the queue.

        Those who wait are served in the order of asking. Cancelling leaves the queue.
        """
        ...

    def release(self) -> None:
        """Gives it back, or leaves the queue."""
        ...

    async def wanted(self) -> bool:
        """Whether other tabs wait for it."""
        ...

    def say(self, line: str) -> None:
        """Tells the other tabs; theirs comes to what the lock was made with."""
        ...

    def close(self) -> None:
        """Releases, and hears nothing any more."""
        ...


class NoTabs:
    """The lock of a client that shares its GPU with no other tab."""

    def __init__(self, hear: Callable[[str], None]) -> None: ...

    async def acquire(self, *, wait: bool) -> bool:
        return True

    def release(self) -> None: ...

    async def wanted(self) -> bool:
        return False

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


class Turn:
    """This client's turn.

    ``page`` is what other tabs call this one. ``leave`` is called when the turn is to be handed on: it gives the GPU
    back and returns when that is done. ``clock`` gives seconds.
    """

    def __init__(
        self,
        make_lock: Callable[[Callable[[str], None]], TabLock],
        page: str,
        leave: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self.held = False
        self._page = page
        self._leave = leave
        self._clock = clock
        self._holder = ""
        self._wanted = False
        self._work: list[str] = []
        self._since = 0.0
        self._idle_since = 0.0
        self._changed = asyncio.Event()
        self._waiting_for_idle: asyncio.Task[None] | None = None
        self._passing = asyncio.Lock()
        """Held while the turn changes hands: whoever asks for it again does so after it has been given back."""
        self._lock = make_lock(self._hear)

    # -- asking for it ------------------------------------------------------------------------------------------------

    async def take_now(self) -> bool:
        """Takes the turn if nobody has it; whether it is held now."""
        async with self._passing:
            if not self.held and await self._lock.acquire(wait=False):
                await self._taken()
        return self.held

    async def take(self) -> None:
        """Waits in the queue until the turn comes, and lets the holder know. Cancelling leaves nothing held.

        Raises: what the lock raises.
        """
        while not await self._queue():  # noqa: ASYNC110 - the place in the queue was lost: another one
            await asyncio.sleep(ASK_SECONDS)
        await self._taken()

    async def _queue(self) -> bool:
        """One place in the queue; whether the turn came of it."""
        asking = asyncio.ensure_future(self._lock.acquire(wait=True))
        try:
            await asyncio.sleep(0)  # first the place in the queue, then the word
            while not asking.done():
                self._say(op="wanted")
                await asyncio.wait([asking], timeout=ASK_SECONDS)
        except asyncio.CancelledError:
            if asking.cancel():
                await asyncio.wait([asking])
            else:
                self._lock.release()
            raise
        return asking.result()

    def give(self) -> None:
        """Gives the turn back: there is nothing on the GPU any more."""
        if self.held:
            self.held = self._wanted = False
            self._lock.release()
            self._changed.set()

    def busy(self, waited: float | None = None) -> Busy:
        """The error for a turn that did not come (after ``waited`` seconds), naming who has it."""
        who = f" ({self._holder})" if self._holder else ""
        after = "" if waited is None else f", and did not give it back within {waited:.0f} s"
        return Busy(
            f"Another tab of this site has the GPU{who}{after}; close that tab, or let it come to an end.",
            holder=self._holder,
            seconds=waited,
        )

    # -- having it ----------------------------------------------------------------------------------------------------

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Around a piece of work on the GPU: the turn is not handed on meanwhile. ``what`` is for those who wait."""
        self._work.append(what)
        self._tell()
        try:
            yield
        finally:
            self._work.remove(what)
            self._idle_since = self._clock()
            self._changed.set()
            self._tell()

    async def offer(self) -> None:
        """Before a piece of work: hands the turn on first if this tab has had its share and another one waits."""
        if self._has_had_its_share() and await self._lock.wanted() and self._has_had_its_share():
            await asyncio.shield(asyncio.ensure_future(self._hand_on()))

    def _has_had_its_share(self) -> bool:
        idle = self.held and not self._work
        return idle and self._wanted and self._clock() - self._since >= TURN_SECONDS

    def close(self) -> None:
        if self._waiting_for_idle is not None:
            self._waiting_for_idle.cancel()
        self.held = False
        self._lock.close()

    async def _taken(self) -> None:
        self.held = True
        self._since = self._idle_since = self._clock()
        # Whoever queued before this tab had the turn has said so to another holder.
        if await self._lock.wanted():
            self._want()

    def _want(self) -> None:
        self._wanted = True
        self._tell()
        if self._waiting_for_idle is None or self._waiting_for_idle.done():
            self._waiting_for_idle = asyncio.ensure_future(self._hand_on_when_idle())

    async def _hand_on_when_idle(self) -> None:
        while self.held and self._wanted:
            self._changed.clear()
            left = None if self._work else self._idle_since + HOLD_SECONDS - self._clock()
            if left is not None and left <= 0:
                if not await self._lock.wanted():
                    self._wanted = False  # closed, or tired of waiting
                else:
                    await self._hand_on()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    async def _hand_on(self) -> None:
        """Does nothing where the turn has gone, or work has begun, since it was decided.

        A second hand-on would take the place in the queue that this tab has meanwhile asked for.
        """
        if not self.held or self._work:
            return
        self.held = self._wanted = False
        async with self._passing:
            try:
                await self._leave()
            finally:
                self._lock.release()

    # -- what tabs say to each other ----------------------------------------------------------------------------------

    def _hear(self, line: str) -> None:
        said = json.loads(line)
        if said["op"] == "wanted" and self.held:
            self._want()
        elif said["op"] == "held" and not self.held:
            self._holder = f"“{said['page']}” {said['doing']}" if said["page"] else f"it {said['doing']}"

    def _tell(self) -> None:
        if self.held and self._wanted:
            self._say(op="held", page=self._page, doing=f"is {self._work[-1]}" if self._work else "is idle")

    def _say(self, **said: str) -> None:
        self._lock.say(json.dumps(said))
