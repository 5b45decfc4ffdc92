"""One answer being written: steps kept in flight, ids handed out as they come, the turn offered when others wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from ..compiler.graph import NO_TOKEN
from ..errors import DeviceLost
from ..gpu.lease import Lease, LeaseCoordinator
from ..text.sampling import SamplingParams
from .language import NAME, LanguageRunner
from .pace import MOST_STEPS, Pace

Submits = deque[tuple[Any, int]]
"""What was submitted and has not come back: the promise of the state behind it, and how many tokens it makes."""
IN_FLIGHT = 3
IN_FLIGHT_SOFTWARE = 2


class Generation:
    """An async iterator of lists of token ids: those that one read-back brought, so never an empty list.

    ``finish_reason`` is "stop" or "length" once it has ended.
    The end token itself is not handed out. Leaving early (``aclose``) stops after the steps in flight; the
    conversation's cache is cleared either way.
    """

    def __init__(
        self,
        runner: LanguageRunner,
        leases: LeaseCoordinator,
        conversation: asyncio.Lock,
        ids: list[int],
        params: SamplingParams,
        ends: frozenset[int],
        step: int = 0,
    ) -> None:
        self.finish_reason = "length"
        self._runner = runner
        self._leases = leases
        self._conversation = conversation
        self._ids = ids
        self._params = params
        self._ends = ends
        self._last = ends | {NO_TOKEN}
        self._step = step
        self._stream = self._run()

    def __aiter__(self) -> Generation:
        return self

    def __anext__(self) -> Awaitable[list[int]]:
        return self._stream.__anext__()

    def aclose(self) -> Awaitable[None]:
        return self._stream.aclose()

    async def _run(self) -> AsyncGenerator[list[int], None]:
        async with self._alone():
            runner = self._runner
            runner.check_room(len(self._ids))
            # ``limit`` and what is ``asked`` and ``seen`` count the answer's tokens from its start.
            limit = self._step + min(self._params.max_tokens, runner.context - len(self._ids) + 1)
            software = runner.device.limits.software
            depth = runner.decode.in_flight or (IN_FLIGHT_SOFTWARE if software else IN_FLIGHT)
            pace = Pace(1 if software or runner.decode.in_flight else MOST_STEPS)
            seen = asked = self._step
            started = done = False
            flight: Submits = deque()
            while not done:
                async with self._turn(flight) as lease:
                    if not started:
                        started, asked = True, asked + 1
                        first = await runner.start(
                            lease, self._ids, self._params, self._ends, step=self._step, limit=limit
                        )
                        flight.append((first, 1))
                    seen_before = seen
                    while not done:
                        # Another model waits: let the steps in flight end, and give it the turn. Not before this turn
                        # has made a token, or two that ask for ever would leave this one with nothing.
                        offer = self._leases.waiting > 0 and seen > seen_before
                        while not offer and len(flight) < depth and asked < limit:
                            count = min(pace.steps, limit - asked)
                            asked += count
                            flight.append((await runner.steps(lease, self._params, count), count))
                        if not flight:
                            done = asked >= limit
                            break
                        promise, count = flight.popleft()
                        state = await runner.state(promise)
                        pace.arrived(count, more=bool(flight))
                        fresh = state.ids_since(seen)
                        seen = max(seen, state.step)
                        end = next((at for at, token in enumerate(fresh) if token in self._last), None)
                        done = state.stopped or end is not None
                        if ids := fresh[:end]:
                            yield ids
                        if end is not None:
                            if fresh[end] == NO_TOKEN:
                                raise _no_number(state.step)
                            self.finish_reason = "stop"
                    if done:
                        runner.clear_all()  # behind what is in flight

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """The conversation is this text's, and leaves nothing in the cache however it ends."""
        async with self._conversation:
            try:
                yield
            finally:
                self._runner.clear_cache()

    @asynccontextmanager
    async def _turn(self, flight: Submits) -> AsyncIterator[Lease]:
        """The model's turn, which is not over while anything is in flight: staging buffers may be used again only once
        their copies have arrived. A stopped sequence writes nothing."""
        async with self._leases.lease(NAME, holder="a text being written") as lease:
            try:
                yield lease
            finally:
                await self._drain(flight)

    async def _drain(self, flight: Submits) -> None:
        """Waits for all of them, when it is cancelled too; not when it is cancelled again, as where a GPU hangs."""
        cancelled: asyncio.CancelledError | None = None
        while flight:
            try:
                await self._runner.state(flight.popleft()[0])
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    raise
                cancelled = error
            except Exception:  # of what nobody waits for any more
                continue
        if cancelled is not None:
            raise cancelled


def _no_number(step: int) -> DeviceLost:
    return DeviceLost(
        f"The language model gave no number for its token {step}: its weights are damaged, or this GPU computes wrong "
        "results. Another model, an update of the browser or driver, or the cloud may do better.",
        kind="wrong_result",
        token=step,
    )
