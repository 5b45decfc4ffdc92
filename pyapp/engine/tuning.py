"""When a model's products are tried in other shapes: at the first start on an adapter, while it is being loaded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from .. import timeline
from ..compiler.graph import Graph
from ..errors import NoDevice
from ..gpu.device import Device
from ..gpu.kernels import Kernels
from ..gpu.plan import Plan
from ..gpu.pool import Pool
from .language import LanguageModel, LanguageRunner
from .tuner import ShapeNotes, Tuner, read, trials, written

log = logging.getLogger(__name__)


class Tuning:
    """Of one load, for a model whose weights all stay in place.

    The trials' kernels compile beside the others; what goes wrong with them leaves the usual shapes.
    """

    def __init__(self, notes: ShapeNotes, model: LanguageModel) -> None:
        self._notes = notes
        self._model = model
        self._tuner: Tuner | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._found: dict[str, list[int]] | None = None

    async def recall(self) -> None:
        """Gives the model the shapes that were kept."""
        self._model.shapes = read(await self._notes.load())

    def begin(
        self, graph: Graph, plan: Plan, device: Device, kernels: Kernels,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """Begins to compile what is to be tried, of a step's ``graph`` and ``plan``: nothing where all is known."""
        tried = {key: shapes for key, shapes in trials(graph, device.limits).items() if key not in self._model.shapes}
        if tried:
            self._tuner = Tuner(graph, plan, device, kernels, tried, clock)
            self._preparing = asyncio.ensure_future(self._tuner.prepare())

    async def apply(self, runner: LanguageRunner, kernels: Kernels, pool: Pool) -> None:
        """Tries them on the loaded model and gives it the best. Raises ``DeviceLost``."""
        if self._tuner is None or self._preparing is None:
            return
        with timeline.stage("shapes tried", "recorded"):
            await self._apply(self._tuner, self._preparing, runner, kernels, pool)

    async def _apply(
        self, tuner: Tuner, preparing: asyncio.Task[None], runner: LanguageRunner, kernels: Kernels, pool: Pool
    ) -> None:
        try:
            await preparing
            shapes = {**self._model.shapes, **await tuner.choose(runner, await pool.timestamps())}
            await runner.rebuild(kernels, shapes)
            used = {d.shader for plan in (runner.decode_plan, runner.prefill_plan) for d in plan.dispatches}
            kernels.discard(tuner.shaders - used)
        except NoDevice as error:
            log.warning("the kernels keep their usual shapes: %s", error.message)
            return
        self._found = written(shapes)

    async def keep(self) -> None:
        """Keeps what was found, once the kernels have been checked."""
        if self._found is not None:
            await self._notes.keep(self._found)

    async def stop(self) -> None:
        """Ends what is still being compiled."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
