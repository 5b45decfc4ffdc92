"""How long each kernel takes on this adapter: every operation alone, many times over in one submit."""

from __future__ import annotations

import time
from typing import Any

from ..gpu.device import Device
from ..gpu.plan import Plan
from ..gpu.replay import Replay

MOST_SECONDS = 0.1
"""A submit is kept shorter than this, for slow GPUs and driver watchdogs."""


async def profile(
    device: Device, replay: Replay, plan: Plan, *, rounds: int = 3, repeat: int = 200
) -> list[dict[str, Any]]:
    """Rows of {operation, kernel, count, us, bytes, GBps, GFLOPs}, one for each distinct (shader, workgroups).

    A row has the name of its first operation; ``count`` is how often a run of the plan has it, ``us`` the best of
    ``rounds``.

    Kernels run on whatever the workspace holds, which changes no time here; each repetition waits for the last, as in
    the plan, so ``us`` includes the cost of a dispatch. Callers hold the lease and clear what they must.
    """
    first: dict[Any, int] = {}
    count: dict[Any, int] = {}
    for index, dispatch in enumerate(plan.dispatches):
        key = (dispatch.shader, dispatch.workgroups)
        first.setdefault(key, index)
        count[key] = count.get(key, 0) + 1
    rows = []
    for key, index in first.items():
        dispatch = plan.dispatches[index]
        seconds = await _time(device, replay, index, repeat, rounds)
        rows.append(
            {
                "operation": dispatch.operation,
                "kernel": dispatch.shader.label,
                "count": count[key],
                "us": seconds * 1e6,
                "bytes": dispatch.bytes,
                "GBps": dispatch.bytes / seconds / 1e9,
                "GFLOPs": dispatch.flops / seconds / 1e9,
            }
        )
    return rows


async def _time(device: Device, replay: Replay, index: int, repeat: int, rounds: int) -> float:
    """Seconds of one dispatch: the difference between a long and a short submit takes the round trip out."""
    span = ((index, index + 1),)

    async def run(times: int) -> float:
        start = time.perf_counter()
        replay.submit(span, repeat=times)
        await device.idle()
        return time.perf_counter() - start

    await run(1)
    single = await run(1)
    times = max(4, min(repeat, int(MOST_SECONDS / max(single, 1e-6))))
    short = min([await run(1) for _ in range(rounds)])
    long = min([await run(times + 1) for _ in range(rounds)])
    return max(long - short, 1e-9) / times
