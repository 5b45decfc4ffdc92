"""Runs a graph in NumPy, fused or not: the oracle of the tests, and the vision model's path where there is no GPU.

Every operation of ``graph.py`` is one function over plain arrays, written for reading; float32 throughout, as in the
kernels. Tensors have the graph's names and layouts (a weight as the packed blob holds it, dequantised).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from .graph import Graph, Op
from .reference_decoder import DECODER, StepState
from .reference_vision import VISION

__all__ = ["Run", "StepState", "run"]

Array = NDArray[Any]


@dataclass
class Run:
    """One run in progress: what an operation's function is given to read tensors by role."""

    graph: Graph
    weights: Callable[[str], Array]
    state: StepState
    values: dict[str, Array] = field(default_factory=dict)

    def input(self, op: Op, role: str) -> Array | None:
        """The tensor in ``role`` of ``op``, or None where the operation has none."""
        name = op.inputs.get(role)
        if name is None:
            return None
        return self.weights(name) if self.graph.tensors[name].kind == "weight" else self.values[name]

    def need(self, op: Op, role: str) -> Array:
        value = self.input(op, role)
        if value is None:
            raise KeyError(f"{op.kind} {op.name} has no input {role!r}")
        return value


def run(
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Callable[[str], Array],
    state: StepState | None = None,
    keep: Iterable[str] | None = None,
) -> dict[str, Array]:
    """Runs ``graph``; returns the values of its tensors by name.

    inputs: arrays of the graph's ``input`` and ``cache`` tensors, in their dtypes; caches are written in place.
    weights: gives a weight by name, in the graph's shape, as float32.
    state: position, counts and sampling of a decoder's step; ``sample`` writes it in place. Rows past ``state.count``
        are left out: an activation [T, …] comes back with ``count`` rows.
    keep: return only these and free the others after their last reader (None: return all).

    Raises KeyError for a missing input and NotImplementedError for an operation that graph.py does not list.
    """
    current = Run(graph, weights, state or StepState(), dict(inputs))
    last: dict[str, int] = {name: i for i, op in enumerate(graph.ops) for name in (*op.inputs.values(), op.output)}
    kept = None if keep is None else set(keep)
    for index, op in enumerate(graph.ops):
        function = OPERATIONS.get(op.kind)
        if function is None:
            raise NotImplementedError(f"no reference for the operation {op.kind!r} ({op.name})")
        result = function(current, op)
        if result is not None:
            current.values[op.output] = result
        if kept is not None:
            for name in (*op.inputs.values(), op.output):
                if last[name] == index and name not in kept:
                    current.values.pop(name, None)
    return current.values if kept is None else {name: current.values[name] for name in kept}


OPERATIONS: dict[str, Callable[[Run, Op], Array | None]] = {**VISION, **DECODER}
