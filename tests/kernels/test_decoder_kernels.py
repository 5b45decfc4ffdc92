"""The decoder's kernels as texts: which files the cases reach, and that every variant fits its bindings and its limits.

What they compute is tested where there is a GPU: ``tests/browser/test_kernels.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from pyapp.compiler.graph import Graph, Tensor
from pyapp.compiler.lower_attention import chunk_shape
from pyapp.compiler.lower_decoder import pieces_of, weight_bytes
from pyapp.compiler.lowering import lower
from pyapp.compiler.passes import decoder_passes, fuse
from pyapp.engine.language import chunk_of, splits_of
from pyapp.errors import BadModel
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.plan import Dispatch
from pyapp.gpu.preprocess import preprocess
from pyapp.models.decoder import MOST_HEADS, DecoderConfig, build_graph, packed_shapes
from pyapp.weights.formats import FORMATS, row_sizes, section_sizes
from tests.kernels import attention_cases, decoder_cases, vision_cases
from tests.kernels.sampling_cases import greedy_cases, random_cases
from tests.unit.decoder_configs import QWEN25_15B, SMOLLM2

SHADERS = Path(__file__).parents[2] / "shaders"
HARDWARE = DeviceLimits(subgroup=32, subgroup_max=32, max_binding=2 << 30, max_buffer=4 << 30)
DEVICES = {
    "default limits, no subgroups": DeviceLimits(),
    "subgroups of 4": DeviceLimits(subgroup=4, subgroup_max=128),
    "an H200": HARDWARE,
    "an H200, bytes at a time": replace(HARDWARE, packed_dot=True),
    "SwiftShader": DeviceLimits(subgroup=4, subgroup_max=4, software=True),
    "4 MiB bindings": replace(HARDWARE, max_binding=4 << 20, max_buffer=16 << 20),
}


def specialised(dispatch: Dispatch, used: set[str]) -> str:
    """The WGSL that a dispatch compiles; the files that went into it are added to ``used``."""

    def load(name: str) -> str:
        used.add(name)
        return (SHADERS / name).read_text(encoding="utf-8")

    return preprocess(load(f"{dispatch.shader.file}.wgsl"), dict(dispatch.shader.params), load)


def decoder_dispatches() -> Iterable[Dispatch]:
    for case in decoder_cases.cases():
        yield from lower(case.graph, case.limits(DeviceLimits())).dispatches
    for draws in (*greedy_cases(), *random_cases()):
        yield from lower(draws.graph, DeviceLimits()).dispatches


def test_the_cases_reach_every_file() -> None:
    by_decoder: set[str] = set()
    by_vision: set[str] = set()
    for dispatch in decoder_dispatches():
        specialised(dispatch, by_decoder)
    for case in vision_cases.cases():
        for dispatch in lower(case.graph, case.limits(DeviceLimits())).dispatches:
            specialised(dispatch, by_vision)
    # The bench's own kernels leave nothing to compare: test_bench_kernels.py has those.
    every = {path.name for path in SHADERS.glob("*.wgsl") if not path.name.startswith("bench_")}
    assert every - by_decoder - by_vision == set()
    # What a decoder runs is reached by a decoder's case.
    whole: set[str] = set()
    for config in (SMOLLM2, replace(QWEN25_15B, head_norm=True)):
        for graph in graphs(config, dict.fromkeys(packed_shapes(config), "q4")):
            for dispatch in (*lower(graph, HARDWARE).dispatches, *lower(fuse(graph), HARDWARE).dispatches):
                specialised(dispatch, whole)
    assert whole - by_decoder == set()
    assert {f"weights_{fmt}.wgsl" for fmt in FORMATS} <= by_decoder


def test_the_names_of_cases_are_their_own() -> None:
    names = [case.name for case in decoder_cases.cases()]
    assert len(names) == len(set(names))


def graphs(config: DecoderConfig, formats: dict[str, str], limits: DeviceLimits = HARDWARE) -> list[Graph]:
    return [
        build_graph(
            config,
            formats,
            tokens=tokens,
            context=config.context,
            splits=splits_of(config, limits) if tokens == 1 else 1,
        )
        for tokens in (1, chunk_of(config, config.context, limits))
    ]


def declared(wgsl: str) -> dict[int, str]:
    """The buffer type of each ``@binding`` of a WGSL text, as a bind group layout names it."""
    kinds = {"storage, read": "read-only-storage", "storage, read_write": "storage", "uniform": "uniform"}
    found = re.findall(r"@group\(0\) @binding\((\d+)\) var<([^>]+)>", wgsl)
    return {int(slot): kinds[kind] for slot, kind in found}


def workgroup_bytes(wgsl: str) -> int:
    """Bytes of ``var<workgroup>``: all of them are scalars, atomics, vectors or arrays of these here."""
    total = 0
    for kind in re.findall(r"var<workgroup> \w+: ([^;]+);", wgsl):
        array = re.fullmatch(r"array<(\w+), (\d+)>", kind)
        element, count = (array[1], int(array[2])) if array else (kind, 1)
        total += (
            4 * count * {"f32": 1, "u32": 1, "atomic<u32>": 1, "vec2f": 2, "vec2u": 2, "vec4f": 4, "vec4u": 4}[element]
        )
    return total


@pytest.mark.parametrize("config", [SMOLLM2, QWEN25_15B], ids=["SmolLM2", "Qwen2.5-1.5B"])
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_keep_to_the_habits_of_the_field(config: DecoderConfig, device: str) -> None:
    limits = DEVICES[device]
    for graph in graphs(config, dict.fromkeys(packed_shapes(config), "q4"), limits):
        plan = lower(fuse(graph, decoder_passes(limits)), limits)
        for dispatch in {d.shader: d for d in plan.dispatches}.values():
            check_text(dispatch, specialised(dispatch, set()), limits)


def test_the_most_heads_that_a_model_may_have_fit_workgroup_memory() -> None:
    config = replace(SMOLLM2, heads=MOST_HEADS, kv_heads=1, head_dim=32, hidden=64, ff=64, vocab=300, layers=1)
    for fmt in FORMATS:
        for graph in graphs(config, dict.fromkeys(packed_shapes(config), fmt)):
            for dispatch in lower(fuse(graph), HARDWARE).dispatches:
                assert workgroup_bytes(specialised(dispatch, set())) <= HARDWARE.max_workgroup_storage


def test_the_cases_keep_to_them_too() -> None:
    for dispatch in {d.shader: d for d in decoder_dispatches()}.values():
        check_text(dispatch, specialised(dispatch, set()), DeviceLimits(subgroup=4))


def check_text(dispatch: Dispatch, wgsl: str, limits: DeviceLimits) -> None:
    label = dispatch.shader.label
    assert declared(wgsl) == {b.slot: b.buffer_type for b in dispatch.bindings}, label
    assert list(declared(wgsl).values()).count("uniform") <= 1
    assert sum(kind != "uniform" for kind in declared(wgsl).values()) <= limits.max_storage_buffers, label
    (size,) = re.findall(r"@workgroup_size\((\d+)\)", wgsl)
    # One workgroup walks a whole vocabulary or a part of a context, or brings all inputs for few rows: such are as
    # wide as they may be.
    wide = label.startswith(("sample", "attention_split", "matvec"))
    assert int(size) in ((64, 128, 256) if wide else (64, 128)), label
    assert int(size) <= limits.max_invocations
    # Half of it, so that a processor with no more has room for two; what works on tiles needs more.
    merges = dict(dispatch.shader.params).get("PROLOGUE") == "attention_merge"
    share = 1 if merges or dispatch.shader.file in ("matmul", "attention_split", "attention_chunk") else 2
    assert workgroup_bytes(wgsl) <= limits.max_workgroup_storage // share, label
    assert all(0 < count <= limits.max_workgroups for count in dispatch.workgroups), label
    lanes = dict(dispatch.shader.params).get("LANES", 1)
    assert lanes <= max(1, limits.subgroup)
    assert ("enable subgroups;" in wgsl) == (lanes > 1), label
    # One buffer may not be bound both ways in a dispatch: weights are read-only, the workspace is always writable.
    assert all((b.section == "data") == (b.mode == "read_write") for b in dispatch.bindings if b.tensor != "state")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(151936, 1536), (49152, 576), (300, 64), (65, 8960), (60000, 96)])
def test_pieces_of_a_weight_fit_a_binding_and_are_the_whole(fmt: str, n: int, k: int) -> None:
    tensor = Tensor("w", (n, k), "weight", fmt=fmt)
    for binding in (3 << 20, 128 << 20, 2 << 30):
        pieces = pieces_of(tensor, DeviceLimits(max_binding=binding))
        assert [first for first, _ in pieces] == [0, *[first + rows for first, rows in pieces][:-1]]
        assert sum(rows for _, rows in pieces) == n
        for first, rows in pieces:
            assert max(section_sizes(fmt, rows, k)) <= binding
            # A binding's offset is a multiple of 256 bytes, in both sections and in the rows of the result.
            assert [first * row % 256 for row in (*row_sizes(fmt, k), 4)] == [0, 0, 0]
    assert weight_bytes(tensor) == sum(row_sizes(fmt, k)) * n


def test_rows_too_long_for_any_binding_are_refused() -> None:
    with pytest.raises(BadModel, match=f"64 rows of w take {64 * 8960 * 4} bytes, and one binding .* holds 1048576;"):
        pieces_of(Tensor("w", (65, 8960), "weight"), DeviceLimits(max_binding=1 << 20))


@pytest.mark.parametrize("head_norm", [False, True])
def test_a_float16_cache_changes_what_touches_it_and_nothing_else(head_norm: bool) -> None:
    config = replace(QWEN25_15B, head_norm=head_norm)
    formats = dict.fromkeys(packed_shapes(config), "s4")
    for tokens, splits in ((1, 16), (256, 1)):
        wide, half = (
            lower(fuse(build_graph(config, formats, tokens=tokens, context=2048, splits=splits, kv=kv)), HARDWARE)
            for kv in ("f32", "f16")
        )
        assert wide.memory == half.memory
        touched = {"attention": 0, "cache": 0}
        for before, after in zip(wide.dispatches, half.dispatches, strict=True):
            if not any(binding.tensor.endswith(".kv") for binding in before.bindings):
                assert before == after
                continue
            assert "HALF_CACHE" in after.shader.label.split()
            assert "HALF_CACHE" not in before.shader.label
            assert before.bindings == after.bindings
            reads = before.shader.file.startswith("attention")
            positions = 2048 if reads else tokens
            assert before.bytes - after.bytes == positions * config.kv_row_bytes("f16")
            touched["attention" if reads else "cache"] += 1
        assert touched == {"attention": config.layers, "cache": config.layers}


# (keys, vec4 of each) in workgroup memory, by its KiB and the size of a head.
TILES = {
    16: {32: (32, 8), 64: (32, 16), 128: (32, 8)},
    32: {32: (32, 8), 64: (64, 16), 128: (64, 16), 256: (64, 8)},
    48: {32: (32, 8), 64: (64, 16), 128: (64, 16), 256: (64, 16)},
}


@pytest.mark.parametrize("kibibytes", TILES)
@pytest.mark.parametrize("d", [32, 64, 96, 128, 256])
def test_a_chunk_is_attended_to_in_tiles_wherever_they_fit(d: int, kibibytes: int) -> None:
    limits = replace(HARDWARE, max_workgroup_storage=kibibytes << 10)
    tile = TILES[kibibytes].get(d)
    assert chunk_shape(d, replace(limits, software=True)) is None
    case = attention_cases.attention("a chunk", 9, 3, d, 1, (0,), tokens=70)
    (dispatch,) = lower(case.graph, limits).dispatches
    assert (dispatch.shader.file == "attention_chunk") == (tile is not None)
    # 70 tokens see 3 to 72 of the 72 positions; the context, the queries and the results count once.
    assert dispatch.flops == 4 * sum(range(3, 73)) * 9 * d
    assert dispatch.bytes == 4 * (72 * 2 * 3 * d + 2 * 70 * 9 * d)
    if tile is not None:
        params = dict(dispatch.shader.params)
        assert (params["KEYS"], params["SLICE"]) == tile
        # A tile of 32 tokens has 96 queries for each head of the cache, 16 a workgroup.
        assert dispatch.workgroups == (3 * 6, 3, 1)
        assert workgroup_bytes(specialised(dispatch, set())) <= limits.max_workgroup_storage
