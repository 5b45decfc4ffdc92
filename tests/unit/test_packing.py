"""Kernel formats hold exactly what the file holds; recipes put rows where they say."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyapp.errors import BadModel
from pyapp.weights import packing
from pyapp.weights.gguf import GGUFFile, TensorInfo, read_gguf
from pyapp.weights.packing import (
    FORMATS,
    PackedTensor,
    PackLayout,
    SourceRows,
    kernel_format,
    pack,
    pack_rows,
    plan_layout,
    promote,
    section_sizes,
    unpack,
)
from pyapp.weights.quants import QUANT_TYPES, dequantise
from pyapp.weights.source import Bytes, BytesSource

DATA = Path(__file__).parents[1] / "data"
GOLDEN = {golden["type"]: golden for golden in json.loads((DATA / "dequant.json").read_text())["types"]}
EXACT = {"s4", "q4", "q8", "f16", "bf16", "f32"}


def golden_bytes(type: str) -> Bytes:
    return np.concatenate([np.frombuffer(base64.b64decode(b["bytes_b64"]), np.uint8) for b in GOLDEN[type]["blocks"]])


def random_rows(type: str, n: int, k: int, seed: int = 0) -> Bytes:
    """Rows with random payloads and ordinary scales: golden blocks, drawn at random."""
    kind = QUANT_TYPES[type]
    blocks = golden_bytes(type).reshape(-1, kind.nbytes)
    blocks = blocks[: len(blocks) * 7 // 11]  # the random ones come first
    return blocks[np.random.default_rng(seed).integers(0, len(blocks), n * k // kind.values)].reshape(-1)


class Memory:
    """A sink that also notes whether two writes overlapped, and the largest one."""

    def __init__(self, total: int) -> None:
        self.blob = np.zeros(total, np.uint8)
        self.written = np.zeros(total, bool)
        self.largest = 0

    async def write(self, offset: int, data: Bytes) -> None:
        assert not self.written[offset : offset + data.size].any()
        assert offset + data.size <= self.blob.size
        self.blob[offset : offset + data.size] = data
        self.written[offset : offset + data.size] = True
        self.largest = max(self.largest, data.size)


def read_back(layout: PackLayout, blob: Bytes, recipe: PackedTensor) -> np.ndarray:
    entry = layout.entries[recipe.name]
    quants = blob[entry.quants_offset : entry.quants_offset + entry.quants_bytes]
    scales = blob[entry.scales_offset : entry.scales_offset + entry.scales_bytes]
    return unpack(recipe.fmt, quants, scales, recipe.n, recipe.k)


def assert_same(values: np.ndarray, wanted: np.ndarray, fmt: str) -> None:
    if fmt in EXACT:
        np.testing.assert_array_equal(values, wanted)
    else:
        limit = 1e-6 * np.abs(wanted.reshape(-1, 32)).max(axis=1, keepdims=True)
        assert (np.abs(values.reshape(-1, 32) - wanted.reshape(-1, 32)) <= limit).all()


@pytest.mark.parametrize("type", list(QUANT_TYPES))
def test_own_format_holds_the_golden_blocks_exactly(type: str) -> None:
    data = golden_bytes(type)
    k = QUANT_TYPES[type].values if QUANT_TYPES[type].values > 1 else 32
    n = data.size // QUANT_TYPES[type].nbytes * QUANT_TYPES[type].values // k
    fmt = kernel_format(type)
    quants, scales = pack_rows(type, data, n, k, fmt)
    # Stronger than the promise of 1e-6: nothing is rounded on the way.
    np.testing.assert_array_equal(unpack(fmt, quants, scales, n, k).reshape(-1), dequantise(type, data, n * k))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("type", list(QUANT_TYPES))
def test_each_type_fits_a_format_exactly_or_is_refused(type: str, fmt: str) -> None:
    n, k = 5, 768
    data = random_rows(type, n, k)
    if promote([kernel_format(type), fmt]) != fmt:
        with pytest.raises(BadModel, match="without loss"):
            pack_rows(type, data, n, k, fmt)
        return
    quants, scales = pack_rows(type, data, n, k, fmt)
    sizes = section_sizes(fmt, n, k)
    assert -(-quants.size // 4) * 4 == sizes[0]
    assert -(-scales.size // 4) * 4 == sizes[1]
    assert_same(unpack(fmt, quants, scales, n, k), dequantise(type, data, n * k).reshape(n, k), fmt)


def test_promotion() -> None:
    assert promote(["q4"]) == "q4"
    assert promote(["q4", "g4"]) == "g4"
    assert promote(["q4", "q8"]) == promote(["g4", "q8"]) == promote(["g4", "g8"]) == "g8"
    assert promote(["s4"]) == "s4"
    assert promote(["s4", "q4"]) == promote(["q4", "s4"]) == "q4"
    assert promote(["s4", "g4"]) == promote(["s4", "q4", "g4"]) == "g4"
    assert promote(["s4", "q8"]) == promote(["s4", "g8"]) == "g8"
    assert promote(["q8", "q8"]) == "q8"
    assert promote(["f16", "f16"]) == "f16"
    assert (
        promote(["f16", "bf16"]) == promote(["q4", "f16"]) == promote(["s4", "bf16"]) == promote(["g8", "f32"]) == "f32"
    )


def test_layout_of_each_format_byte_by_byte() -> None:
    """The kernels are written against these bytes, so they are spelt out for one block."""
    block = np.zeros(20, np.uint8)
    block[:4] = np.array([0.5, -3], "<f2").view(np.uint8)
    block[4:] = np.arange(16) | (15 - np.arange(16)) << 4
    quants, scales = pack_rows("Q4_1", block, 1, 32, "q4")
    np.testing.assert_array_equal(quants, block[4:])
    np.testing.assert_array_equal(scales.view("<f2"), [0.5, -3])
    quants, scales = pack_rows("Q4_1", block, 1, 32, "g4")
    np.testing.assert_array_equal(quants, block[4:])
    np.testing.assert_array_equal(scales.view("<f4"), [0.5, -3])
    quants, scales = pack_rows("Q4_1", block, 1, 32, "g8")
    np.testing.assert_array_equal(quants, np.r_[np.arange(16), 15 - np.arange(16)])
    np.testing.assert_array_equal(scales.view("<f4"), [0.5, -3, 0.5, -3])
    quants, scales = pack_rows("Q4_1", block, 1, 32, "f32")
    np.testing.assert_array_equal(quants.view("<f4"), np.r_[np.arange(16), 15 - np.arange(16)] * 0.5 - 3)
    assert scales.size == 0
    four = np.r_[np.array([0.25], "<f2").view(np.uint8), block[4:]]
    quants, scales = pack_rows("Q4_0", four, 1, 32, "s4")
    np.testing.assert_array_equal(quants, block[4:])
    np.testing.assert_array_equal(scales.view("<f2"), [0.25])
    quants, scales = pack_rows("Q4_0", four, 1, 32, "q4")
    np.testing.assert_array_equal(quants, block[4:])
    np.testing.assert_array_equal(scales.view("<f2"), [0.25, -2])
    eight = np.r_[np.array([0.25], "<f2").view(np.uint8), np.arange(-16, 16).astype(np.int8).view(np.uint8)]
    quants, scales = pack_rows("Q8_0", eight, 1, 32, "q8")
    np.testing.assert_array_equal(quants.view(np.int8), np.arange(-16, 16))
    np.testing.assert_array_equal(scales.view("<f2"), [0.25])


def test_a_q4_0_scale_whose_min_overflows_float16_is_refused_in_q4_and_exact_elsewhere() -> None:
    block = np.r_[np.array([60000], "<f2").view(np.uint8), np.full(16, 0x3A, np.uint8)]
    with pytest.raises(BadModel, match="without loss"):
        pack_rows("Q4_0", block, 1, 32, "q4")
    for fmt in ("s4", "g4"):
        values = unpack(fmt, *pack_rows("Q4_0", block, 1, 32, fmt), 1, 32)
        np.testing.assert_array_equal(values.reshape(-1), dequantise("Q4_0", block, 32))


def test_sections_are_padded_to_words() -> None:
    assert section_sizes("q8", 3, 32) == (96, 8)
    assert section_sizes("s4", 3, 32) == (48, 8)
    assert section_sizes("f16", 1, 3) == (8, 0)
    with pytest.raises(BadModel, match="multiple of 32"):
        section_sizes("q4", 4, 40)


def build(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> tuple[GGUFFile, BytesSource]:
    infos, parts, at = {}, [], 0
    for seed, (name, (type, shape)) in enumerate(tensors.items()):
        data = random_rows(type, 1, int(np.prod(shape)), seed)
        infos[name] = TensorInfo(name, shape, type, at, data.size)
        parts.append(data)
        at += data.size
    return GGUFFile({}, infos, 0), BytesSource(np.concatenate(parts))


def values_of(file: GGUFFile, source: BytesSource, name: str) -> np.ndarray:
    info = file.tensors[name]
    return dequantise(info.type, source._data[info.offset : info.offset + info.nbytes], info.values).reshape(info.shape)


@settings(max_examples=40, deadline=None)
@given(
    types=st.lists(st.sampled_from(sorted(QUANT_TYPES)), min_size=1, max_size=3),
    rows=st.lists(st.integers(1, 17), min_size=3, max_size=3),
    ordered=st.lists(st.booleans(), min_size=3, max_size=3),
    blocks=st.integers(1, 2),
    piece=st.sampled_from([1, 700, 5000, 16 << 20]),
    seed=st.integers(0, 99),
)
async def test_recipes_of_mixed_types_orders_and_piece_sizes(
    types: list[str], rows: list[int], ordered: list[bool], blocks: int, piece: int, seed: int
) -> None:
    k = 256 * blocks
    file, source = build({f"t{i}": (type, (rows[i], k)) for i, type in enumerate(types)})
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(rows[i]) if ordered[i] else None for i in range(len(types))]
    fmt = promote(kernel_format(type) for type in types)
    sources = tuple(SourceRows(f"t{i}", order) for i, order in enumerate(orders))
    recipe = PackedTensor("qkv", sources, fmt, sum(rows[: len(types)]), k)
    layout = plan_layout({"layer": [recipe]})
    sink = Memory(layout.total)
    before, packing.PIECE_BYTES = packing.PIECE_BYTES, piece
    try:
        await pack(file, source, layout, sink)
    finally:
        packing.PIECE_BYTES = before
    wanted = [values_of(file, source, f"t{i}") for i in range(len(types))]
    wanted = [w if order is None else w[order] for w, order in zip(wanted, orders, strict=True)]
    assert_same(read_back(layout, sink.blob, recipe), np.concatenate(wanted), fmt)
    assert sink.largest <= max(piece, sum(packing.row_sizes(fmt, k)))


async def test_vectors_of_several_sources_with_an_order() -> None:
    file, source = build({"a": ("F32", (96,)), "b": ("F16", (64,))})
    order = np.random.default_rng(1).permutation(96)
    recipe = PackedTensor("bias", (SourceRows("a", order), SourceRows("b")), "f32", 1, 160)
    layout = plan_layout({"x": [recipe]})
    sink = Memory(layout.total)
    await pack(file, source, layout, sink)
    wanted = np.r_[values_of(file, source, "a")[order], values_of(file, source, "b")]
    np.testing.assert_array_equal(read_back(layout, sink.blob, recipe)[0], wanted)


async def test_layout_is_aligned_in_order_and_whole() -> None:
    recipes = [PackedTensor(f"m{i}", (SourceRows("t"),), "q8", 3, 32) for i in range(3)]
    layout = plan_layout({"a": recipes[:2], "b": recipes[2:]})
    assert [block.name for block in layout.blocks] == ["a", "b"]
    ends = 0
    for block in layout.blocks:
        assert block.offset == ends
        ends += block.nbytes
        for entry in block.entries.values():
            assert entry.quants_offset % 256 == entry.scales_offset % 256 == 0
            assert block.offset <= entry.quants_offset
            assert entry.scales_offset + entry.scales_bytes <= block.offset + block.nbytes
    assert ends == layout.total
    with pytest.raises(BadModel, match="m0"):
        plan_layout({"a": recipes[:1], "b": recipes[:1]})


async def test_fingerprint_changes_with_anything_that_changes_bytes() -> None:
    def fingerprint(fmt: str = "q4", order: list[int] | None = None, tensor: str = "t") -> str:
        rows = SourceRows(tensor, None if order is None else np.array(order))
        return plan_layout({"a": [PackedTensor("m", (rows,), fmt, 2, 32)]}).fingerprint

    swapped, straight = fingerprint(order=[1, 0]), fingerprint(order=[0, 1])
    seen = [fingerprint(), fingerprint("g4"), swapped, straight, fingerprint(tensor="u")]
    assert len(set(seen)) == len(seen)
    assert fingerprint(order=[1, 0]) == swapped


async def test_wrong_recipes_are_one_clear_error() -> None:
    file, source = build({"t": ("Q4_1", (4, 64))})

    async def run(recipe: PackedTensor) -> None:
        layout = plan_layout({"a": [recipe]})
        await pack(file, source, layout, Memory(layout.total))

    with pytest.raises(BadModel, match="no tensor 'gone'"):
        await run(PackedTensor("m", (SourceRows("gone"),), "q4", 4, 64))
    with pytest.raises(BadModel, match="have 4 rows of 64 weights; the model's shape needs 5"):
        await run(PackedTensor("m", (SourceRows("t"),), "q4", 5, 64))
    with pytest.raises(BadModel, match=r"\[4, 64\] of Q4_1"):
        await run(PackedTensor("m", (SourceRows("t"),), "q4", 4, 96))
    with pytest.raises(BadModel, match="permutation"):
        await run(PackedTensor("m", (SourceRows("t", np.array([0, 1, 2, 2])),), "q4", 4, 64))


@pytest.mark.parametrize("path", sorted((DATA / "tiny").glob("*.gguf")), ids=lambda path: path.stem)
async def test_whole_tiny_models(path: Path) -> None:
    source = BytesSource(path.read_bytes())
    file = await read_gguf(source)
    recipes = []
    for info in file.tensors.values():
        n, k = (1, info.shape[0]) if len(info.shape) == 1 else info.shape
        recipes.append(PackedTensor(info.name, (SourceRows(info.name),), kernel_format(info.type), n, k))
    layout = plan_layout({"all": recipes})
    sink, seen = Memory(layout.total), []
    await pack(file, source, layout, sink, lambda *report: seen.append(report))
    for recipe in recipes:
        wanted = values_of(file, source, recipe.name).reshape(recipe.n, recipe.k)
        np.testing.assert_array_equal(read_back(layout, sink.blob, recipe), wanted)
    assert [stage for stage, _, _ in seen] == ["pack"] * len(seen)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1] == ("pack", layout.total, layout.total)
