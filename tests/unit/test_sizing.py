"""How large the pool is made and what lies where: within the budget, at full context where it fits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyapp.engine.sizing import COMFORTABLE_CONTEXT, LEAST_CONTEXT, Need, Sizing, Weights, overlap, size_pool
from pyapp.errors import OutOfMemory
from pyapp.gpu.pool import Pool
from pyapp.models.decoder import DecoderConfig, expected_shapes
from pyapp.models.decoder_weights import recipes_by_block
from pyapp.models.efficientnet import build_graph, pack_layout
from pyapp.weights.blocks import BLOCK_BYTES, Block, blocks_of
from pyapp.weights.packing import plan_layout

from .decoder_configs import QWEN25_15B, SMOLLM2
from .gpu_fakes import fake_device

MIB = 1 << 20
LIMITS = [(16 * MIB, 4 * MIB), (256 * MIB, 128 * MIB), (4 << 30, 2 << 30)]
"""(largest buffer, largest binding): the smallest that tests use, the default device's, an H200's."""
ROOMY = 1 << 40


def language(config: DecoderConfig, max_binding: int = 2 << 30, type: str = "Q4_1") -> Weights:
    tensors = {
        name: SimpleNamespace(shape=shape, type="F32" if len(shape) == 1 else type)
        for name, shape in expected_shapes(config).items()
    }
    blocks = blocks_of(plan_layout(recipes_by_block(config, tensors)), min(BLOCK_BYTES, max_binding))
    return Weights(blocks, least=[block.name.split(".")[0] for block in blocks].index("layers"))


VISION = Weights(blocks_of(pack_layout(build_graph()), by_rows=False), downward=True)


def made_up(units: list[int], **more: object) -> Weights:
    """Blocks of so many 256 bytes."""
    blocks, at = [], 0
    for number, unit in enumerate(units):
        blocks.append(Block(str(number), ((at, 256 * unit),), {f"w{number}": (0, 1)}))
        at += 256 * unit
    return Weights(tuple(blocks), **more)  # type: ignore[arg-type]


def need_of(config: DecoderConfig, *weights: Weights, activations: int = 3 * MIB) -> Need:
    return Need(
        weights=weights,
        activations=activations,
        per_position=config.kv_bytes_per_token + config.head_dim * 4,
        position_in_layer=2 * config.kv_rows * 4,
        layers=config.layers,
        full_context=config.context,
    )


def as_sized(need: Need, sizing: Sizing) -> Need:
    """What is needed with the cache that was chosen."""
    return need if sizing.kv == "f32" else need.with_half_cache()


def weights_of(need: Need) -> int:
    return sum(each.nbytes for each in need.weights)


def streams(sizing: Sizing) -> bool:
    return any(placement.streamed for placement in sizing.placements)


SMOL = need_of(SMOLLM2, language(SMOLLM2), VISION)


def test_full_context_and_side_by_side_when_it_fits() -> None:
    sizing = size_pool(900 * MIB, SMOL, 1 << 30, 1 << 30)
    assert sizing.context == 2048
    assert sizing.weights == weights_of(SMOL)
    assert sizing.weights + sizing.workspace < 300 * MIB  # what the models need, and not the whole budget
    assert overlap(sizing.placements) == 0
    assert not streams(sizing)


def test_what_a_smaller_budget_costs_and_in_which_order() -> None:
    roomy = size_pool(ROOMY, SMOL, 1 << 30, 1 << 30)
    whole = roomy.weights + roomy.workspace
    tight = size_pool(whole - 9 * MIB, SMOL, 1 << 30, 1 << 30)
    assert (tight.context, overlap(tight.placements)) == (2048, 9 * MIB)  # to the byte
    assert roomy.kv == tight.kv == "f32"
    alone = SMOL.weights[0].nbytes
    halved = size_pool(alone + 60 * MIB, SMOL, 1 << 30, 1 << 30)
    assert (halved.kv, halved.context) == ("f16", COMFORTABLE_CONTEXT)
    assert not streams(halved)
    shorter = size_pool(alone + 40 * MIB, SMOL, 1 << 30, 1 << 30)
    assert (shorter.kv, shorter.weights) == ("f32", alone)
    assert LEAST_CONTEXT < shorter.context < COMFORTABLE_CONTEXT
    assert not streams(shorter)
    small = size_pool(alone * 6 // 10 + roomy.workspace // 4 + 3 * MIB, SMOL, 1 << 30, 1 << 30)
    assert small.kv == "f32"
    assert small.placements[0].streamed
    assert not small.placements[1].streamed  # the vision model fits whole
    assert 0.55 * alone < small.weights < 0.7 * alone
    pinned = sum(
        block.nbytes for i, block in enumerate(SMOL.weights[0].blocks) if i not in small.placements[0].streamed
    )
    assert pinned > small.weights - 3 * BLOCK_BYTES  # all but the window


def test_a_headroom_streams_and_leaves_the_rest_free() -> None:
    sizing = size_pool(900 * MIB, SMOL, 1 << 30, 1 << 30, 2.0)
    assert not streams(sizing)  # such a budget has room for that too
    half = size_pool(SMOL.weights[0].nbytes * 14 // 10, SMOL, 1 << 30, 1 << 30, 1.5)
    assert half.placements[0].streamed
    used = {home for homes in half.placements[0].homes for home in homes}
    assert max(home.offset + home.nbytes for home in used) <= half.weights / 1.5


def test_too_little_is_said_with_the_figures() -> None:
    with pytest.raises(OutOfMemory, match=r"need at least \d+ bytes .* budget is \d+; give it more MiB") as error:
        size_pool(30 * MIB, SMOL, 1 << 30, 1 << 30)
    assert error.value.details["budget"] == 30 * MIB
    least = size_pool(error.value.details["need"], SMOL, 1 << 40, 1 << 40)
    assert least.context >= LEAST_CONTEXT
    with pytest.raises(OutOfMemory):
        size_pool(error.value.details["need"] - MIB, SMOL, 1 << 40, 1 << 40)


def test_the_15b_model_with_a_large_vision_model() -> None:
    """Qwen2.5-1.5B at 5 bits a weight and a vision model of 450 MB, with the default device's limits."""
    vision = made_up([9 * MIB // 256] * 50, downward=True)
    need = need_of(QWEN25_15B, language(QWEN25_15B), vision)
    assert weights_of(need) > 1300 * MIB
    sizing = size_pool(1100 * MIB, need, 256 * MIB, 128 * MIB)
    assert not streams(sizing)
    assert overlap(sizing.placements) > 300 * MIB
    small = size_pool(900 * MIB, need, 256 * MIB, 128 * MIB)
    assert small.placements[0].streamed
    assert not small.placements[1].streamed


def test_a_float16_cache_just_where_it_keeps_a_comfortable_context_beside_resident_weights() -> None:
    need = need_of(SMOLLM2, language(SMOLLM2))
    alone, positions = need.weights[0].nbytes, COMFORTABLE_CONTEXT
    wide = alone + need.activations + positions * need.per_position
    narrow = alone + need.activations + positions * need.with_half_cache().per_position
    assert wide - narrow == positions * SMOLLM2.kv_bytes_per_token // 2
    chosen = {budget: size_pool(budget, need, 1 << 30, 1 << 30) for budget in (wide, wide - 256, narrow, narrow - 256)}
    assert [sizing.kv for sizing in chosen.values()] == ["f32", "f16", "f16", "f32"]
    assert [sizing.context for sizing in chosen.values()][:3] == [positions] * 3
    assert chosen[narrow].weights + chosen[narrow].workspace == narrow
    last = chosen[narrow - 256]
    assert not streams(last)
    assert last.context == (narrow - 256 - alone - need.activations) // need.per_position  # what float32 has room for


def test_a_float16_cache_for_a_model_with_a_short_context_and_one_with_a_long_one() -> None:
    """A comfortable context is at most the model's own; of a longer one no more is asked, but what fits is given."""
    for full in (512, 8192):
        need = replace(need_of(SMOLLM2, language(SMOLLM2)), full_context=full)
        wanted = min(full, COMFORTABLE_CONTEXT)
        fixed = need.weights[0].nbytes + need.activations
        sizing = size_pool(fixed + wanted * need.per_position - 256, need, 1 << 30, 1 << 30)
        assert sizing.kv == "f16"
        assert wanted <= sizing.context <= full
        assert sizing.context == full or sizing.context > 1.8 * wanted
        assert size_pool(fixed + wanted * need.per_position, need, 1 << 30, 1 << 30).kv == "f32"


def test_no_float16_cache_without_a_language_model_or_where_weights_are_streamed_either_way() -> None:
    vision = Need(weights=(VISION,), activations=5 * MIB)
    assert size_pool(VISION.nbytes + 5 * MIB, vision, 1 << 30, 1 << 30).kv == "f32"
    need = need_of(SMOLLM2, language(SMOLLM2))
    alone = need.weights[0].nbytes
    streamed = size_pool(alone * 8 // 10 + 20 * MIB, need, 1 << 30, 1 << 30)
    assert streams(streamed)
    assert streamed.kv == "f32"


def test_the_15b_model_with_a_full_context_in_900_mib() -> None:
    """Qwen2.5-1.5B at 4.5 bits a weight: resident with 2,048 positions, of float16; the vision model takes turns.

    In buffers of 256 MiB the weights' slabs have ends that no block fits.
    """
    weights = language(QWEN25_15B, type="Q4_0")
    assert 868e6 < weights.nbytes < 869e6
    need = need_of(QWEN25_15B, weights, made_up([9 * MIB // 256] * 50, downward=True), activations=11 * MIB)
    for limits, budget in ((LIMITS[2], 900 * MIB), (LIMITS[1], 904 * MIB)):
        sizing = size_pool(budget, need, *limits)
        assert (sizing.kv, sizing.context) == ("f16", 2048)
        assert not streams(sizing)
        all_have_their_place(sizing, need, limits)


def test_one_binding_holds_a_layers_cache() -> None:
    sizing = size_pool(900 * MIB, need_of(SMOLLM2, language(SMOLLM2)), 16 * MIB, 1 * MIB)
    assert (sizing.kv, sizing.context) == ("f32", MIB // SMOL.position_in_layer)
    # A binding that holds a comfortable context of float16 only.
    half = size_pool(900 * MIB, need_of(SMOLLM2, language(SMOLLM2)), 16 * MIB, 2048 * SMOL.position_in_layer - 256)
    assert (half.kv, half.context) == ("f16", 2048)


@pytest.mark.parametrize("max_buffer", [1, 2, 3, 4, 5, 6, 8])
def test_buffers_about_as_large_as_the_pieces_end_in_a_pool_or_a_sentence(max_buffer: int) -> None:
    """At any budget, in no time: blocks and activations of 4 MiB and buffers from far below that to twice as much."""
    blocks = made_up([16 * 1024] * 40)
    need = replace(SMOL, weights=(blocks,), activations=4 * MIB)
    for budget in (900, 170, 100, 20):
        try:
            sizing = size_pool(budget * MIB, need, max_buffer * MIB, 4 * MIB)
        except OutOfMemory:
            assert max_buffer < 4 or budget < 100
            continue
        assert max_buffer >= 4
        all_have_their_place(sizing, need, (max_buffer * MIB, 4 * MIB))


def test_blocks_of_more_than_half_a_buffer_take_one_each() -> None:
    need = Need(weights=(made_up([9 * MIB // 256] * 10),), activations=256)
    sizing = size_pool(900 * MIB, need, 16 * MIB, 4 * MIB)
    assert 9 * 16 * MIB + 9 * MIB <= sizing.weights <= 10 * 16 * MIB


UNITS = st.one_of(
    st.lists(st.integers(1, 16 * 1024), min_size=1, max_size=30),
    st.builds(lambda size, count: [size] * count, st.integers(1, 16 * 1024), st.integers(1, 30)),
)
"""Blocks of a model in 256 bytes, up to 4 MiB each; those of real models are mostly of one size."""
NEEDS = st.builds(
    lambda units, activations, width, layers, context: Need(
        weights=tuple(made_up(each, downward=number > 0) for number, each in enumerate(units)),
        activations=activations,
        per_position=layers * width * 4 + 16,
        position_in_layer=width * 4,
        layers=layers,
        full_context=context,
    ),
    units=st.lists(UNITS, min_size=1, max_size=2),
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
        need = as_sized(need, sizing)
        assert sizing.weights + sizing.workspace <= budget
        assert min(LEAST_CONTEXT, need.full_context) <= sizing.context <= need.full_context
        assert sizing.context * need.position_in_layer <= limits[1]
        assert sizing.workspace >= need.activations + sizing.context * need.per_position
        for weights, placement in zip(need.weights, sizing.placements, strict=True):
            pinned = [b.nbytes for i, b in enumerate(weights.blocks) if i not in placement.streamed]
            assert sum(pinned) <= sizing.weights


@given(st.integers(0, 200 * MIB), st.integers(0, 20 * MIB), NEEDS, st.sampled_from(LIMITS))
def test_more_budget_is_never_worse(budget: int, more: int, need: Need, limits: tuple[int, int]) -> None:
    """Resident before streamed, then a comfortable context, then the longer one."""
    before, after = sized(budget, need, limits), sized(budget + more, need, limits)
    if before:
        assert after
        assert not streams(after) or streams(before)
        if streams(after) == streams(before):
            assert after.context >= min(before.context, COMFORTABLE_CONTEXT)


@given(NEEDS, st.sampled_from(LIMITS))
def test_budget_enough_is_full_context_and_no_overlap(need: Need, limits: tuple[int, int]) -> None:
    sizing = size_pool(ROOMY, need, *limits)
    assert sizing.kv == "f32"
    assert sizing.context == min(need.full_context, limits[1] // need.position_in_layer)
    assert sizing.weights >= weights_of(need)
    assert overlap(sizing.placements) == 0
    assert not streams(sizing)


def all_have_their_place(sizing: Sizing, need: Need, limits: tuple[int, int]) -> None:
    """In slabs as the engine takes them the activations and the caches find regions, and all homes lie inside."""
    pool = Pool(fake_device(max_buffer=limits[0]), sizing.weights + sizing.workspace)

    async def take() -> None:
        await pool.add_slabs("weights", sizing.weights, 0)
        await pool.add_slabs("workspace", sizing.workspace, 0)

    asyncio.run(take())
    need = as_sized(need, sizing)
    table = need.per_position - need.layers * need.position_in_layer
    regions = [need.activations, sizing.context * table, *[sizing.context * need.position_in_layer] * need.layers]
    for nbytes in regions:
        assert pool.take("workspace", nbytes, "test") is not None, (nbytes, pool.memory()["slabs"])
    for weights, placement in zip(need.weights, sizing.placements, strict=True):
        for block, homes in zip(weights.blocks, placement.homes, strict=True):
            assert [(home.blob, home.nbytes) for home in homes] == list(block.extents)
            for home in homes:
                assert home.offset % 256 == 0
                assert 0 <= home.offset <= pool.weights[home.slab].size - home.nbytes


@settings(max_examples=300)
@given(NEEDS, st.floats(0.3, 1.1), st.sampled_from(LIMITS))
def test_what_is_sized_can_be_taken(need: Need, part: float, limits: tuple[int, int]) -> None:
    all_of_it = size_pool(ROOMY, need, *limits)
    sizing = sized(int((all_of_it.weights + all_of_it.workspace) * part), need, limits)
    if sizing:
        all_have_their_place(sizing, need, limits)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("budget", [900 * MIB, 200 * MIB, 110 * MIB, 70 * MIB])
def test_the_default_models_find_their_place(limits: tuple[int, int], budget: int) -> None:
    need = need_of(SMOLLM2, language(SMOLLM2, limits[1]), VISION)
    sizing = size_pool(budget, need, *limits)
    all_have_their_place(sizing, need, limits)
    # Slack between buffers costs little.
    assert sizing.weights < 1.1 * (weights_of(need) if budget > 110 * MIB else need.weights[0].nbytes)
