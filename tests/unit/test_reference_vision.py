"""The NumPy run of vision graphs against loops that spell the definition out, and the passes over small graphs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyapp.compiler import reference_vision
from pyapp.compiler.graph import Graph, GraphBuilder
from pyapp.compiler.passes import fuse
from pyapp.compiler.passes_vision import VISION_PASSES, fuse_activation, fuse_residual
from pyapp.compiler.reference import run
from tests.kernels.vision_cases import Case, cases, normalised_squared_error

Array = NDArray[Any]


def by_definition(case: Case) -> Array:
    """y[i, j, o] in float64, one output at a time."""
    (op,) = case.graph.ops
    x = case.inputs[op.inputs["x" if "x" in op.inputs else "a"]].astype(np.float64)
    if op.kind == "sum":
        return x + case.inputs["b"]
    if op.kind == "global_pool":
        return x.mean(axis=(0, 1))[None]
    if op.kind == "conv":
        x = _conv(op.attrs, x, case)
    ends = {"": (-np.inf, np.inf), "relu": (0, np.inf), "relu6": (0, 6)}[op.attrs.get("activation", "")]
    return np.minimum(np.maximum(x, ends[0]), ends[1])


def _conv(attrs: Any, x: Array, case: Case) -> Array:
    shape = case.graph.tensors["y"].shape
    if "normalise" in attrs:
        x = (x - attrs["normalise"][0]) / attrs["normalise"][1]
    x = x.reshape((*([1] * (3 - x.ndim)), *x.shape))
    h, w, cin = x.shape
    kernel, stride, (top, left, _, _) = attrs["kernel"], attrs["stride"], attrs["pad"]
    weight = case.weights["w"].astype(np.float64)
    y = np.zeros((*([1] * (3 - len(shape))), *shape))
    for i, j in np.ndindex(*y.shape[:2]):
        total = case.weights["b"].astype(np.float64)
        for ky, kx in np.ndindex(kernel, kernel):
            row, column = i * stride + ky - top, j * stride + kx - left
            if 0 <= row < h and 0 <= column < w:
                tap = ky * kernel + kx
                if attrs["groups"] == 1:
                    total = total + x[row, column] @ weight[tap * cin : (tap + 1) * cin]
                else:
                    total = total + x[row, column] * weight[tap]
        y[i, j] = total
    y = y.reshape(shape)
    return y + case.inputs["r"] if "r" in case.inputs else y


@pytest.mark.parametrize("case", [case for case in cases() if not case.hardware], ids=lambda case: case.name)
def test_operations_do_what_they_are_defined_to(case: Case) -> None:
    y = run(case.graph, case.inputs, case.weights.__getitem__)["y"]
    assert y.dtype == np.float32
    assert y.shape == case.graph.tensors["y"].shape
    assert normalised_squared_error(y, by_definition(case)) < 1e-12


@pytest.mark.parametrize("k", [5, 64, 300])
@pytest.mark.parametrize("turned", [False, True])
def test_the_product_without_a_blas(monkeypatch: pytest.MonkeyPatch, k: int, turned: bool) -> None:
    assert reference_vision.HAS_BLAS is (sys.platform != "emscripten")
    random = np.random.default_rng(k)
    x, w = random.standard_normal((7, k)).astype(np.float32), random.standard_normal((11, k)).astype(np.float32).T
    monkeypatch.setattr(reference_vision, "HAS_BLAS", False)
    y = reference_vision.product(x, w if turned else np.ascontiguousarray(w))
    assert normalised_squared_error(y, x.astype(np.float64) @ w) < 1e-12


def small_net(
    extra_reader: bool = False, residual_is_x: bool = False, kernel: int = 1
) -> tuple[Graph, dict[str, Array]]:
    """x → conv → sum with x (or with conv's own x) → relu6."""
    g = GraphBuilder("small")
    g.tensor("x", (4, 4, 8), "input")
    attrs = {"kernel": kernel, "stride": 1, "pad": (0, 0, 0, 0), "groups": 1}
    for name in ("one", "two"):
        g.tensor(f"{name}.w", (8, 8), "weight")
        g.tensor(f"{name}.b", (8,), "weight")
    one = g.op("conv", "one", (4, 4, 8), attrs, x="x", weight="one.w", bias="one.b")
    two = g.op("conv", "two", (4, 4, 8), attrs, x=one, weight="two.w", bias="two.b")
    both = g.op("sum", "both", (4, 4, 8), a=two, b=one if residual_is_x else "x")
    y = g.op("activation", "y", (4, 4, 8), {"activation": "relu6"}, x=both)
    if extra_reader:
        y = g.op("sum", "more", (4, 4, 8), a=y, b=two)
    g.tensor(y, (4, 4, 8), "output")
    random = np.random.default_rng(2)
    weights = {
        n: random.standard_normal(t.shape).astype(np.float32) for n, t in g.tensors.items() if t.kind == "weight"
    }
    return g.build(), {**weights, "x": random.standard_normal((4, 4, 8)).astype(np.float32)}


def test_the_passes_take_in_what_they_may() -> None:
    graph, values = small_net()
    fused = fuse(graph, VISION_PASSES)
    assert [op.kind for op in fused.ops] == ["conv", "conv"]
    assert fused.ops[1].inputs["residual"] == "x"
    assert fused.ops[1].attrs["activation"] == "relu6"
    assert set(fused.tensors) == {"x", "one", "y", "one.w", "one.b", "two.w", "two.b"}
    assert len(fuse_residual(graph).ops) == len(graph.ops) - 1
    for each in (fuse_residual(graph), fuse_activation(graph), fused):
        _same(graph, each, values, "y")


def test_the_passes_leave_what_they_must() -> None:
    for graph, values in (small_net(extra_reader=True), small_net(residual_is_x=True)):
        fused = fuse(graph, VISION_PASSES)
        kinds = [op.kind for op in fused.ops]
        assert kinds == [op.kind for op in graph.ops]
        _same(graph, fused, values, "more" if "more" in graph.tensors else "y")


def test_a_result_that_is_the_output_stays() -> None:
    g = GraphBuilder("output")
    g.tensor("x", (1, 4), "input")
    g.tensor("w", (4, 4), "weight")
    g.tensor("b", (4,), "weight")
    g.tensor("y", (1, 4), "output")
    attrs = {"kernel": 1, "stride": 1, "pad": (0, 0, 0, 0), "groups": 1}
    g.op("conv", "y", (1, 4), attrs, x="x", weight="w", bias="b")
    g.tensor("z", (1, 4), "output")
    g.op("activation", "z", (1, 4), {"activation": "relu"}, x="y")
    assert [op.kind for op in fuse(g.build(), VISION_PASSES).ops] == ["conv", "activation"]


def _same(one: Graph, other: Graph, values: dict[str, Array], output: str) -> None:
    first, second = (
        run(graph, {"x": values["x"]}, values.__getitem__, keep=[output])[output] for graph in (one, other)
    )
    np.testing.assert_allclose(first, second, atol=1e-6)
