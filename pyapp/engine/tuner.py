"""Which shape of ``matvec.wgsl`` is the fastest here: tried on the device at the first start, and kept for later ones.

Every product of one token is tried over all layers, so that its weights come from memory as in a step, in a few shapes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..compiler.graph import Graph, Op
from ..compiler.lower_decoder import lower_linear
from ..compiler.products import (
    LANES,
    ROWS,
    WORKGROUPS,
    Shapes,
    VectorShape,
    candidates,
    products_of,
    vector_shape,
)  # fmt: skip
from ..gpu.device import Device
from ..gpu.kernels import Kernels
from ..gpu.limits import DeviceLimits
from ..gpu.plan import Dispatch, Plan, Shader
from ..gpu.replay import Replay
from ..gpu.timestamps import Timestamps
from .language import LanguageRunner
from .timing import Reading, Stopwatch

log = logging.getLogger(__name__)

TRIED = (
    VectorShape(32, 2, 128), VectorShape(16, 2, 128), VectorShape(32, 1, 256), VectorShape(8, 2, 64),
    VectorShape(32, 2, 256), VectorShape(4, 4, 128), VectorShape(16, 1, 256),
)  # fmt: skip
"""Beside the usual one, those with as many lanes as the smallest subgroup, down to an eighth of it."""
MOST_SECONDS = 0.3
"""For all trials together; what is not reached keeps its usual shape."""
TRIAL_SECONDS = 0.003
"""GPU time of a trial."""
GRAIN = 1e-4
"""Seconds of either clock: what seems to take less is repeated as if it took as long, which keeps a submit short."""
POSITION = 128
"""Where in the cache the trials write; it is cleared behind them."""
WORTH = 0.97
"""A shape must take less than this share of the usual one's time."""


class ShapeNotes(Protocol):
    """Where what was chosen on an adapter is kept. Never raises."""

    async def load(self) -> Any:
        """What ``keep`` was given at an earlier start; anything else, where that cannot be had."""
        ...

    async def keep(self, value: dict[str, list[int]]) -> None: ...


