"""Rows of what each kernel of a plan takes, alone and in its place, and of whole runs of the plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from ..engine.profile import Group, grouped
from ..engine.steps import Spans
from ..engine.timing import MOST_DISPATCHES, Stopwatch, Timing, dispatches_of, measure
from ..gpu.plan import Shader
from .ceilings import Ceilings
from .kernel_options import KernelOptions
from .subjects import Subject, spans_of

WAKE_SECONDS = 1.0
"""Before the kernels of a plan: on an H200 that had rested while a model was loaded, steps took four times as long for
a quarter of a second and more."""
SHORT = 0.02
"""Seconds of a submit that is made longer: what keeps a GPU at work has few gaps."""
Row = dict[str, Any]
Post = Callable[[Row], Any]
Stopped = Callable[[], Awaitable[bool]]
"""Whether the steps so far have come to a stop, after which kernels return at once and times say nothing."""


async def never_stops() -> bool:
    """Of a plan without a step state."""
    return False


async def timed(watch: Stopwatch, subject: Subject, spans: Spans, options: KernelOptions, most: int) -> Timing:
    """Of one time of ``spans``, from the subject's start."""
    run = watch.submits(subject.replay, spans, tiles=subject.tiles, before=subject.before)
    most = max(1, min(most, MOST_DISPATCHES // max(1, dispatches_of(spans))))
    return await measure(run, rounds=options.reps, seconds=options.submit_seconds, most=most)


async def whole(watch: Stopwatch, subject: Subject, options: KernelOptions) -> Timing:
    """Of one run of the subject, in a row of them: no round trip in it."""
    return await timed(watch, subject, subject.spans, options, subject.most)


async def wake(watch: Stopwatch, subject: Subject, seconds: float = WAKE_SECONDS) -> None:
    """Keeps the GPU at work for a while: one that has rested runs slower at first."""
    run = watch.submits(subject.replay, subject.spans, tiles=subject.tiles, before=subject.before)
    spent, times = 0.0, 1
    while spent < seconds:
        taken = (await run(times)).wall
        spent += max(taken, SHORT / 10)
        if taken < SHORT:
            times = min(2 * times, subject.most)


async def kernel_rows(
    watch: Stopwatch, subject: Subject, ceilings: Ceilings, options: KernelOptions, post: Post,
    failed: Callable[[str, Exception], Any], stopped: Stopped = never_stops,
) -> None:  # fmt: skip
    """Posts a row for each distinct kernel of the subject's plan, then one for the whole. A kernel that fails is told
    to ``failed`` (operation, error)."""
    total = 0.0
    await wake(watch, subject)
    run = await whole(watch, subject, options)
    halted = await stopped()
    for group in grouped(subject.plan.dispatches):
        try:
            row = await _kernel(watch, subject, group, run, ceilings, options, stopped)
            total += row["count"] * row["us"]
            post(row)
        except Exception as error:
            failed(group.first.operation, error)
    post(
        {
            "row": "step",
            "phase": subject.phase,
            "context": subject.context,
            "us": run.us,
            "us_min": run.us_min,
            "wall_us": run.wall_us,
            "clock": run.clock,
            "kernels_us": total,
            "dispatches": subject.dispatches,
            "bytes": subject.bytes,
            "GBps": subject.bytes / run.us / 1e3,
            "stopped": halted,
        }
    )


async def _kernel(
    watch: Stopwatch, subject: Subject, group: Group, run: Timing, ceilings: Ceilings, options: KernelOptions,
    stopped: Stopped,
) -> Row:  # fmt: skip
    first = group.rows[0]
    inside = [row for row in group.rows if row in subject.rows]
    await _refreshed(watch, subject)
    repeated = await timed(watch, subject, ((first, first + 1),), options, MOST_DISPATCHES)
    walked, in_place = repeated, None
    if len(inside) > 1:
        await _refreshed(watch, subject)
        walked = (await timed(watch, subject, spans_of(inside), options, MOST_DISPATCHES)).over(len(inside))
    rest = spans_of(subject.rows - set(inside))
    if inside and rest:
        without = await timed(watch, subject, rest, options, subject.most)
        if not await stopped():
            in_place = (run.us - without.us) / len(inside)
    nbytes, flops = subject.amounts(group.first)
    least, bound = ceilings.least_us(nbytes, flops)
    read = ceilings.read_us(nbytes)
    return {
        "row": "kernel",
        "phase": subject.phase,
        "context": subject.context,
        "operation": group.first.operation,
        "kernel": group.first.shader.label,
        "workgroups": list(group.first.workgroups),
        "workgroup": width_of(group.first.shader),
        "count": len(inside),
        "us": walked.us,
        "us_min": walked.us_min,
        "us_repeated": repeated.us,
        "us_in_place": in_place,
        "clock": walked.clock,
        "bytes": nbytes,
        "flops": flops,
        "GBps": nbytes / walked.us / 1e3,
        "GFLOPs": flops / walked.us / 1e3,
        "share": least / walked.us if least else None,
        "bound": bound if least else None,
        "of_read": read / walked.us if read else None,
    }


async def _refreshed(watch: Stopwatch, subject: Subject) -> None:
    """One whole run: sums that a kernel added to over and over begin anew."""
    await watch.submits(subject.replay, subject.spans, tiles=subject.tiles, before=subject.before)(1)


def width_of(shader: Shader) -> int | None:
    """Invocations of a workgroup, where the shader is told."""
    return dict(shader.params).get("WG")


def stop_of(state: np.ndarray) -> bool:
    """Whether a step state (bytes) says stop: the third word, as ``state.wgsl`` has it."""
    return bool(state.view(np.uint32)[2])
