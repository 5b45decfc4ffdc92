"""Cases for the vision kernels: small graphs with seeded inputs and weights, the same in Pyodide and under CPython.

Sizes are ragged on purpose: sides that no tile divides, one pixel, one group of four channels, windows wider than the
picture, K too short to split and long enough to split sixteen ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.compiler.graph import Graph, GraphBuilder
from pyapp.gpu.limits import DeviceLimits
from pyapp.models.efficientnet import same_padding

Array = NDArray[Any]
TOLERANCE = 1e-6
"""Of the normalised squared error: sum of squared differences over the sum of squares of the reference."""


@dataclass(frozen=True)
class Case:
    """A graph with what it runs on. ``output``: the tensor to compare."""

    name: str
    graph: Graph
    inputs: dict[str, Array]
    weights: dict[str, Array]
    output: str = "y"
    hardware: bool = False
    """Lower as for a GPU, with K split over invocations, though the adapter that runs it may be a software one."""

    max_workgroups: int = 65535

    def limits(self, limits: DeviceLimits) -> DeviceLimits:
        return replace(limits, software=limits.software and not self.hardware, max_workgroups=self.max_workgroups)


def normalised_squared_error(value: Array, reference: Array) -> float:
    """sum((value - reference)²) / sum(reference²), in float64; infinite where value is not finite."""
    if not np.isfinite(value).all():
        return float("inf")
    wanted = reference.astype(np.float64)
    return float(np.square(value.reshape(wanted.shape) - wanted).sum() / max(np.square(wanted).sum(), 1e-30))


def cases() -> Iterator[Case]:
    yield from _stems()
    yield from _depthwise()
    yield from _pointwise()
    yield from _the_rest()


def _weights(graph: Graph, seed: int) -> dict[str, Array]:
    """Seeded, scaled so that sums neither vanish nor all end at ReLU6's borders."""
    random = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for name, tensor in graph.tensors.items():
        if tensor.kind == "weight":
            scale = 2.0 / np.sqrt(tensor.shape[0]) if len(tensor.shape) == 2 else 1.0
            out[name] = (random.standard_normal(tensor.shape) * scale).astype(np.float32)
    return out


def _conv(
    name: str, shape: tuple[int, ...], cout: int, kernel: int = 1, stride: int = 1, *,
    depthwise: bool = False, activation: str = "", residual: bool = False, normalise: tuple[float, float] | None = None,
    hardware: bool = False,
) -> Case:  # fmt: skip
    g = GraphBuilder(name)
    *size, cin = shape
    out, before, after = zip(*(same_padding(side, kernel, stride) for side in size), strict=True)
    pad = (*before, *after) if len(size) == 2 else (0, 0, 0, 0)
    g.tensor("x", shape, "input", dtype="u8" if normalise else "f32")
    g.tensor("w", (kernel * kernel * (1 if depthwise else cin), cout), "weight")
    g.tensor("b", (cout,), "weight")
    g.tensor("y", (*out, cout), "output")
    roles = {"residual": g.tensor("r", (*out, cout), "input")} if residual else {}
    attrs: dict[str, Any] = {
        "kernel": kernel, "stride": stride, "pad": pad, "groups": cin if depthwise else 1, "activation": activation,
    }  # fmt: skip
    if normalise:
        attrs["normalise"] = normalise
    g.op("conv", "y", (*out, cout), attrs, x="x", weight="w", bias="b", **roles)
    graph = g.build()
    random = np.random.default_rng(sum(map(ord, name)))
    inputs: dict[str, Array] = {
        each: random.integers(0, 256, tensor.shape, np.uint8)
        if tensor.dtype == "u8"
        else random.standard_normal(tensor.shape).astype(np.float32)
        for each, tensor in graph.tensors.items()
        if tensor.kind == "input"
    }
    return Case(name, graph, inputs, _weights(graph, 1), hardware=hardware)


def _stems() -> Iterator[Case]:
    norm = (127.0, 128.0)
    yield _conv("stem of Lite0, odd sides", (31, 27, 3), 32, 3, 2, normalise=norm, activation="relu6")
    yield _conv("stem, even sides", (32, 30, 3), 32, 3, 2, normalise=norm)
    yield _conv("stem, one pixel", (1, 1, 3), 4, 3, 2, normalise=norm)
    yield _conv("stem, 5 x 5, four channels in, outputs in three parts", (9, 7, 4), 60, 5, 1, normalise=(0.0, 255.0))
    yield _conv("stem, another activation", (12, 10, 3), 12, 3, 1, normalise=(10.0, 16.0), activation="relu")


def _depthwise() -> Iterator[Case]:
    for kernel in (3, 5):
        for stride in (1, 2):
            for h, w, c in ((7, 7, 12), (14, 13, 8), (1, 9, 4), (6, 1, 20), (2, 2, 4)):
                name = f"depthwise {kernel} x {kernel} / {stride} over {h} x {w} x {c}"
                yield _conv(name, (h, w, c), c, kernel, stride, depthwise=True, activation="relu6" if w > 1 else "")


def _pointwise() -> Iterator[Case]:
    for h, w, k, n in ((7, 7, 32, 16), (5, 3, 16, 96), (1, 1, 4, 4), (3, 3, 8, 12), (14, 9, 144, 24), (4, 4, 320, 36)):
        for hardware in (False, True):
            way = "split" if hardware else "whole"
            name = f"pointwise {h} x {w}, {k} to {n}, {way}"
            yield _conv(name, (h, w, k), n, activation="relu6", hardware=hardware)
            yield _conv(f"{name}, residual", (h, w, k), n, residual=True, hardware=hardware)
    yield replace(_conv("pointwise in rows of workgroups", (23, 21, 8), 16), max_workgroups=3)
    yield _conv("pointwise, relu after a residual", (5, 5, 12), 8, residual=True, activation="relu")
    for hardware in (False, True):
        yield _conv(f"classifier {'split' if hardware else 'whole'}", (1, 1280), 100, hardware=hardware)
        yield _conv(f"rows of vectors {'split' if hardware else 'whole'}", (5, 64), 20, hardware=hardware)


def _the_rest() -> Iterator[Case]:
    random = np.random.default_rng(5)
    for h, w, c in ((7, 7, 1280), (1, 1, 4), (5, 3, 20)):
        g = GraphBuilder(f"global pool {h} x {w} x {c}")
        g.tensor("x", (h, w, c), "input")
        g.tensor("y", (1, c), "output")
        g.op("global_pool", "y", (1, c), x="x")
        yield Case(g.name, g.build(), {"x": random.standard_normal((h, w, c)).astype(np.float32)}, {})
    for activation in ("relu6", "relu"):
        g = GraphBuilder(f"activation {activation}")
        g.tensor("x", (5, 7, 12), "input")
        g.tensor("y", (5, 7, 12), "output")
        g.op("activation", "y", (5, 7, 12), {"activation": activation}, x="x")
        yield Case(g.name, g.build(), {"x": random.standard_normal((5, 7, 12)).astype(np.float32) * 5}, {})
    g = GraphBuilder("sum")
    for name in "ab":
        g.tensor(name, (3, 9, 4), "input")
    g.tensor("y", (3, 9, 4), "output")
    g.op("sum", "y", (3, 9, 4), a="a", b="b")
    yield Case("sum", g.build(), {name: random.standard_normal((3, 9, 4)).astype(np.float32) for name in "ab"}, {})
