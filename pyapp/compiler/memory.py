"""Gives every activation an offset in the workspace, reusing space as soon as its last reader is done.

Greedy by size (Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference"): the largest
tensors first, each into the lowest gap among those whose lifetimes overlap its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..gpu.allocator import aligned
from ..gpu.plan import MemoryPlan
from .graph import Graph


def plan_memory(graph: Graph, keep: Iterable[str] = ()) -> MemoryPlan:
    """Offsets of the graph's activations, inputs and outputs (bytes, 256-aligned).

    ``keep``: tensors that must survive the whole run (graph outputs read back later, inputs written before it);
    a graph's ``input`` and ``output`` tensors always do.
    """
    lives: dict[str, tuple[int, int]] = {}
    kept = set(keep)
    for index, op in enumerate(graph.ops):
        for name in (*op.inputs.values(), op.output):
            if graph.tensors[name].kind in ("activation", "input", "output"):
                first, _ = lives.get(name, (index, index))
                lives[name] = (first, index)
    for name in lives:
        if name in kept or graph.tensors[name].kind in ("input", "output"):
            lives[name] = (-1, len(graph.ops))
    sizes = {name: aligned(graph.tensors[name].nbytes) for name in lives}
    offsets: dict[str, int] = {}
    placed: list[str] = []
    for name in sorted(lives, key=lambda n: (-sizes[n], lives[n][0], n)):
        first, last = lives[name]
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in placed
            if lives[other][0] <= last and first <= lives[other][1]
        )
        at = 0
        for begin, end in taken:
            if at + sizes[name] <= begin:
                break
            at = max(at, end)
        offsets[name] = at
        placed.append(name)
    peak = max((offsets[name] + sizes[name] for name in placed), default=0)
    return MemoryPlan(offsets, sizes, peak, sum(sizes.values()))
