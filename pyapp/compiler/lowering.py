"""Graph → Plan: each operation to its dispatches, with the workspace laid out around them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from ..errors import BadModel
from ..gpu.limits import DeviceLimits
from ..gpu.plan import FIGURES, Dispatch, Plan
from . import lower_decoder, lower_vision, products
from .graph import Graph, Op
from .memory import plan_memory

UNIFORM_ALIGNMENT = 256
"""Bytes: the largest that WebGPU lets a device ask of a uniform binding's offset."""
Lowering = Callable[[Op, Graph, DeviceLimits], list[Dispatch]]
LOWERINGS: dict[str, Lowering] = {**lower_vision.LOWERINGS, **lower_decoder.LOWERINGS}


def lower(
    graph: Graph, limits: DeviceLimits, keep: Iterable[str] = (), shapes: products.Shapes = products.NO_SHAPES
) -> Plan:
    """The plan of a (fused) graph for a device. ``keep`` as in ``memory.plan_memory``; ``shapes``: of the products of
    one token that are not to have the usual one.

    ``Plan.marks`` holds the index of each operation's first dispatch by the operation's name. Raises ``BadModel`` for a
    tensor that no binding of the device holds.
    """
    assert FIGURES not in graph.tensors, "the name of the constants"
    lowerings: dict[str, Lowering] = {**LOWERINGS, "linear": partial(lower_decoder.lower_linear, shapes=shapes)}
    dispatches: list[Dispatch] = []
    marks: dict[str, int] = {}
    for op in graph.ops:
        marks[op.name] = len(dispatches)
        dispatches += lowerings[op.kind](op, graph, limits)
    _check_bindings(dispatches, graph, limits)
    dispatches, constants = _placed(dispatches)
    tile = products.token_tile(limits) if any(d.per_tile for d in dispatches) else 1
    return Plan(graph.name, tuple(dispatches), plan_memory(graph, keep), tile, marks, constants)


def _placed(dispatches: list[Dispatch]) -> tuple[list[Dispatch], bytes]:
    """The dispatches with a place for their figures, and the constants that hold them; equal figures share one."""
    places: dict[tuple[int, ...], int] = {}
    placed = []
    for dispatch in dispatches:
        if dispatch.figures:
            at = places.setdefault(dispatch.figures, len(places) * UNIFORM_ALIGNMENT)
            bindings = (replace(b, offset=at) if b.tensor == FIGURES else b for b in dispatch.bindings)
            dispatch = replace(dispatch, bindings=tuple(bindings))
        placed.append(dispatch)
    return placed, b"".join(struct.pack(f"<{len(key)}i", *key).ljust(UNIFORM_ALIGNMENT, b"\0") for key in places)


def _check_bindings(dispatches: Iterable[Dispatch], graph: Graph, limits: DeviceLimits) -> None:
    for dispatch in dispatches:
        for binding in dispatch.bindings:
            if binding.tensor == FIGURES:
                continue
            tensor = graph.tensors[binding.tensor]
            # What is quantised was cut to fit (``pieces_of``); its size in bytes is not ``nbytes``.
            need = binding.nbytes or (tensor.nbytes - binding.offset if tensor.fmt == "f32" else 0)
            if need > limits.max_binding:
                raise BadModel(
                    f"The layer {dispatch.operation} needs {need} bytes of {tensor.name} at once, and one binding of "
                    f"this device holds {limits.max_binding}; choose a smaller model.",
                    need=need,
                    limit=limits.max_binding,
                )
