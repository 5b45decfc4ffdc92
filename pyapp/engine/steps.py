"""Running a plan with all of its weights in place, or with some of them passing through the window.

``run`` of either submits spans of the plan and returns the promise of what is copied out at the end. What is to be
cleared is cleared by the submit that copies.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from ..gpu.device import Device
from ..gpu.plan import Plan
from ..gpu.replay import Ranges, Replay
from ..gpu.residency import Residency
from .bounds import Bounds, Spans

IN_FLIGHT = 2
"""Submits that may wait for the GPU while the next block is read: as many as the window has slots."""
AHEAD_ROWS = 24
"""Dispatches of a chunk that are submitted before the others: a GPU gets a submit once all of it is recorded, at 3 to
5 us a dispatch, and has nothing to do meanwhile. So few that it begins soon, so many that they keep it busy until the
rest comes, with some 15 us each on a fast GPU."""


class Steps(Protocol):
    """A plan that can be run."""

    replay: Replay

    @property
    def in_flight(self) -> int | None:
        """The most steps that should be on their way at once; None: as many as hide the round trip."""
        ...

    async def run(
        self, spans: Spans, *, tiles: int = 1, repeat: int = 1, copy: tuple[Any, int, int] | None = None,
        staging: Any = None, clear: Ranges | None = None,
    ) -> Any:  # fmt: skip
        """Submits ``spans`` ([from, to) rows of the plan), ``repeat`` times over; as ``Replay.submit``."""
        ...


class EmulatedSteps:
    """Everything is in place, on a device that no driver watches: one submit, nothing to wait for."""

    in_flight: int | None = None

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    async def run(
        self, spans: Spans, *, tiles: int = 1, repeat: int = 1, copy: tuple[Any, int, int] | None = None,
        staging: Any = None, clear: Ranges | None = None,
    ) -> Any:  # fmt: skip
        return self.replay.submit(spans, tiles=tiles, repeat=repeat, copy=copy, staging=staging, clear=clear)


class ResidentSteps:
    """Everything is in place: one submit, or as many as ``Bounds`` wants of what takes long.

    Of those that copy nothing out, two are on their way at most, so that whoever is cancelled has not queued the rest
    of a long prompt; the others are waited for by whoever asked for the copy. The first rows of a chunk of tokens go
    ahead of the rest and are waited for together with it.
    """

    in_flight: int | None = None

    def __init__(self, replay: Replay, device: Device) -> None:
        self.replay = replay
        self._device = device
        self._bounds = Bounds(replay.plan)
        self._flying: deque[Any] = deque()
        # Not of a step, which has others on their way before it.
        self._ahead = AHEAD_ROWS if replay.plan.tile > 1 else 0

    async def run(
        self, spans: Spans, *, tiles: int = 1, repeat: int = 1, copy: tuple[Any, int, int] | None = None,
        staging: Any = None, clear: Ranges | None = None,
    ) -> Any:  # fmt: skip
        work = repeat * self._bounds.work(spans, tiles)
        most = self._bounds.most(self.replay.pace)
        if work <= most:
            telling = self._bounds.telling(work, most)
            if repeat == 1 and spans:
                spans = self._begun(spans, tiles)
            promise = self.replay.submit(
                spans, tiles=tiles, repeat=repeat, copy=copy, staging=staging, work=telling, clear=clear
            )
            if staging is None:
                await self._submitted()
            return promise
        for _ in range(repeat - 1):
            await self._cut(spans, tiles, None, None, None)
        return await self._cut(spans, tiles, copy, staging, clear)

    def _begun(self, spans: Spans, tiles: int) -> Spans:
        """Submits the first rows of a chunk of tokens; what is left of ``spans``."""
        (begin, end), *others = spans
        upto = begin + self._ahead
        if upto == begin or upto >= end:
            return spans
        self.replay.submit(((begin, upto),), tiles=tiles)
        return ((upto, end), *others)

    async def _cut(
        self, spans: Spans, tiles: int, copy: tuple[Any, int, int] | None, staging: Any,
        clear: Ranges | None,
    ) -> Any:  # fmt: skip
        rest = spans
        while True:
            most = self._bounds.most(self.replay.pace)
            part, rest = self._bounds.cut(rest, tiles, most)
            work = self._bounds.telling(self._bounds.work(part, tiles), most)
            if not rest and staging is not None:
                return self.replay.submit(part, tiles=tiles, copy=copy, staging=staging, work=work, clear=clear)
            self.replay.submit(part, tiles=tiles, work=work)
            await self._submitted()
            if not rest:
                return None

    async def _submitted(self) -> None:
        """Waits until few enough are on their way; until none is, where their pace is not known yet."""
        self._flying.append(self._device.submitted())
        while len(self._flying) >= IN_FLIGHT or (self._flying and not self.replay.pace):
            await self._device.settled(self._flying.popleft())


class StreamedSteps:
    """Some blocks take turns in the window: a submit for each of them, the next one read and written meanwhile.

    A block's upload takes effect in queue order, after the submits that read what lay in its slot. The waiting only
    bounds how many bytes are staged: the block after next is not read before the GPU has done with this one.
    """

    in_flight: int | None = 1

    def __init__(self, replay: Replay, device: Device, residency: Residency, model: str) -> None:
        self.replay = replay
        self._device = device
        self._residency = residency
        self._model = model
        self._blocks = _block_of_each(replay.plan, residency, model)
        self._groups: dict[Spans, list[tuple[int | None, Spans]]] = {}

    async def run(
        self, spans: Spans, *, tiles: int = 1, repeat: int = 1, copy: tuple[Any, int, int] | None = None,
        staging: Any = None, clear: Ranges | None = None,
    ) -> Any:  # fmt: skip
        assert repeat == 1, "the window holds what one step needs"
        if spans not in self._groups:
            self._groups[spans] = grouped(spans, self._blocks)
        groups = self._groups[spans]
        flying: deque[Any] = deque()
        for number, (block, part) in enumerate(groups):
            if block is not None:
                if len(flying) >= IN_FLIGHT:
                    await self._device.settled(flying.popleft())
                await self._residency.bring(self._model, block)
            if number == len(groups) - 1:
                return self.replay.submit(part, tiles=tiles, copy=copy, staging=staging, clear=clear)
            self.replay.submit(part, tiles=tiles)
            flying.append(self._device.submitted())
        return None


def grouped(spans: Spans, blocks: list[int | None]) -> list[tuple[int | None, Spans]]:
    """``spans`` cut where another block of the window is needed: (the block, its rows of the plan). ``blocks``: for
    each row the block that it reads from the window, if any."""
    groups: list[tuple[int | None, list[tuple[int, int]]]] = []
    for begin, end in spans:
        for row in range(begin, end):
            need = blocks[row]
            # What needs nothing of the window goes with what came before, and never waits for a block.
            if not groups or need not in (None, groups[-1][0]):
                groups.append((need, []))
            part = groups[-1][1]
            if part and part[-1][1] == row:
                part[-1] = (part[-1][0], row + 1)
            else:
                part.append((row, row + 1))
    return [(block, tuple(part)) for block, part in groups]


def _block_of_each(plan: Plan, residency: Residency, model: str) -> list[int | None]:
    weights = residency.sets[model]
    out: list[int | None] = []
    for dispatch in plan.dispatches:
        needs = {
            weights.streamed_block(binding.tensor, binding.section, binding.offset)
            for binding in dispatch.bindings
            if binding.section != "data"
        } - {None}
        assert len(needs) <= 1, f"{dispatch.operation} reads two blocks of the window at once"
        out.append(needs.pop() if needs else None)
    return out


def steps_for(replay: Replay, device: Device, residency: Residency, model: str) -> Steps:
    """How a model runs where its weights were placed."""
    if residency.sets[model].placement.streamed:
        return StreamedSteps(replay, device, residency, model)
    return EmulatedSteps(replay) if device.limits.software else ResidentSteps(replay, device)
