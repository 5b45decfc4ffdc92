"""Places of activations: what lives at one time never lies at one place, and reuse is worth its while."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.compiler.graph import Graph, GraphBuilder
from pyapp.compiler.memory import plan_memory
from pyapp.compiler.passes import DECODER_PASSES, fuse
from pyapp.compiler.passes_vision import VISION_PASSES
from pyapp.gpu.plan import MemoryPlan
from pyapp.models import efficientnet
from pyapp.models.decoder import DecoderConfig, build_graph, packed_shapes

from .decoder_configs import QWEN25_15B, SMOLLM2, TINY

PLANNED = ("activation", "input", "output")


def lifetimes(graph: Graph, keep: tuple[str, ...] = ()) -> dict[str, range]:
    """The operations during which each tensor must keep its value: from the first that names it to the last."""
    lives: dict[str, range] = {}
    for name, tensor in graph.tensors.items():
        uses = [i for i, op in enumerate(graph.ops) if name in (*op.inputs.values(), op.output)]
        if tensor.kind in PLANNED and uses:
            whole = tensor.kind in ("input", "output") or name in keep
            lives[name] = range(len(graph.ops)) if whole else range(uses[0], uses[-1] + 1)
    return lives


def check(graph: Graph, plan: MemoryPlan, keep: tuple[str, ...] = ()) -> None:
    lives = lifetimes(graph, keep)
    assert plan.offsets.keys() == plan.sizes.keys() == lives.keys()
    for name in lives:
        assert plan.offsets[name] % 256 == 0
        assert graph.tensors[name].nbytes <= plan.sizes[name] < graph.tensors[name].nbytes + 256
        assert plan.offsets[name] + plan.sizes[name] <= plan.peak
    for a, b in combinations(lives, 2):
        together = lives[a].start < lives[b].stop and lives[b].start < lives[a].stop
        apart = plan.offsets[a] + plan.sizes[a] <= plan.offsets[b] or plan.offsets[b] + plan.sizes[b] <= plan.offsets[a]
        assert apart or not together, f"{a} and {b} live together and lie on each other"
    assert plan.sum == sum(plan.sizes.values())
    busiest = max((sum(plan.sizes[n] for n in lives if i in lives[n]) for i in range(len(graph.ops))), default=0)
    assert busiest <= plan.peak <= plan.sum


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, tuple[str, ...]]:
    """Any operations over any tensors: some read, some written several times, some never read."""
    g = GraphBuilder("random")
    g.tensor("w", (64,), "weight")
    names = ["t0"]
    g.tensor("t0", (draw(st.integers(1, 300)),), "input")
    for i in range(draw(st.integers(0, 14))):
        inputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        again = draw(st.booleans()) and len(names) > 1
        output = draw(st.sampled_from(names[1:])) if again else f"t{len(names)}"
        if not again:
            kind: Any = draw(st.sampled_from(["activation"] * 4 + ["output", "cache", "state"]))
            dtype: Any = draw(st.sampled_from(["f32", "u8"]))
            g.tensor(output, (draw(st.integers(1, 300)),), kind, dtype=dtype)
            names.append(output)
        roles: dict[str, Any] = {f"x{n}": name for n, name in enumerate(inputs)}
        g.op("any", output, (), name=f"op{i}", w="w", **roles)
    return g.build(), tuple(draw(st.lists(st.sampled_from(names), max_size=2)))


@given(graphs())
def test_no_two_live_tensors_share_a_byte(case: tuple[Graph, tuple[str, ...]]) -> None:
    graph, keep = case
    check(graph, plan_memory(graph, keep), keep)


def decoder(config: DecoderConfig, tokens: int, passes: bool) -> Graph:
    formats = dict.fromkeys(packed_shapes(config), "q4")
    graph = build_graph(config, formats, tokens=tokens, context=config.context, splits=16 if tokens == 1 else 1)
    return fuse(graph, DECODER_PASSES.values() if passes else ())


@given(TINY, st.sampled_from([1, 8]), st.booleans())
def test_decoders_of_any_shape(config: DecoderConfig, tokens: int, passes: bool) -> None:
    graph = decoder(config, tokens, passes)
    check(graph, plan_memory(graph))


@pytest.mark.parametrize(
    "graph",
    [
        decoder(SMOLLM2, 1, True),
        decoder(SMOLLM2, 256, True),
        decoder(QWEN25_15B, 1, True),
        decoder(QWEN25_15B, 256, True),
        fuse(efficientnet.build_graph(), VISION_PASSES),
    ],
    ids=["SmolLM2 step", "SmolLM2 chunk", "Qwen2.5 step", "Qwen2.5 chunk", "EfficientNet"],
)
def test_reuse_saves_two_fifths_at_least(graph: Graph) -> None:
    plan = plan_memory(graph)
    check(graph, plan)
    assert plan.peak <= 0.6 * plan.sum


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    g = GraphBuilder("chain")
    g.tensor("a", (64,))
    g.op("any", "a", (64,), x=g.tensor("w", (1,), "weight"))
    for before, after, size in (("a", "b", 128), ("b", "c", 192), ("c", "d", 64), ("d", "e", 128)):
        g.op("any", after, (size,), x=before)
    plan = plan_memory(g.build())
    assert (plan.peak, plan.sum) == ((128 + 192) * 4, (64 + 128 + 192 + 64 + 128) * 4)


def test_nothing_to_place() -> None:
    plan = plan_memory(GraphBuilder("empty").build())
    assert (plan.peak, plan.sum, plan.offsets) == (0, 0, {})
