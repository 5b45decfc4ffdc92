"""Kernels measured in shapes other than the present ones, and a step without one of its fusions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ..compiler.lowering import lower
from ..compiler.passes import DECODER_PASSES, decoder_passes
from ..compiler.products import VectorShape
from ..engine.engine import Engine
from ..engine.language import LanguageRunner
from ..engine.profile import grouped
from ..engine.timing import Timing
from ..gpu.plan import Dispatch, Plan
from ..gpu.replay import Replay
from .kernel_options import KernelOptions
from .kernel_rows import Post, stop_of, timed, whole
from .shapes import (
    Products,
    attention_shape_of,
    attention_shapes,
    products_of,
    shape_of,
    tile_of,
    tiles,
    with_attention,
    with_tile,
)
from .subjects import Subject, chunk_of_prompt, step_at

AT_ONCE = 12
"""Pipelines that are compiled together: many at once keep a driver's threads busy, all at once the page waiting."""


@dataclass
class Sweep:
    """One model's kernels. ``seconds``: how long its products, its attention and its chunk's products may take
    together; each has a share of it."""

    engine: Engine
    runner: LanguageRunner
    options: KernelOptions
    post: Post
    failed: Callable[[str, Exception], Any]
    seconds: float
    best: dict[str, VectorShape] = field(default_factory=dict)
    """By product, the fastest shape found."""

    async def _bound(self, plan: Plan) -> Replay:
        await self.engine.kernels.prepare(plan.dispatches)
        return self.runner.bound(self.engine.kernels, plan)

    async def _time(self, dispatches: Sequence[Dispatch], plan: Plan, base: Subject) -> Timing:
        """Of one of ``dispatches`` over the tensors of ``plan``, all run in turns from the start of ``base``."""
        some = replace(plan, dispatches=tuple(dispatches), marks={}, constants=b"")
        rows = ((0, len(dispatches)),)
        subject = replace(base, plan=some, replay=await self._bound(some), spans=rows)
        return (await timed(self.engine.device, subject, rows, self.options, 1 << 20)).over(len(dispatches))

    async def products(self) -> None:
        """Rows of each product of one token in each valid shape; the present one first, then all products in turns, so
        that an end of the time leaves none of them out."""
        graph, limits = self.runner.graphs()[0], self.engine.device.limits
        present = {
            dispatch.operation: shape_of(dispatch)
            for dispatch in self.runner.decode_plan.dispatches
            if dispatch.shader.file == "matvec"
        }
        queues = [_queue(each, present[each.ops[0].name]) for each in products_of(graph, limits)]
        turns = [turn for number in range(max(map(len, queues), default=0)) for turn in _turn(queues, number)]
        base = step_at(self.runner, 128)
        fastest: dict[str, float] = {}
        deadline = time.perf_counter() + self.seconds / 2
        for begin in range(0, len(turns), AT_ONCE):
            if time.perf_counter() > deadline:
                self.post({"row": "left out", "what": "products", "shapes": len(turns) - begin})
                break
            part = turns[begin : begin + AT_ONCE]
            some = [(each, shape, each.dispatches(graph, limits, shape)) for each, shape in part]
            try:
                await self.engine.kernels.prepare([dispatch for *_, made in some for dispatch in made])
            except Exception as error:
                self.failed("compiling", error)
            for products, shape, made in some:
                try:
                    timing = await self._time(made, self.runner.decode_plan, base)
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
                        "us": timing.us,
                        "us_min": timing.us_min,
                        "GBps": made[0].bytes / timing.us / 1e3,
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
        present = await whole(self.engine.device, base, self.options)
        tuned = await whole(self.engine.device, subject, self.options)
        self.post(
            {
                "row": "tuned",
                "context": subject.context,
                "us": tuned.us,
                "us_min": tuned.us_min,
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

    async def attention(self) -> None:
        """Rows of attention in each valid shape at each context: of its kernel, and of the step around it."""
        limits = self.engine.device.limits
        shapes = attention_shapes(self.runner.decode_plan, limits)
        if not shapes:
            return
        present = attention_shape_of(self.runner.decode_plan)
        shapes.sort(key=lambda shape: (shape != present, shape.splits != present.splits, shape.chunk != present.chunk))
        plans: dict[int, Plan] = {present.splits: self.runner.decode_plan}
        deadline = time.perf_counter() + self.seconds / 4
        for number, shape in enumerate(shapes):
            if time.perf_counter() > deadline:
                self.post({"row": "left out", "what": "attention", "shapes": len(shapes) - number})
                return
            try:
                if shape.splits not in plans:
                    plans[shape.splits] = lower(_graph(self.runner, splits=shape.splits), limits)
                plan = with_attention(plans[shape.splits], shape, limits)
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

    async def _attention(self, subject: Subject) -> Mapping[str, float]:
        device, options = self.engine.device, self.options
        rows = [row for row, each in enumerate(subject.plan.dispatches) if each.shader.file == "attention_split"]
        spans = tuple((row, row + 1) for row in rows)
        kernel = (await timed(device, subject, spans, options, 1 << 20)).over(len(rows))
        step = await whole(device, subject, options)
        return {"us": kernel.us, "us_min": kernel.us_min, "step_us": step.us}

    async def tiles(self) -> None:
        """Rows of each product of a chunk in each valid tile, in turns."""
        plan = self.runner.prefill_plan
        groups = [group for group in grouped(plan.dispatches) if group.first.shader.file == "matmul"]
        if not groups:
            return
        base = chunk_of_prompt(self.runner)
        present = tile_of(groups[0].first)
        wanted = sorted(tiles(self.engine.device.limits), key=lambda tile: tile != present)
        deadline = time.perf_counter() + self.seconds / 4
        for number, tile in enumerate(wanted):
            if time.perf_counter() > deadline:
                self.post({"row": "left out", "what": "tiles", "shapes": len(wanted) - number})
                return
            for group in groups:
                try:
                    made = with_tile([plan.dispatches[row] for row in group.rows], tile)
                    timing = await self._time(made, plan, base)
                    self.post(
                        {
                            "row": "tile",
                            "operation": group.first.operation,
                            **asdict(tile),
                            "workgroup": tile.workgroup,
                            "us": timing.us,
                            "us_min": timing.us_min,
                            "GFLOPs": group.first.flops / timing.us / 1e3,
                            "present": tile == present,
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
                    fused = await whole(self.engine.device, base, self.options)
                    other = await whole(self.engine.device, subject, self.options)
                    self.post(
                        {
                            "row": "fusion",
                            "without": label,
                            "context": subject.context,
                            "us": other.us,
                            "us_min": other.us_min,
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
    more = {} if splits is None else {"splits": splits}
    return runner.model.step_graph(runner.context, runner.pieces, runner.kv, passes, **more)


def _queue(products: Products, present: VectorShape) -> list[tuple[Products, VectorShape]]:
    return [(products, shape) for shape in sorted(products.candidates, key=lambda shape: shape != present)]


def _turn(queues: Sequence[list[tuple[Products, VectorShape]]], number: int) -> list[tuple[Products, VectorShape]]:
    return [queue[number] for queue in queues if number < len(queue)]