def trials(graph: Graph, limits: DeviceLimits) -> dict[str, list[VectorShape]]:
    """The shapes to try for each product of one token in a (fused) graph of a step, by ``product_key``; the usual one
    first. Products that a device has another kernel for are not in it."""
    found: dict[str, list[VectorShape]] = {}
    for key, (op, *_) in products_of(graph).items():
        weight = graph.tensors[op.inputs["weight"]]
        epilogue = op.attrs.get("epilogue", "")
        usual = vector_shape(limits, weight, epilogue)
        possible = candidates(limits, weight, epilogue)
        others = [s for s in TRIED if s in possible and s != usual and s.lanes >= limits.subgroup // 8]
        if others:
            found[key] = [usual, *others]
    return found


def read(kept: Any) -> dict[str, VectorShape]:
    """The shapes of a note: of what makes no sense, none. One that a device cannot run is left out by lowering."""
    shapes = {}
    for key, figures in kept.items() if isinstance(kept, dict) else ():
        match figures:
            case [int(lanes), int(rows), int(workgroup)] if lanes in LANES and rows in ROWS and workgroup in WORKGROUPS:
                shapes[str(key)] = VectorShape(lanes, rows, workgroup)
    return shapes


def written(shapes: Shapes) -> dict[str, list[int]]:
    """``shapes`` as a note."""
    return {key: [shape.lanes, shape.rows, shape.workgroup] for key, shape in shapes.items()}


@dataclass(frozen=True)
class Round:
    """A plan of the products alone, each in one of its shapes, with the rows [from, to) of each product."""

    plan: Plan
    spans: Mapping[str, tuple[int, int]]
    shapes: Shapes


def rounds(graph: Graph, plan: Plan, limits: DeviceLimits, tried: Mapping[str, list[VectorShape]]) -> list[Round]:
    """As many plans as the product with the most shapes has: the n-th has everybody's n-th shape. ``plan``: of
    ``graph``, in the usual shapes."""
    ops = products_of(graph)
    rows = by_operation(plan)
    out = []
    for number in range(max(map(len, tried.values()), default=0)):
        shapes = {key: shapes[number] for key, shapes in tried.items() if number < len(shapes)}
        dispatches: list[Dispatch] = []
        spans = {}
        for key, shape in shapes.items():
            start = len(dispatches)
            dispatches += in_shape(ops[key], rows, graph, limits, {key: shape})
            spans[key] = start, len(dispatches)
        out.append(Round(replace(plan, dispatches=tuple(dispatches), marks={}), spans, shapes))
    return out


def by_operation(plan: Plan) -> dict[str, list[Dispatch]]:
    """The rows of each operation."""
    rows: dict[str, list[Dispatch]] = {}
    for dispatch in plan.dispatches:
        rows.setdefault(dispatch.operation, []).append(dispatch)
    return rows


def in_shape(
    ops: Iterable[Op], rows: Mapping[str, list[Dispatch]], graph: Graph, limits: DeviceLimits, shapes: Shapes
) -> list[Dispatch]:
    """The ``rows`` (``by_operation``) of ``ops`` in other ``shapes``. Layers differ in what they bind only, so one of
    them is lowered."""
    lowered: dict[tuple[Shader, ...], list[Dispatch]] = {}
    out = []
    for op in ops:
        usual = rows[op.name]
        alike = tuple(dispatch.shader for dispatch in usual)
        if alike not in lowered:
            lowered[alike] = lower_linear(op, graph, limits, shapes=shapes)
        for row, other in zip(usual, lowered[alike], strict=True):
            out.append(replace(row, shader=other.shader, workgroups=other.workgroups))
    return out


class Tuner:
    """The trials of one model on one device: ``prepare`` while its weights arrive, ``choose`` once they are there."""

    def __init__(
        self, graph: Graph, plan: Plan, device: Device, kernels: Kernels, tried: Mapping[str, list[VectorShape]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """``graph`` and ``plan``: of a step, in the usual shapes; ``tried``: its ``trials``."""
        self._device = device
        self._kernels = kernels
        self._clock = clock
        self._tried = tried
        self._rounds = rounds(graph, plan, device.limits, tried)

    async def prepare(self) -> None:
        """Compiles the kernels of all trials. Raises ``NoDevice`` where the driver refuses one."""
        await self._kernels.prepare(dispatch for each in self._rounds for dispatch in each.plan.dispatches)

    @property
    def shaders(self) -> set[Shader]:
        """The kernels of all trials."""
        return {dispatch.shader for each in self._rounds for dispatch in each.plan.dispatches}

    async def choose(self, runner: LanguageRunner, timestamps: Timestamps | None = None) -> dict[str, VectorShape]:
        """The best shape of every product, for a model that is bound to the pool: its weights are resident, and nothing
        of the workspace is in use. By the GPU's clock where there are ``timestamps``. Raises ``DeviceLost``."""
        watch = Stopwatch(self._device, timestamps, self._clock)
        begin = self._clock()
        replays = [runner.bound(self._kernels, each.plan) for each in self._rounds]
        runner.hold_at(min(POSITION, runner.context - 1))
        try:
            times = await self._times(watch, replays)
        finally:
            runner.clear_cache()
            runner.clear_activations()
        best = {
            key: fastest([(shape, times.get((key, shape))) for shape in tried]) for key, tried in self._tried.items()
        }
        log.info("shapes of %d products tried in %.0f ms", len(best), 1000 * (self._clock() - begin))
        return best

    async def _times(self, watch: Stopwatch, replays: list[Replay]) -> dict[tuple[str, VectorShape], float]:
        """Seconds of each product over all layers, by product and shape, of those that there was time for."""
        deadline = self._clock() + MOST_SECONDS
        first = self._rounds[0]
        net = _net_of([await watch.submits(replays[0], ((0, 0),))(1) for _ in range(3)])
        times: dict[tuple[str, VectorShape], float] = {}
        for key in sorted(self._tried, key=lambda key: -_bytes(first, key)):  # those that read most are reached
            count, usual = 1, 0.0
            for again in range(3):
                for each, replay in zip(self._rounds, replays, strict=True):
                    if key not in each.spans:
                        continue
                    if self._clock() >= deadline:
                        return times
                    reading = await watch.submits(replay, (each.spans[key],))(count)
                    taken = net(reading)
                    if taken is None:
                        if each is first and not again:  # else a trial might be as long as a slow GPU makes it
                            usual = reading.wall
                        continue
                    place = key, each.shapes[key]
                    if again:  # the first is to warm up, and tells how often makes a trial
                        times[place] = max(0.0, min(taken / count, times.get(place, taken / count)))
                    elif each is first:
                        usual = taken
                if not again:
                    count = max(1, int(TRIAL_SECONDS / max(usual, GRAIN)))
        return times


def _net_of(empty: list[Reading]) -> Callable[[Reading], float | None]:
    """Seconds of a submit without what an empty one takes: by the GPU's clock where that has timed all of ``empty``,
    and then None of a submit that it has not timed."""
    gpu = [reading.gpu for reading in empty if reading.gpu is not None]
    if len(gpu) < len(empty):
        return lambda reading: reading.wall - min(each.wall for each in empty)
    return lambda reading: None if reading.gpu is None else reading.gpu - min(gpu)


def _bytes(each: Round, key: str) -> int:
    return sum(dispatch.bytes for dispatch in each.plan.dispatches[slice(*each.spans[key])])


def fastest(times: list[tuple[VectorShape, float | None]]) -> VectorShape:
    """The shape that took least, of (shape, seconds; None where it was not tried) with the usual one first: that one
    where no other is clearly better."""
    usual, before = times[0]
    if before is None:
        return usual
    seconds, number = min((seconds, number) for number, (_, seconds) in enumerate(times) if seconds is not None)
    return times[number][0] if seconds < WORTH * before else usual
