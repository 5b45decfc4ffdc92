"""From models in the store to models that can run: pool sized and taken, plans made, weights up, kernels compiled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import timeline
from ..compiler.graph import Graph
from ..errors import BadModel, OutOfMemory
from ..gpu.device import Device
from ..gpu.kernels import Kernels
from ..gpu.limits import DeviceLimits
from ..gpu.placement import Placement
from ..gpu.plan import Plan
from ..gpu.pool import Pool, Region
from ..gpu.residency import Residency
from . import language as language_module
from . import vision as vision_module
from .assets import Progress
from .language import LanguageModel, LanguageRunner
from .sizing import Need, Sizing, Weights, size_pool
from .tuning import Tuning
from .vision import VisionModel, VisionRunner

log = logging.getLogger(__name__)

SMALLER = 0.75
"""How much of a pool is tried next when the GPU has not as much memory as the budget allows."""


@dataclass(frozen=True)
class Loaded:
    """What ``load`` gives. ``room``: bytes that the language model's weights may fill, over the bytes they have."""

    context: int
    activations: Region
    language: LanguageRunner | None
    vision: VisionRunner | None
    room: float
    decisions: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Sized:
    """A sizing, and the plans that fit it."""

    sizing: Sizing
    need: Need
    language: tuple[Plan, Plan] | None
    vision: Plan | None

    def graph(self, language: LanguageModel, limits: DeviceLimits) -> Graph:
        """What the plan of a step carries out."""
        pieces = self.sizing.placements[0].pieces(self.need.weights[0].blocks)
        return language.graphs(limits, self.sizing.context, pieces, self.sizing.kv)[0]


