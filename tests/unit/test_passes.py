"""Fusions: each alone and any of them together mean the same; what is fused is pinned for the real models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyapp.compiler.graph import Graph, GraphBuilder
from pyapp.compiler.lowering import lower
from pyapp.compiler.passes import DECODER_PASSES, decoder_passes, fuse
from pyapp.compiler.reference import StepState, run
from pyapp.errors import BadModel
from pyapp.gpu.limits import DeviceLimits
from pyapp.models.decoder import DecoderConfig, build_graph, packed_shapes

from .decoder_configs import QWEN25_15B, SMOLLM2, TINY, caches, random_weights

CONTEXT = 24
GPU = DeviceLimits(subgroup=32, subgroup_max=32)


def graph_of(config: DecoderConfig, tokens: int, splits: int = 2) -> Graph:
    formats = dict.fromkeys(packed_shapes(config), "f32")
    return build_graph(config, formats, tokens=tokens, context=CONTEXT, splits=splits)


def outcome(
    config: DecoderConfig, graph: Graph, tokens: int, weights: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The logits, the caches and the token drawn after two steps (or a chunk and a step)."""
    kv = caches(config, CONTEXT)
    state = StepState(token=3, position=9, count=max(1, tokens - 2), seed=5)
    ids = np.arange(tokens, dtype=np.uint32) % config.vocab
    values = run(graph, {**kv, "ids": ids}, weights.__getitem__, state)
    written = {name: kv[name] for name in kv if name != "rope"}
    return {"logits": values["logits"], "token": np.array(state.ids), **written}


def same(ours: dict[str, NDArray[Any]], theirs: dict[str, NDArray[Any]]) -> None:
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, atol=3e-5, err_msg=name)


@pytest.mark.parametrize("left_out", [*DECODER_PASSES, None])
@pytest.mark.parametrize("tokens", [1, 6])
def test_each_fusion_alone_and_all_but_each(left_out: str | None, tokens: int) -> None:
    config = replace(
        QWEN25_15B, vocab=40, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, ff=96, context=64, interleaved=True
    )
    weights, plain = random_weights(config), graph_of(config, tokens)
    wanted = outcome(config, plain, tokens, weights)
    alone = [DECODER_PASSES[left_out]] if left_out else []
    others = [each for name, each in DECODER_PASSES.items() if name != left_out]
    for passes in (alone, others):
        same(outcome(config, fuse(plain, passes), tokens, weights), wanted)


@settings(max_examples=40)
@given(TINY, st.sampled_from([1, 5]), st.permutations(list(DECODER_PASSES)), st.integers(0, 5))
def test_any_fusions_in_any_order_on_any_decoder(
    config: DecoderConfig, tokens: int, names: list[str], count: int
) -> None:
    weights, plain = random_weights(config), graph_of(config, tokens)
    fused = fuse(plain, [DECODER_PASSES[name] for name in names[:count]])
    same(outcome(config, fused, tokens, weights), outcome(config, plain, tokens, weights))


def per_layer(names: Iterable[str]) -> Counter[str]:
    """How many of the names belong to each layer."""
    return Counter(name.split(".")[1] for name in names if name.startswith("layers."))


@pytest.mark.parametrize("config", [SMOLLM2, QWEN25_15B], ids=["SmolLM2", "Qwen2.5-1.5B"])
def test_a_fused_step_has_five_dispatches_a_layer(config: DecoderConfig) -> None:
    formats = dict.fromkeys(packed_shapes(config), "q4")
    graph = build_graph(config, formats, tokens=1, context=config.context, splits=16)
    plan = lower(fuse(graph), GPU)
    counts = per_layer(dispatch.operation for dispatch in plan.dispatches)
    assert counts == {str(i): 5 for i in range(config.layers)}
    # Embedding and head aside; a head of more bytes than a binding would take several.
    assert len(plan.dispatches) == 5 * config.layers + 1 + 1 + 2
    first = [op.kind for op in fuse(graph).ops if op.name.startswith("layers.0.")]
    assert first == ["linear", "attention", "linear", "linear", "linear"]
    unfused = per_layer(dispatch.operation for dispatch in lower(graph, GPU).dispatches)
    assert set(unfused.values()) == {12}


def test_what_does_not_fit_a_binding_is_not_fused_by_its_rows() -> None:
    """Gate and up, or q, k and v, in several dispatches: then a row's number in its piece says nothing."""
    formats = dict.fromkeys(packed_shapes(QWEN25_15B), "q4")
    graph = build_graph(QWEN25_15B, formats, tokens=1, context=2048, splits=16)
    small = replace(GPU, max_binding=4 << 20)
    fused = fuse(graph, decoder_passes(small))
    first = [(op.kind, op.attrs.get("epilogue", "")) for op in fused.ops if op.name.startswith("layers.0.")]
    assert first[0] == ("linear", "rope_cache")  # 2,048 rows of 768 bytes
    assert [kind for kind, _ in first].count("silu_mul") == 1  # 17,920 rows of them do not fit 4 MiB
    gate_up = [d for d in lower(fused, small).dispatches if d.operation == "layers.0.gate_up_out"]
    assert [d.bindings[0].offset // 768 for d in gate_up] == [0, 5440, 10880, 16320]
    with pytest.raises(BadModel, match=r"needs its 17920 rows in one binding, .* hold 5440 of them"):
        lower(fuse(graph), small)
    assert fuse(graph, decoder_passes(GPU)) == fuse(graph)


def test_norms_of_heads_keep_a_dispatch_of_their_own() -> None:
    config = replace(SMOLLM2, head_norm=True, layers=2)
    graph = fuse(build_graph(config, dict.fromkeys(packed_shapes(config), "q4"), tokens=1, context=64, splits=16))
    counts = per_layer(dispatch.operation for dispatch in lower(graph, GPU).dispatches)
    assert counts == {"0": 6, "1": 6}  # the most that an issue allows


def test_a_value_that_others_read_is_not_fused_away() -> None:
    """A second reader of a product's, a norm's or a merge's result keeps it in memory."""
    g = GraphBuilder("shared")
    g.tensor("x", (1, 64), "input")
    for name, shape in (("w", (64, 64)), ("v", (64, 64)), ("gain", (64,))):
        g.tensor(name, shape, "weight")
    g.op("rms_norm", "normed", (1, 64), {"eps": 1e-5}, x="x", gain="gain")
    g.op("linear", "product", (1, 64), x="normed", weight="w")
    g.op("add", "sum", (1, 64), x="product", residual="x")
    g.op("silu_mul", "gated", (1, 32), x="product")
    g.op("add", "again", (1, 64), x="normed", residual="sum")
    graph = g.build()
    fused = fuse(graph)
    assert [op.kind for op in fused.ops] == [op.kind for op in graph.ops]
    assert fused.tensors.keys() == graph.tensors.keys() - {"v"}  # what nothing names is dropped


def test_a_norm_goes_into_every_product_that_reads_it() -> None:
    g = GraphBuilder("two readers")
    g.tensor("x", (1, 64), "input")
    for name, shape in (("w", (64, 64)), ("v", (64, 64)), ("gain", (64,))):
        g.tensor(name, shape, "weight")
    g.op("rms_norm", "normed", (1, 64), {"eps": 1e-5}, x="x", gain="gain")
    g.op("linear", "a", (1, 64), x="normed", weight="w")
    g.op("linear", "b", (1, 64), x="normed", weight="v")
    fused = fuse(g.build())
    assert [(op.kind, op.attrs["prologue"], op.inputs["x"]) for op in fused.ops] == [("linear", "rms_norm", "x")] * 2
