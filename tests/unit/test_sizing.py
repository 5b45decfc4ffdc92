"""How large the pool is made: within the budget, at full context where it fits, with room for every piece."""

from __future__ import annotations

import asyncio
from itertools import permutations
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyapp.engine.sizing import LEAST_CONTEXT, Need, Sizing, size_pool
from pyapp.errors import OutOfMemory
from pyapp.gpu.pool import Pool
from pyapp.models.decoder import DecoderConfig, expected_shapes
from pyapp.models.decoder_weights import recipes_by_block
from pyapp.models.efficientnet import build_graph, pack_layout
from pyapp.weights.packing import plan_layout

from .decoder_configs import QWEN25_15B, SMOLLM2
from .gpu_fakes import fake_device

MIB = 1 << 20
LIMITS = [(16 * MIB, 4 * MIB), (256 * MIB, 128 * MIB), (4 << 30, 2 << 30)]
"""(largest buffer, largest binding): the smallest that tests use, the default device's, an H200's."""


def blocks_of(config: DecoderConfig) -> list[int]:
    tensors = {
        name: SimpleNamespace(shape=shape, type="F32" if len(shape) == 1 else "Q4_1")
        for name, shape in expected_shapes(config).items()
    }
    return [block.nbytes for block in plan_layout(recipes_by_block(config, tensors)).blocks]


VISION = [block.nbytes for block in pack_layout(build_graph()).blocks]


def need_of(config: DecoderConfig, blocks: list[list[int]], activations: int = 3 * MIB) -> Need:
    return Need(
        blocks=tuple(map(tuple, blocks)),
        activations=activations,
        per_position=config.kv_bytes_per_token + config.head_dim * 4,
        position_in_layer=2 * config.kv_rows * 4,
        layers=config.layers,
        full_context=config.context,
    )


def weights_of(need: Need) -> int:
    return sum(map(sum, need.blocks))


def test_full_context_when_it_fits() -> None:
    need = need_of(SMOLLM2, [blocks_of(SMOLLM2), VISION])
    sizing = size_pool(900 * MIB, need, 1 << 30, 1 << 30)
    assert sizing.context == 2048
    assert sizing.weights == weights_of(need)
    assert sizing.weights + sizing.workspace < 300 * MIB  # what the models need, and not the whole budget


def test_a_smaller_budget_costs_context_first_and_then_side_by_side() -> None:
    need = need_of(SMOLLM2, [blocks_of(SMOLLM2), VISION])
    side_by_side = size_pool(160 * MIB, need, 1 << 30, 1 << 30)
    assert LEAST_CONTEXT <= side_by_side.context < 2048
    assert side_by_side.weights == weights_of(need)
    in_turns = size_pool(100 * MIB, need, 1 << 30, 1 << 30)
    assert in_turns.context >= LEAST_CONTEXT
    assert in_turns.weights == max(map(sum, need.blocks))


def test_too_little_is_said_with_the_figures() -> None:
    need = need_of(SMOLLM2, [blocks_of(SMOLLM2), VISION])
    with pytest.raises(OutOfMemory, match=r"need at least \d+ bytes .* budget is \d+; give it more MiB") as error:
        size_pool(60 * MIB, need, 1 << 30, 1 << 30)
    assert error.value.details["budget"] == 60 * MIB
    assert size_pool(error.value.details["need"], need, 1 << 40, 1 << 40).context >= LEAST_CONTEXT


def test_the_15b_model_in_the_default_budget() -> None:
    """Qwen2.5-1.5B at 4 bits with a vision model of 450 MB, in 900 MiB and with the default device's limits."""
    need = need_of(QWEN25_15B, [blocks_of(QWEN25_15B), [9 * MIB] * 50])
    assert weights_of(need) > 900 * MIB
    sizing = size_pool(1100 * MIB, need, 1 << 30, 1 << 30)
    assert sizing.context >= LEAST_CONTEXT


def test_one_binding_holds_a_layers_cache() -> None:
    need = need_of(SMOLLM2, [blocks_of(SMOLLM2)])
    sizing = size_pool(900 * MIB, need, 16 * MIB, 1 * MIB)
    assert sizing.context == MIB // need.position_in_layer


BLOCKS = st.one_of(
    st.lists(st.integers(1, 60 * 1024), min_size=1, max_size=30),
    st.builds(lambda size, count: [size] * count, st.integers(1, 60 * 1024), st.integers(1, 30)),
)
"""Blocks of a model in 256 bytes, up to 15 MiB each; those of real models are mostly of one size."""
NEEDS = st.builds(
    lambda blocks, activations, width, layers, context: Need(
        blocks=tuple(tuple(256 * block for block in each) for each in blocks),
        activations=activations,
        per_position=layers * width * 4 + 16,
        position_in_layer=width * 4,
        layers=layers,
        full_context=context,
    ),
    blocks=st.lists(BLOCKS, min_size=1, max_size=2),
    activations=st.integers(1, 2 * MIB),
    width=st.sampled_from([64, 384, 512]),
    layers=st.integers(1, 30),
    context=st.integers(1, 3000),
)


