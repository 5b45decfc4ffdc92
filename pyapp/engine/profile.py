"""How long each kernel takes on this adapter: every operation alone, many times over in one submit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..gpu.device import Device
from ..gpu.plan import Dispatch, Plan
from ..gpu.replay import Replay
from .timing import Stopwatch, measure


@dataclass(frozen=True)
class Group:
    """Dispatches of a plan that run the same kernel over as many workgroups: ``rows`` are their numbers."""

    first: Dispatch
    rows: tuple[int, ...]


def grouped(dispatches: Iterable[Dispatch]) -> list[Group]:
    """The distinct (shader, workgroups), in the order of their first dispatches."""
    found: dict[Any, tuple[Dispatch, list[int]]] = {}
    for row, dispatch in enumerate(dispatches):
        found.setdefault((dispatch.shader, dispatch.workgroups), (dispatch, []))[1].append(row)
    return [Group(first, tuple(rows)) for first, rows in found.values()]


async def profile(device: Device, replay: Replay, plan: Plan) -> list[dict[str, Any]]:
    """Rows of {operation, kernel, count, us, bytes, GBps, GFLOPs}, one for each distinct (shader, workgroups).

    A row has the name of its first operation; ``count`` is how often a run of the plan has it, ``us`` the median of
    three.

    Kernels run on whatever the workspace holds, which changes no time here; each repetition waits for the last, as in
    the plan, so ``us`` includes the cost of a dispatch, and the CPU's part of that: it is by the wall clock, since the
    GPU's needs buffers, and after a load none are made. A product's weights come from the cache after the first time:
    ``pyapp.bench.kernels`` has what they cost from memory. Callers hold the lease and clear what they must.
    """
    watch = Stopwatch(device)
    rows = []
    for group in grouped(plan.dispatches):
        dispatch, row = group.first, group.rows[0]
        timing = await measure(watch.submits(replay, ((row, row + 1),)))
        rows.append(
            {
                "operation": dispatch.operation,
                "kernel": dispatch.shader.label,
                "count": len(group.rows),
                "us": timing.us,
                "bytes": dispatch.bytes,
                "GBps": dispatch.bytes / timing.us / 1e3,
                "GFLOPs": dispatch.flops / timing.us / 1e3,
            }
        )
    return rows
