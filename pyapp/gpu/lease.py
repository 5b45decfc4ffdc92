"""One model at a time may run: leases, first come, first served. Pure asyncio; the GPU work hangs on two callbacks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..errors import BadArgument, LeaseTimeout, StaleLease

Hook = Callable[[str], Awaitable[None] | None]
"""Returns None where it is done at once, else what is to be waited for."""


@dataclass
class Lease:
    """The right of ``model`` to run. ``epoch`` is unique; a lease is good until its block is left."""

    model: str
    epoch: int
    holder: str
    active: bool = True

    def check(self) -> None:
        """Raises ``StaleLease`` when the lease has ended: its memory belongs to somebody else by now."""
        if not self.active:
            raise StaleLease(f"The lease {self.epoch} of {self.model} has ended.", model=self.model, epoch=self.epoch)


class LeaseCoordinator:
    """Hands out leases in the order of asking.

    ``enter(model)`` runs when a lease is granted (weights become resident) and ``leave(model)`` when it ends
    (activations are cleared); the next lease starts after ``leave``. Cancellation at any await leaves nothing held.
    """

    def __init__(self, enter: Hook, leave: Hook) -> None:
        self._enter = enter
        self._leave = leave
        self._queue: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._epoch = 0
        self._busy = False
        self._holder_task: asyncio.Task[object] | None = None
        self.current: Lease | None = None

    @property
    def waiting(self) -> int:
        """How many wait for their turn: a long holder offers its own when this is not zero."""
        return len(self._queue)

    @asynccontextmanager
    async def lease(self, model: str, *, holder: str = "", timeout: float | None = None) -> AsyncIterator[Lease]:
        """The turn of ``model``. ``holder`` names the work, for whoever waits in vain; ``timeout`` in seconds.

        Raises ``LeaseTimeout`` naming the holder, ``BadArgument`` when this task holds a lease already.
        """
        await self._acquire(model, timeout)
        self._epoch += 1
        lease = Lease(model, self._epoch, holder or model)
        self.current, self._holder_task = lease, asyncio.current_task()
        try:
            entering = self._enter(model)
            if entering is not None:
                await entering
            yield lease
        finally:
            lease.active = False
            self._holder_task = None
            left = self._leave_at_once(model)
            if left is not None:
                # A task of its own, which ends the lease itself: whoever is cancelled here stops waiting for it, and
                # the next lease still starts after it.
                leaving = asyncio.ensure_future(left)
                leaving.add_done_callback(self._left)
                await asyncio.shield(leaving)

    def _leave_at_once(self, model: str) -> Awaitable[None] | None:
        """Ends the lease; returns what remains to be waited for before it has ended."""
        left = None
        try:
            left = self._leave(model)
        finally:
            if left is None:
                self._left()
        return left

    def _left(self, _: object = None) -> None:
        self.current = None
        self._pass_on()

    async def _acquire(self, model: str, timeout: float | None) -> None:
        if self._holder_task is not None and self._holder_task is asyncio.current_task():
            raise BadArgument(
                f"This task holds the lease of {self.current and self.current.model} already; nesting would deadlock."
            )
        if not self._busy:
            self._busy = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((model, turn))
        try:
            await asyncio.wait_for(asyncio.shield(turn), timeout)
        except TimeoutError:
            self._abandon(turn)
            holder = self.current.holder if self.current else "nobody"
            raise LeaseTimeout(
                f"{model} waited {timeout} s for the GPU, which {holder} holds; try again or stop that.",
                holder=holder, seconds=timeout,
            ) from None  # fmt: skip
        except BaseException:
            self._abandon(turn)
            raise

    def _abandon(self, turn: asyncio.Future[None]) -> None:
        """Leaves the queue; a turn that was granted meanwhile goes to the next."""
        self._queue = deque(item for item in self._queue if item[1] is not turn)
        if turn.done() and not turn.cancelled():
            self._pass_on()
        turn.cancel()

    def _pass_on(self) -> None:
        while self._queue:
            _, turn = self._queue.popleft()
            if not turn.done():
                # Still busy: the turn is the waiter's from now on, though its task has yet to wake.
                turn.set_result(None)
                return
        self._busy = False
