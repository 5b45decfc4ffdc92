"""Shapes of products of one token: which are valid, and that lowering takes what it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.compiler.graph import Graph, Tensor
from pyapp.compiler.lower_attention import gang
from pyapp.compiler.lowering import lower
from pyapp.compiler.passes import fuse
from pyapp.compiler.products import VectorShape, candidates, inputs_of, product, product_key, vector_shape
from pyapp.gpu.limits import DeviceLimits
from pyapp.models.decoder import build_graph, packed_shapes
from tests.kernels.linear_cases import digits

from .decoder_configs import QWEN25_15B

GPU = DeviceLimits(max_binding=2 << 30, subgroup=32, subgroup_max=32)
HEAD = Tensor("head", (151936, 1536), "weight", fmt="q4")
GATE_UP = Tensor("gate_up", (17920, 1536), "weight", fmt="q4")


def step() -> Graph:
    config = replace(QWEN25_15B, layers=2)
    return fuse(build_graph(config, dict.fromkeys(packed_shapes(config), "q4"), tokens=1, context=256, splits=16))


def test_lowering_takes_the_shapes_that_it_is_told() -> None:
    graph = step()
    weight = graph.tensors["layers.1.gate_up"]
    usual, told = vector_shape(GPU, weight, "silu_mul"), VectorShape(8, 4, 64)
    assert told != usual
    key = product_key(weight, "rms_norm", "silu_mul")
    plan, other = lower(graph, GPU), lower(graph, GPU, shapes={key: told})
    changed = [(a, b) for a, b in zip(plan.dispatches, other.dispatches, strict=True) if a != b]
    assert [a.operation for a, _ in changed] == ["layers.0.gate_up_out", "layers.1.gate_up_out"]
    for before, after in changed:
        params = dict(after.shader.params)
        assert [params[name] for name in ("LANES", "LOG_LANES", "ROWS", "WG")] == [8, 3, 4, 64]
        assert after.workgroups == (17920 // (64 // 8 * 4), 1, 1)
        assert (after.bytes, after.flops, after.bindings) == (before.bytes, before.flops, before.bindings)
    assert lower(graph, GPU, shapes={key: usual}) == plan


def test_every_product_of_a_step_has_a_key_and_the_usual_shape_among_its_candidates() -> None:
    graph = step()
    keys = set()
    for op in graph.ops:
        if op.kind == "linear":
            weight, epilogue = graph.tensors[op.inputs["weight"]], op.attrs.get("epilogue", "")
            keys.add(product_key(weight, op.attrs.get("prologue", ""), epilogue))
            assert vector_shape(GPU, weight, epilogue) in candidates(GPU, weight, epilogue)
    assert keys == {
        "q4 2048x1536 rms_norm rope_cache",
        "q4 1536x1536 attention_merge residual",
        "q4 17920x1536 rms_norm silu_mul",
        "q4 1536x8960 plain residual",
        "q4 151936x1536 rms_norm store",
    }


def test_candidates_are_those_that_a_device_can_run() -> None:
    assert len(candidates(GPU, GATE_UP, "store")) == 4 * 4 * 3
    assert {shape.rows for shape in candidates(GPU, GATE_UP, "silu_mul")} == {2, 4, 8}  # gate and up in pairs
    assert {shape.rows for shape in candidates(GPU, GATE_UP, "rope_cache")} == {2, 4, 8}
    # Two rows a workgroup: the vocabulary has more of them than a dispatch has workgroups.
    assert VectorShape(32, 1, 64) not in candidates(GPU, HEAD, "store")
    assert VectorShape(32, 2, 64) in candidates(GPU, HEAD, "store")
    assert {shape.lanes for shape in candidates(replace(GPU, subgroup=8), HEAD, "store")} == {4, 8}
    small = candidates(replace(GPU, max_invocations=128), HEAD, "store")
    assert {shape.workgroup for shape in small} == {64, 128}


@pytest.mark.parametrize("limits", [replace(GPU, software=True), replace(GPU, subgroup=0)])
def test_a_device_without_this_kernel_has_no_shapes_to_choose_from(limits: DeviceLimits) -> None:
    assert candidates(limits, HEAD, "store") == []
    graph = step()
    assert lower(graph, limits, shapes={product_key(HEAD, "rms_norm", ""): VectorShape(8, 4, 64)}) == lower(
        graph, limits
    )


def test_many_rows_of_4_bits_are_multiplied_in_whole_numbers_where_a_device_does_that_well() -> None:
    graph, good = step(), replace(GPU, packed_dot=True)
    inputs = {
        limits: {
            dispatch.operation: dict(dispatch.shader.params).get("INPUTS")
            for dispatch in lower(graph, limits).dispatches
            if dispatch.shader.file == "matvec"
        }
        for limits in (GPU, good)
    }
    assert set(inputs[GPU].values()) == {"floats"}
    assert {name for name, kind in inputs[good].items() if kind == "digits"} == {
        "layers.0.gate_up_out", "layers.1.gate_up_out", "logits",
    }  # fmt: skip
    head = replace(HEAD, fmt="q8")
    assert (inputs_of(good, head), inputs_of(good, HEAD)) == ("floats", "digits")
    assert [vector_shape(good, each, "").lanes for each in (head, HEAD)] == [4, 8]


def test_many_rows_have_their_inputs_asked_for_first_where_all_their_weights_are_on_their_way_at_once() -> None:
    good = replace(GPU, packed_dot=True)

    def made(limits: DeviceLimits, n: int, k: int, prologue: str = "rms_norm") -> tuple[int, bool]:
        """(rows an invocation, whether the inputs come first)"""
        params = product(limits, Tensor("w", (n, k), "weight", fmt="s4"), 1, prologue, "store").params
        return params["ROWS"], params["INPUTS_FIRST"]

    assert [made(good, n, 1536) for n in (8192, 17920, 32767)] == [(4, True)] * 3
    assert made(good, 32768, 1536) == (4, False)  # a vocabulary
    assert made(good, 8191, 1536) == (2, False)  # floats, as on a device that does not multiply bytes well
    assert made(GPU, 17920, 1536) == (2, False)
    # Longer rows, or fewer lanes that share them: more weights than an invocation asks for at once.
    assert made(good, 17920, 1568) == (2, False)
    assert made(replace(good, subgroup=8), 17920, 1536) == (2, False)
    assert made(replace(good, subgroup=8), 17920, 768) == (4, True)
    assert made(good, 17920, 1536, "attention_merge") == (4, False)


def test_inputs_come_first_only_in_shapes_in_which_they_are_one_round_of_loads() -> None:
    good, orders = replace(GPU, packed_dot=True), set()
    for k in (32, 96, 1536, 2048, 8960):
        weight = Tensor("w", (17920, k), "weight", fmt="s4")
        for shape in candidates(good, weight, "silu_mul"):
            params = product(good, weight, 1, "rms_norm", "silu_mul", shape).params
            assert [params[name] for name in ("LANES", "ROWS", "WG")] == [shape.lanes, shape.rows, shape.workgroup]
            orders.add((shape.rows, params["INPUTS_FIRST"]))
            if params["INPUTS_FIRST"]:
                assert (params["AHEAD"], params["TILED"]) == (True, False)
                assert params["TILE"] * 32 == k
                assert params["TILE"] * 8 <= params["WG"] * params["FILL"]
    assert orders == {(2, False), (4, False), (4, True), (8, False), (8, True)}


@pytest.mark.parametrize("subgroup", [4, 8, 16])
def test_the_cases_of_kernels_have_products_in_digits_with_either_order(subgroup: int) -> None:
    """What Chromium's emulated GPU runs (subgroups of 4), and Mesa's (``tests.kernels.native``)."""
    first: dict[bool, set[str]] = {True: set(), False: set()}
    fills = set()
    for case in digits():
        limits = replace(case.limits(DeviceLimits(max_workgroup_storage=32768)), subgroup=subgroup)
        (dispatch,) = lower(case.graph, limits).dispatches
        params = dict(dispatch.shader.params)
        assert params["INPUTS"] == "digits"
        if params["N"] < 32768:
            first[params["INPUTS_FIRST"]].add(f"{params['PROLOGUE'] or 'plain'} {params['EPILOGUE']}")
        if params["INPUTS_FIRST"]:
            fills.add(params["FILL"])
    assert first[True] == {"plain store", "plain residual", "rms_norm store", "rms_norm silu_mul"}
    assert "plain store" in first[False]
    assert ("rms_norm silu_mul" in first[False]) == (subgroup == 4)
    assert fills == {4: {1}, 8: {1}, 16: {1, 3}}[subgroup]


@given(st.integers(1, 64).map(lambda four: 4 * four), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_the_parts_of_a_head_are_weighed_by_as_many_neighbours_as_there_are_fours_of_them_to_share(
    splits: int, lanes: int
) -> None:
    """Neighbours that exchange by shuffles, so a power of two of them, none with more fours than another."""
    together = gang(splits, lanes)
    fitting = [n for n in (1, 2, 4, 8, 16, 32) if n <= lanes and splits // 4 % n == 0]
    assert together == max(fitting)


def test_the_least_and_the_usual_parts_on_hardware() -> None:
    assert (gang(4, 32), gang(32, 32), gang(32, 4), gang(20, 32), gang(32, 1)) == (1, 8, 4, 1, 1)
