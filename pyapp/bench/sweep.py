"""Kernels measured in shapes other than the present ones, and a step without one of its fusions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ..compiler.lowering import lower
from ..compiler.passes import DECODER_PASSES, decoder_passes
from ..compiler.products import VectorShape
from ..engine.engine import Engine
from ..engine.language import LanguageRunner, splits_of
from ..engine.profile import Group, grouped
from ..engine.steps import Spans
from ..engine.timing import Stopwatch, Timing
from ..engine.tuner import by_operation
from ..gpu.plan import Dispatch, Plan
from ..gpu.replay import Replay
from .ceilings import figures
from .kernel_options import KernelOptions
from .kernel_rows import Post, stop_of, timed, wake, whole
from .shapes import (
    AttentionShape,
    Products,
    Tile,
    attention_shape_of,
    attention_shapes,
    products_of,
    shape_of,
    spread,
    tile_of,
    tiles,
    with_attention,
    with_tile,
)
from .subjects import Subject, chunk_of_prompt, step_at
from .trying import tried

AWAKE_SECONDS = 0.02
"""Of work before each measurement."""
FEW_LAYERS = 4
"""Whose products of a chunk are run: arithmetic bounds them, so a few layers say as much as all."""
T = TypeVar("T")


@dataclass
class Sweep:
    """One model's kernels. What tries shapes ends at a ``deadline``, in seconds of ``time.perf_counter``."""

    engine: Engine
    runner: LanguageRunner
    watch: Stopwatch
    options: KernelOptions
    post: Post
    failed: Callable[[str, Exception], Any]
    best: dict[str, VectorShape] = field(default_factory=dict)
    """By product, the fastest shape found."""

    async def _bound(self, plan: Plan) -> Replay:
        await self.engine.kernels.prepare(plan.dispatches)
        return self.runner.bound(self.engine.kernels, plan)

    def _tried(
        self, what: str, turns: Sequence[T], make: Callable[[T], Plan], deadline: float, *, least: int
    ) -> aclosing[AsyncGenerator[tuple[T, Plan]]]:
        """Each of ``turns`` with its plan (``trying.tried``); a row of how many are left out."""
        return aclosing(
            tried(
                self.engine.kernels, turns, make, least=least, ahead=self.watch.by_gpu, deadline=deadline,
                left_out=lambda count: self.post({"row": "left out", "what": what, "shapes": count}),
                failed=self.failed,
            )
        )  # fmt: skip

    async def _timed(self, subject: Subject, spans: Spans) -> Timing:
        await wake(self.watch, step_at(self.runner, 128), AWAKE_SECONDS)
        return await timed(self.watch, subject, spans, self.options, 1 << 20)

    async def _whole(self, subject: Subject) -> Timing:
        await wake(self.watch, step_at(self.runner, 128), AWAKE_SECONDS)
        return await whole(self.watch, subject, self.options)

    async def _time(self, plan: Plan, base: Subject) -> Timing:
        """Of one dispatch of ``plan``, all run in turns from the start of ``base``."""
        rows = ((0, len(plan.dispatches)),)
        subject = replace(base, plan=plan, replay=await self._bound(plan), spans=rows)
        return (await self._timed(subject, rows)).over(len(plan.dispatches))

    async def products(self, deadline: float) -> None:
        """Rows of each product of one token in each valid shape; the present one first and another in any case, all
        products in turns, so that an end of the time leaves none of them out."""
        graph, limits, whole_step = self.runner.graphs()[0], self.engine.device.limits, self.runner.decode_plan
        present = {
            dispatch.operation: shape_of(dispatch)
            for dispatch in whole_step.dispatches
            if dispatch.shader.file == "matvec"
        }
        queues = [
            [(each, shape) for shape in spread(each.candidates, present[each.ops[0].name])]
            for each in products_of(graph, limits)
        ]
        base = step_at(self.runner, 128)
        rows = by_operation(whole_step)
        fastest: dict[str, float] = {}

        def make(turn: tuple[Products, VectorShape]) -> Plan:
            return _alone(turn[0].dispatches(rows, graph, limits, turn[1]), whole_step)

        async with self._tried("products", in_turns(queues), make, deadline, least=2 * len(queues)) as plans:
            async for (products, shape), plan in plans:
                try:
                    timing = await self._time(plan, base)
                except Exception as error:
                    self.failed(f"{products.key} {shape}", error)
                    continue
                if timing.us < fastest.get(products.key, float("inf")):
                    fastest[products.key], self.best[products.key] = timing.us, shape
                self.post(
                    {
                        "row": "shape",
                        "product": products.key,
                        **asdict(shape),
                        **figures(timing),
                        "GBps": plan.dispatches[0].bytes / timing.us / 1e3,
                        "present": shape == present[products.ops[0].name],
                    }
                )

    async def tuned(self) -> None:
        """A row of a step in the fastest shapes, beside the present one, and how far its logits are from those."""
        if not self.best:
            return
        graph, limits = self.runner.graphs()[0], self.engine.device.limits
        plan = lower(graph, limits, shapes=self.best)
        base = step_at(self.runner, 128)
        subject = step_at(self.runner, 128, plan, await self._bound(plan))
        before, after = await self._logits(base), await self._logits(subject)
        present = await self._whole(base)
        tuned = await self._whole(subject)
        self.post(
            {
                "row": "tuned",
                "context": subject.context,
                **figures(tuned),
                "present_us": present.us,
                "difference": float(np.abs(before - after).max()),
                "largest": float(np.abs(before).max()),
            }
        )

    async def _logits(self, subject: Subject) -> np.ndarray:
        """float32 [vocab] after a step from the subject's start."""
        self.runner.clear_cache()
        subject.before()
        subject.replay.submit(subject.spans)
        data = await self.runner.read(subject.plan, "logits", 0, self.runner.config.vocab * 4)
        return data.view(np.float32)

    async def attention(self, deadline: float) -> None:
        """Rows of attention in each valid shape at each context: of its kernel, and of the step around it."""
        limits = self.engine.device.limits
        shapes = attention_shapes(self.runner.decode_plan, limits)
        if not shapes:
            return
        present = attention_shape_of(self.runner.decode_plan)
        plans: dict[int, Plan] = {present.splits: self.runner.decode_plan}

        def make(shape: AttentionShape) -> Plan:
            if shape.splits not in plans:
                plans[shape.splits] = lower(_graph(self.runner, splits=shape.splits), limits)
            return with_attention(plans[shape.splits], shape, limits)

        async with self._tried("attention", spread(shapes, present), make, deadline, least=1) as steps:
            async for shape, plan in steps:
                try:
                    replay = await self._bound(plan)
                    for context in self.options.contexts:
                        subject = step_at(self.runner, context, plan, replay)
                        self.post(
                            {
                                "row": "attention",
                                **asdict(shape),
                                "context": subject.context,
                                **await self._attention(subject),
                                "present": shape == present,
                            }
                        )
                except Exception as error:
                    self.failed(f"attention {shape}", error)

    async def _attention(self, subject: Subject) -> Mapping[str, Any]:
        rows = [row for row, each in enumerate(subject.plan.dispatches) if each.shader.file == "attention_split"]
        spans = tuple((row, row + 1) for row in rows)
        kernel = (await self._timed(subject, spans)).over(len(rows))
        step = await self._whole(subject)
        return {**figures(kernel), "step_us": step.us}

    async def tiles(self, deadline: float) -> None:
        """Rows of each product of a chunk in each valid tile, in turns."""
        plan = self.runner.prefill_plan
        groups = [group for group in grouped(plan.dispatches) if group.first.shader.file == "matmul"]
        if not groups:
            return
        base = chunk_of_prompt(self.runner)

        def make(turn: tuple[Group, Tile]) -> Plan:
            group, tile = turn
            return _alone(with_tile([plan.dispatches[row] for row in group.rows[:FEW_LAYERS]], tile), plan)

        turns = in_turns(
            [
                [(group, tile) for tile in spread(tiles(self.engine.device.limits), tile_of(group.first))]
                for group in groups
            ]
        )
        async with self._tried("tiles", turns, make, deadline, least=len(groups)) as plans:
            async for (group, tile), some in plans:
                try:
                    timing = await self._time(some, base)
                    self.post(
                        {
                            "row": "tile",
                            "operation": group.first.operation,
                            **asdict(tile),
                            "workgroup": tile.workgroup,
                            **figures(timing),
                            "GFLOPs": group.first.flops / timing.us / 1e3,
                            "present": tile == tile_of(group.first),
                        }
                    )
                except Exception as error:
                    self.failed(f"{group.first.operation} {tile}", error)

    async def fusions(self) -> None:
        """Rows of a step with each fusion left out, beside the whole one measured just before; then without any."""
        runner, limits = self.runner, self.engine.device.limits
        usual = lower(_graph(runner), limits)  # both in the usual shapes, whatever the runner's own plan has
        fused_replay = await self._bound(usual)
        for left_out in ((), *((name,) for name in DECODER_PASSES), tuple(DECODER_PASSES)):
            label = "all" if len(left_out) == len(DECODER_PASSES) else left_out[0] if left_out else "nothing"
            try:
                plan = lower(_graph(runner, left_out), limits)
                replay = await self._bound(plan)
                for context in self.options.contexts:
                    base = step_at(runner, context, usual, fused_replay)
                    subject = step_at(runner, context, plan, replay)
                    fused = await self._whole(base)
                    other = await self._whole(subject)
                    self.post(
                        {
                            "row": "fusion",
                            "without": label,
                            "context": subject.context,
                            **figures(other),
                            "fused_us": fused.us,
                            "cost_us": other.us - fused.us,
                            "dispatches": subject.dispatches,
                            "fused_dispatches": base.dispatches,
                            "bytes": subject.bytes,
                            "fused_bytes": base.bytes,
                            "stopped": await stopped(runner),
                        }
                    )
            except Exception as error:
                self.failed(f"without {label}", error)


async def stopped(runner: LanguageRunner) -> bool:
    """Whether the last step has set the state's stop."""
    return stop_of(await runner.read(runner.decode_plan, "state", 0, 256))


def _graph(runner: LanguageRunner, without: Sequence[str] = (), splits: int | None = None) -> Any:
    passes = decoder_passes(runner.device.limits, without)
    parts = splits or splits_of(runner.config, runner.device.limits)
    return runner.model.step_graph(runner.context, runner.pieces, runner.kv, passes, parts)


def _alone(dispatches: Sequence[Dispatch], plan: Plan) -> Plan:
    """``dispatches`` over the tensors of ``plan``."""
    return replace(plan, dispatches=tuple(dispatches), marks={}, constants=b"")


def in_turns(queues: Sequence[Sequence[T]]) -> list[T]:
    """The first of each queue, then the second of each, and so on."""
    longest = max(map(len, queues), default=0)
    return [queue[number] for number in range(longest) for queue in queues if number < len(queue)]