def sized(budget: int, need: Need, limits: tuple[int, int]) -> Sizing | None:
    try:
        return size_pool(budget, need, *limits)
    except OutOfMemory:
        return None


@given(st.integers(0, 300 * MIB), NEEDS, st.sampled_from(LIMITS))
def test_never_over_the_budget(budget: int, need: Need, limits: tuple[int, int]) -> None:
    sizing = sized(budget, need, limits)
    if sizing:
        assert sizing.weights + sizing.workspace <= budget
        assert min(LEAST_CONTEXT, need.full_context) <= sizing.context <= need.full_context
        assert sizing.context * need.position_in_layer <= limits[1]
        assert sizing.weights >= max(map(sum, need.blocks))
        assert sizing.workspace >= need.activations + sizing.context * need.per_position


@given(st.integers(0, 200 * MIB), st.integers(0, 20 * MIB), NEEDS, st.sampled_from(LIMITS))
def test_more_budget_is_never_worse(budget: int, more: int, need: Need, limits: tuple[int, int]) -> None:
    """Side by side before in turns, and then the longer context."""
    before, after = sized(budget, need, limits), sized(budget + more, need, limits)
    if before:
        assert after
        assert (after.weights, after.context) >= (before.weights, before.context)


@given(NEEDS, st.sampled_from(LIMITS))
def test_full_context_with_budget_enough(need: Need, limits: tuple[int, int]) -> None:
    sizing = size_pool(1 << 40, need, *limits)
    assert sizing.context == min(need.full_context, limits[1] // need.position_in_layer)
    assert sizing.weights >= weights_of(need)


def all_have_their_place(sizing: Sizing, need: Need, limits: tuple[int, int]) -> None:
    """In slabs of these sizes the activations, the caches and the blocks find regions, as the engine takes them."""
    pool = Pool(fake_device(max_buffer=limits[0]), sizing.weights + sizing.workspace)

    async def take() -> None:
        await pool.add_slabs("weights", sizing.weights, need.largest_block)
        await pool.add_slabs("workspace", sizing.workspace, need.activations)

    asyncio.run(take())
    table = need.per_position - need.layers * need.position_in_layer
    regions = [need.activations, sizing.context * table, *[sizing.context * need.position_in_layer] * need.layers]
    for nbytes in regions:
        assert pool.take("workspace", nbytes, "test") is not None, (nbytes, pool.memory()["slabs"])
    orders: list[tuple[tuple[int, ...], ...]] = [(each,) for each in need.blocks]
    if sizing.weights == size_pool(1 << 40, need, *limits).weights and len(orders) > 1:  # side by side
        orders = list(permutations(need.blocks))
    for order in orders:
        taken = [pool.take("weights", block, "test") for blocks in order for block in blocks]
        assert None not in taken, (order, pool.memory()["slabs"])
        for region in taken:
            assert region is not None
            pool.give_back(region)


@settings(max_examples=300)
@given(NEEDS, st.floats(0.3, 1.1), st.sampled_from(LIMITS))
def test_what_is_sized_can_be_taken(need: Need, part: float, limits: tuple[int, int]) -> None:
    all_of_it = size_pool(1 << 40, need, *limits)
    sizing = sized(int((all_of_it.weights + all_of_it.workspace) * part), need, limits)
    if sizing:
        all_have_their_place(sizing, need, limits)


def test_blocks_of_more_than_half_a_buffer_take_one_each() -> None:
    need = Need(blocks=((9 * MIB,) * 10,), activations=256)
    assert size_pool(900 * MIB, need, 16 * MIB, 4 * MIB).weights == 9 * 16 * MIB + 9 * MIB


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("budget", [900 * MIB, 200 * MIB, 110 * MIB])
def test_the_default_models_find_their_place(limits: tuple[int, int], budget: int) -> None:
    """At 16 MiB a buffer the embedding, one block of 17 MB today, counts as cut into blocks of a layer's size."""
    blocks = blocks_of(SMOLLM2)
    if blocks[0] > limits[0]:
        blocks = [2 * MIB] * (blocks[0] // (2 * MIB) + 1) + blocks[1:]
    need = need_of(SMOLLM2, [blocks, VISION])
    sizing = size_pool(budget, need, *limits)
    all_have_their_place(sizing, need, limits)
    # Slack between buffers costs little.
    assert sizing.weights < 1.1 * (weights_of(need) if budget > 110 * MIB else sum(blocks))
