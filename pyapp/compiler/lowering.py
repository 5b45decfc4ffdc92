"""Graph → Plan: each operation to its dispatches, with the workspace laid out around them."""

from __future__ import annotations

from collections.abc import Iterable

from ..gpu.limits import DeviceLimits
from ..gpu.plan import Dispatch, Plan
from . import lower_decoder, lower_vision
from .graph import Graph
from .memory import plan_memory

LOWERINGS = {**lower_vision.LOWERINGS, **lower_decoder.LOWERINGS}


def lower(graph: Graph, limits: DeviceLimits, keep: Iterable[str] = ()) -> Plan:
    """The plan of a (fused) graph for a device. ``keep`` as in ``memory.plan_memory``.

    ``Plan.marks`` holds the index of each operation's first dispatch by the operation's name.
    """
    dispatches: list[Dispatch] = []
    marks: dict[str, int] = {}
    for op in graph.ops:
        marks[op.name] = len(dispatches)
        dispatches += LOWERINGS[op.kind](op, graph, limits)
    tile = lower_decoder.TOKEN_TILE if any(d.per_tile for d in dispatches) else 1
    return Plan(graph.name, tuple(dispatches), plan_memory(graph, keep), tile, marks)
