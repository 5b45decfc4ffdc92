"""One answer being written: steps kept in flight, ids handed out as they come, the turn offered when others wait."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from ..gpu.lease import LeaseCoordinator
from ..text.sampling import SamplingParams
from .language import NAME, LanguageRunner

IN_FLIGHT = 3
IN_FLIGHT_SOFTWARE = 2


class Generation:
    """An async iterator of token ids; ``finish_reason`` is "stop" or "length" once it has ended.

    The end token itself is not handed out. Leaving early (``aclose``) stops after the steps in flight; the
    conversation's cache is cleared either way.
    """

    def __init__(
        self,
        runner: LanguageRunner,
        leases: LeaseCoordinator,
        ids: list[int],
        params: SamplingParams,
        ends: frozenset[int],
    ) -> None:
        self.finish_reason = "length"
        self._runner = runner
        self._leases = leases
        self._ids = ids
        self._params = params
        self._ends = ends
        self._stream = self._run()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> int:
        return await self._stream.__anext__()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _run(self) -> AsyncGenerator[int, None]:
        runner = self._runner
        runner.check_room(len(self._ids))
        limit = min(self._params.max_tokens, runner.context - len(self._ids) + 1)
        depth = IN_FLIGHT_SOFTWARE if runner.device.limits.software else IN_FLIGHT
        seen, asked = 0, 0
        started = done = False
        flight: deque[Any] = deque()
        try:
            while not done:
                async with self._leases.lease(NAME, holder="a text being written"):
                    if not started:
                        flight.append(runner.start(self._ids, self._params, self._ends, limit=limit))
                        started, asked = True, 1
                    try:
                        while not done:
                            # Another model waits: let the steps in flight end, and give it the turn.
                            offer = self._leases.waiting > 0
                            while not offer and len(flight) < depth and asked < limit:
                                flight.append(runner.step(self._params))
                                asked += 1
                            if not flight:
                                done = asked >= limit
                                break
                            state = await runner.state(flight.popleft())
                            fresh = state.ids_since(seen)
                            seen = max(seen, state.step)
                            done = state.stopped
                            for token in fresh:
                                if token in self._ends:
                                    self.finish_reason, done = "stop", True
                                    break
                                yield token
                    finally:
                        await self._drain(flight)
        finally:
            runner.clear_cache()

    async def _drain(self, flight: deque[Any]) -> None:
        """Staging buffers may be used again only once their copies have arrived. A stopped sequence writes nothing."""
        while flight:
            with suppress(Exception):
                await self._runner.state(flight.popleft())