async def load(
    device: Device, pool: Pool, residency: Residency, kernels: Kernels, language: LanguageModel | None,
    vision: VisionModel | None, progress: Progress, stream_below: float = 1.0, tuning: Tuning | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Loaded:  # fmt: skip
    """See ``Engine.create``. A vision model that the device's bindings cannot hold is left out where there is a
    language model as well. ``meanwhile`` is called once the kernels are being compiled, which is the work of another
    process, and before weights are packed. Raises: OutOfMemory, BadModel, BadWeights, DeviceLost, and what
    ``meanwhile`` raises."""
    with timeline.stage("vision plan", "device", "language head", "vision head"):
        vision_plan = _vision_plan(device, language, vision)
    if vision_plan is None:
        vision = None
    if tuning:
        await tuning.recall()
    sized = await take_pool(device, pool, language, vision, vision_plan, stream_below)
    region = pool.take("workspace", sized.need.activations, "activations", "activations")
    assert region is not None, "the pool was sized for it"
    plans = [plan for plan in (sized.vision, *(sized.language or ())) if plan]
    compiling = asyncio.ensure_future(_compiled(kernels, plans, progress))
    if tuning and language and sized.language and not sized.sizing.placements[0].streamed:
        tuning.begin(sized.graph(language, device.limits), sized.language[0], device, kernels)
    writer: LanguageRunner | None = None
    looker: VisionRunner | None = None
    try:
        if language and sized.language:
            writer = LanguageRunner(
                language, sized.language, sized.sizing.context, sized.sizing.kv, device, pool, residency
            )
            await writer.bind_memory(region, await language.rope_factors())
        if sized.vision:
            looker = VisionRunner(sized.vision, device, pool, residency)
            await looker.bind_memory(region)
        meanwhile()
        named = _named(language, vision)
        for (name, model), weights, placement in zip(named, sized.need.weights, sized.sizing.placements, strict=True):
            with timeline.stage(f"{name} weights ready", "pool"):
                blob = await model.blob(progress)
            residency.register(name, weights.blocks, placement, model.layout.entries, blob)
        # The model that runs first comes last, so that nothing of it has to move when it does.
        for name, _ in reversed(named):
            with timeline.stage(f"{name} uploaded", f"{name} weights ready"):
                await residency.ensure(name, lambda done, total: progress("upload", done, total))
        await compiling
        with timeline.stage("recorded", "pipelines", *(f"{name} uploaded" for name, _ in named)):
            for runner in (looker, writer):
                if runner:
                    runner.build(kernels)
        if tuning and writer:
            await tuning.apply(writer, kernels, pool)
    finally:
        compiling.cancel()
        await asyncio.gather(compiling, return_exceptions=True)
        if tuning:
            await tuning.stop()
    if language:
        # The packed blob is kept, so of the download only the file's head is needed from now on. The vision model's
        # file stays whole: the CPU looks with it at a picture that comes on the next visit before the GPU is ready.
        await language.stored.release_chunks(language.file.data_offset)
    decisions = [
        _decision(name, weights, placement, sized.sizing, stream_below)
        for (name, _), weights, placement in zip(named, sized.need.weights, sized.sizing.placements, strict=True)
    ]
    room = decisions[0]["room"] / decisions[0]["need"] if language else 1.0
    return Loaded(sized.sizing.context, region, writer, looker, room, tuple(decisions))


async def _compiled(kernels: Kernels, plans: list[Plan], progress: Progress) -> None:
    with timeline.stage("pipelines", "pool"):
        await kernels.prepare(
            (dispatch for plan in plans for dispatch in plan.dispatches),
            lambda done, total: progress("shaders", done, total),
        )


def _named(language: LanguageModel | None, vision: VisionModel | None) -> list[tuple[str, LanguageModel | VisionModel]]:
    both = ((language_module.NAME, language), (vision_module.NAME, vision))
    return [(name, model) for name, model in both if model]


def _vision_plan(device: Device, language: LanguageModel | None, vision: VisionModel | None) -> Plan | None:
    if vision is None:
        return None
    try:
        plan = vision.lowered(device.limits)
        largest = max(plan.memory.peak, vision.weights().largest_piece)
        if largest > device.limits.max_buffer:
            raise BadModel(
                f"The vision model needs {largest} bytes in one buffer, and this device's hold "
                f"{device.limits.max_buffer}; choose a smaller model.",
                need=largest,
                limit=device.limits.max_buffer,
            )
        return plan
    except BadModel as error:
        if language is None:
            raise
        log.warning("pictures are for the CPU here: %s", error.message)
        return None


async def take_pool(
    device: Device, pool: Pool, language: LanguageModel | None, vision: VisionModel | None, vision_plan: Plan | None,
    stream_below: float,
) -> Sized:  # fmt: skip
    """Sizes the pool and takes its slabs; a GPU that has less memory than the budget gets a smaller pool."""
    budget = pool.budget
    while True:
        with timeline.stage("plans", "vision plan"):
            sized = size_for(device.limits, budget, language, vision, vision_plan, stream_below)
        try:
            with timeline.stage("pool", "plans"):
                await pool.add_slabs("weights", sized.sizing.weights, max(w.largest_piece for w in sized.need.weights))
                await pool.add_slabs("workspace", sized.sizing.workspace, sized.need.activations)
            return sized
        except OutOfMemory as error:
            pool.give_back_slabs()
            log.warning("a pool of %d bytes could not be taken (%s)", budget, error.message)
            taken = sized.sizing.weights + sized.sizing.workspace
            budget = int(min(budget, taken) * SMALLER)


def size_for(
    limits: DeviceLimits, budget: int, language: LanguageModel | None, vision: VisionModel | None,
    vision_plan: Plan | None, stream_below: float = 1.0,
) -> Sized:  # fmt: skip
    """A sizing and plans that agree: where weights are cut, fewer operations fuse, and the activations may grow."""
    weights = tuple(
        each for each in (language and language.weights(limits), vision and vision_plan and vision.weights()) if each
    )
    need = _need(language, weights, vision_plan.memory.peak if vision_plan else 0)
    if language:
        # What plans need beside the caches does not depend on the context: the one that is had where there is room
        # will do, and its plans are the ones that run then.
        plans = language.plans(limits, need.longest_context(limits.max_buffer, limits.max_binding), {})
        need = replace(need, activations=max(need.activations, *(plan.memory.peak for plan in plans)))
    while True:
        sizing = size_pool(budget, need, limits.max_buffer, limits.max_binding, stream_below)
        if not language:
            return Sized(sizing, need, None, vision_plan)
        pieces = sizing.placements[0].pieces(weights[0].blocks)
        plans = language.plans(limits, sizing.context, pieces, sizing.kv)
        peak = max(plan.memory.peak for plan in plans)
        if peak <= need.activations:
            return Sized(sizing, need, plans, vision_plan)
        need = replace(need, activations=peak)


def _need(language: LanguageModel | None, weights: tuple[Weights, ...], activations: int) -> Need:
    need = Need(weights, activations)
    if language is None:
        return need
    config = language.config
    return replace(
        need,
        per_position=config.kv_bytes_per_token + config.head_dim * 4,
        position_in_layer=config.kv_row_bytes("f32"),
        layers=config.layers,
        full_context=config.context,
    )


def _decision(name: str, weights: Weights, placement: Placement, sizing: Sizing, stream_below: float) -> dict[str, Any]:
    """What was decided for one model, as ``status.decisions`` shows it. Bytes; ``when``: ms since the epoch; ``kv``:
    what the language model's cache holds its values in."""
    language = name == language_module.NAME
    cache = {"kv": sizing.kv} if language else {}
    return {
        "when": int(time.time() * 1000),
        "model": name,
        "need": weights.nbytes,
        "room": int(sizing.weights / stream_below) if language else sizing.weights,
        "action": "stream" if placement.streamed else "resident",
        **cache,
    }
