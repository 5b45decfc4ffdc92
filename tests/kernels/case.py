"""A case of a kernel test: a small graph with seeded values, the same in Pyodide and under CPython."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.compiler.graph import CacheDtype, Graph, GraphBuilder
from pyapp.compiler.reference import StepState
from pyapp.gpu.limits import DeviceLimits
from pyapp.weights.formats import section_sizes, unpack

Array = NDArray[Any]
TOLERANCE = 1e-9
"""Of the normalised squared error. Both sides have exactly the same weights, so only float32's rounding differs."""
HALF_TOLERANCE = 1e-6
"""The same of float16 that was written: a value at the border of two halves may go to either."""
EPS = 0.05
"""Far more than models have, so that it shows."""


@dataclass(frozen=True)
class Packed:
    """A packed matrix and, by ``values``, what it means."""

    fmt: str
    n: int
    k: int
    quants: Array
    scales: Array

    @property
    def values(self) -> Array:
        return unpack(self.fmt, self.quants, self.scales, self.n, self.k)


@dataclass(frozen=True)
class Case:
    """A graph, what it runs on, and the step states that it runs at. ``outputs``: the tensors to compare.

    ``values`` are inputs, caches and what an output holds before the run. ``lanes`` is the subgroup size to lower for
    (1: a device without subgroups); ``hardware`` lowers as for a GPU that is none in software, ``packed_dot`` as for
    one that multiplies bytes well too; ``workgroup_storage``: bytes, where it is less than the device's.
    """

    name: str
    graph: Graph
    values: Mapping[str, Array]
    weights: Mapping[str, Packed]
    outputs: tuple[str, ...] = ("y",)
    states: tuple[StepState, ...] = (StepState(),)
    lanes: int = 4
    hardware: bool = False
    packed_dot: bool = False
    max_binding: int = 0
    workgroup_storage: int = 0

    def limits(self, limits: DeviceLimits) -> DeviceLimits:
        lanes = self.lanes if self.lanes > 1 else 0
        return replace(
            limits,
            subgroup=lanes,
            subgroup_max=lanes,
            software=not (self.hardware or self.packed_dot),
            packed_dot=self.packed_dot,
            max_binding=self.max_binding or limits.max_binding,
            max_workgroup_storage=self.workgroup_storage or limits.max_workgroup_storage,
        )

    def weight(self, name: str) -> Array:
        """A weight as the reference wants it: in the graph's shape."""
        return self.weights[name].values.reshape(self.graph.tensors[name].shape)


def random_weight(random: np.random.Generator, fmt: str, n: int, k: int) -> Packed:
    """Blocks with every bit of the quants in use, scales of both signs and minima that do not cancel them."""
    quants_bytes, scales_bytes = section_sizes(fmt, n, k)
    if fmt in ("f16", "bf16", "f32"):
        values = (random.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
        if fmt == "bf16":
            quants = (values.view(np.uint32) >> 16).astype(np.uint16)
        else:
            quants = values.astype(np.float16 if fmt == "f16" else np.float32)  # type: ignore[assignment]
        return Packed(fmt, n, k, quants.reshape(-1).view(np.uint8), np.zeros(0, np.uint8))
    scales = np.zeros(scales_bytes, np.uint8)
    blocks = n * k // 32 * (2 if fmt == "g8" else 1)
    size = random.uniform(0.3, 1.0, blocks) * random.choice([-1, 1], blocks) / np.sqrt(k)
    levels = 15 if fmt in ("s4", "q4", "g4") else 127
    factors = [size / levels] if fmt in ("s4", "q8") else [size / levels, random.uniform(-1, 1, blocks) / np.sqrt(k)]
    wide = np.float32 if fmt in ("g4", "g8") else np.float16
    raw = np.stack(factors, axis=1).astype(wide).reshape(-1).view(np.uint8)
    scales[: raw.size] = raw
    return Packed(fmt, n, k, random.integers(0, 256, quants_bytes, np.uint8), scales)


def vector(values: Array) -> Packed:
    """A norm's gain or a bias: one row of float32."""
    return Packed("f32", 1, values.size, values.astype(np.float32).reshape(-1).view(np.uint8), np.zeros(0, np.uint8))


@dataclass
class Build:
    """Collects a case: each tensor with its seeded contents."""

    name: str
    graph: GraphBuilder = field(init=False)
    random: np.random.Generator = field(init=False)
    values: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Packed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = GraphBuilder(self.name)
        self.graph.tensor("state", (64,), "state", dtype="u32")
        self.random = np.random.default_rng(sum(i * ord(c) for i, c in enumerate(self.name, 1)))

    def input(self, name: str, shape: tuple[int, ...], kind: Any = "input", scale: float = 1.0) -> str:
        self.values[name] = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return self.graph.tensor(name, shape, kind)

    def weight(self, name: str, fmt: str, n: int, k: int) -> str:
        self.weights[name] = random_weight(self.random, fmt, n, k)
        return self.graph.tensor(name, (n, k), "weight", fmt=fmt)

    def cache(self, name: str, shape: tuple[int, int], dtype: CacheDtype) -> str:
        """A KV cache that holds something."""
        self.values[name] = self.random.standard_normal(shape).astype(np.float16 if dtype == "f16" else np.float32)
        return self.graph.tensor(name, shape, "cache", dtype=dtype)

    def vector(self, name: str, size: int, around: float = 0.0) -> str:
        self.weights[name] = vector(self.random.standard_normal(size) * 0.5 + around)
        return self.graph.tensor(name, (size,), "weight")

    def rope(self, context: int, d: int) -> str:
        angles = self.random.uniform(-np.pi, np.pi, (context, d // 2))
        self.values["rope"] = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
        return self.graph.tensor("rope", (context, d // 2, 2), "cache")

    def case(self, **more: Any) -> Case:
        return Case(self.name, self.graph.build(), self.values, self.weights, **more)
