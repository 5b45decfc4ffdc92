"""The bench of kernels without a GPU: what it takes for a kernel's time and ceiling, and the shapes that it tries."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from pyapp.bench import ceilings as ceilings_module
from pyapp.bench import kernels
from pyapp.bench.ceilings import Ceilings, reads, walks
from pyapp.bench.kernel_options import KernelOptions
from pyapp.bench.kernel_rows import kernel_rows
from pyapp.bench.shapes import (
    attention_shape_of,
    attention_shapes,
    products_of,
    shape_of,
    spread,
    tile_of,
    tiles,
    with_attention,
    with_tile,
)
from pyapp.bench.subjects import Subject, check_resident, spans_of
from pyapp.bench.sweep import in_turns
from pyapp.compiler.graph import Graph
from pyapp.compiler.lowering import lower
from pyapp.compiler.passes import DECODER_PASSES, decoder_passes, fuse
from pyapp.engine import timing
from pyapp.engine.assets import shader_text
from pyapp.engine.profile import grouped
from pyapp.engine.timing import Stopwatch
from pyapp.engine.tuner import by_operation
from pyapp.errors import BadArgument
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.plan import Dispatch, MemoryPlan, Plan, Shader
from pyapp.gpu.preprocess import preprocess
from pyapp.models.decoder import build_graph, packed_shapes

from .decoder_configs import QWEN25_15B

GPU = DeviceLimits(max_binding=2 << 30, max_workgroup_storage=49152, subgroup=32, subgroup_max=32)
OPTIONS = KernelOptions(reps=3)
US = 1e-6


# -- rows ------------------------------------------------------------------------------------------------------------


class Clock:
    """Stands for a device and a replay: rows of a plan take what ``cost`` says, in seconds. ``record``: what the CPU
    takes for each of them before."""

    def __init__(self, cost: list[float], trip: float = 0.002, record: float = 0.0) -> None:
        self.cost, self.trip, self.record, self.now = cost, trip, record, 0.0
        self.submits: list[tuple[tuple[tuple[int, int], ...], int]] = []

    def submit(self, spans: tuple[tuple[int, int], ...], *, tiles: int = 1, repeat: int = 1) -> None:
        self.submits.append((spans, repeat))
        count = sum(end - begin for begin, end in spans)
        self.now += self.trip + repeat * (self._busy(spans) + self.record * count)

    async def timed(self, spans: Any, timestamps: Any, *, tiles: int = 1, repeat: int = 1) -> float:
        self.submit(spans, tiles=tiles, repeat=repeat)
        return 1e-6 + repeat * self._busy(spans)

    def _busy(self, spans: tuple[tuple[int, int], ...]) -> float:
        return sum(self.cost[row] for begin, end in spans for row in range(begin, end))

    async def idle(self) -> None:
        """It is done at once: only the clock goes on."""

    def perf_counter(self) -> float:
        return self.now


def dispatch(operation: str, file: str, nbytes: int, flops: int, **params: Any) -> Dispatch:
    return Dispatch(operation, Shader.of(file, **params), (), (8, 1, 1), nbytes, flops)


# Two layers of a product and of attention, a head, and a sampler that a greedy step leaves out.
PLAN = Plan(
    "step",
    (
        dispatch("layers.0.qkv_out", "matvec", 4_000_000, 8_000_000, WG=128),
        dispatch("layers.0.attention_out", "attention_split", 1_000_000, 2_000_000, WG=64),
        dispatch("layers.1.qkv_out", "matvec", 4_000_000, 8_000_000, WG=128),
        dispatch("layers.1.attention_out", "attention_split", 1_000_000, 2_000_000, WG=64),
        dispatch("logits", "matvec", 40_000_000, 80_000_000, WG=256),
        dispatch("sample_random", "sample", 100, 100),
    ),
    MemoryPlan({}, {}, 0, 0),
)
COST = [5 * US, 4 * US, 7 * US, 4 * US, 20 * US, 50 * US]
CEILINGS = Ceilings(bandwidth=2e12, flops=1e13, dispatch=2 * US)


@pytest.fixture
def clock() -> Clock:
    return Clock(COST)


def watch(clock: Any, timestamps: Any = None) -> Stopwatch:
    return Stopwatch(clock, timestamps, clock.perf_counter)


def subject(clock: Any) -> Subject:
    return Subject("decode", PLAN, clock, ((0, 5),), context=128, attended=0.25)


async def rows_of(
    clock: Any, ceilings: Ceilings = CEILINGS, stops: bool = False, timestamps: Any = None
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    failures: list[tuple[str, Exception]] = []

    async def stopped() -> bool:
        return stops

    await kernel_rows(
        watch(clock, timestamps),
        subject(clock),
        ceilings,
        OPTIONS,
        rows.append,
        lambda *each: failures.append(each),
        stopped,
    )
    assert failures == []
    return rows


async def test_a_kernel_is_measured_over_all_layers_over_and_over_and_in_its_place(clock: Clock) -> None:
    qkv, attention, head, sampler, step = await rows_of(clock)
    assert (qkv["operation"], qkv["kernel"], qkv["count"], qkv["workgroup"]) == ("layers.0.qkv_out", "matvec", 2, 128)
    assert qkv["us"] == pytest.approx(6)  # 5 and 7
    assert qkv["us_repeated"] == pytest.approx(5)
    assert qkv["us_in_place"] == pytest.approx(6)
    assert qkv["GBps"] == pytest.approx(4e6 / 6e-6 / 1e9)
    assert attention["us"] == pytest.approx(4)
    assert head["us"] == head["us_repeated"] == pytest.approx(20)
    assert (sampler["count"], sampler["us_in_place"]) == (0, None)
    assert sampler["us"] == pytest.approx(50)
    assert (step["row"], step["dispatches"], step["stopped"]) == ("step", 5, False)
    assert (step["us"], step["kernels_us"]) == (pytest.approx(40), pytest.approx(40))
    assert step["bytes"] == 4e6 * 2 + 0.25e6 * 2 + 40e6  # attention walks a quarter of the context here


async def test_by_the_gpus_clock_what_the_cpu_takes_is_in_no_time_but_the_walls() -> None:
    clock = Clock(COST, record=10 * US)
    qkv, attention, _, _, step = await rows_of(clock, timestamps="the GPU's")
    assert (qkv["us"], qkv["us_in_place"], attention["us"]) == (pytest.approx(6), pytest.approx(6), pytest.approx(4))
    assert (step["us"], step["wall_us"]) == (pytest.approx(40), pytest.approx(90))
    assert {row["clock"] for row in (qkv, attention, step)} == {"gpu"}
    qkv, *_, step = await rows_of(clock)
    assert (qkv["us"], step["us"], step["wall_us"]) == (pytest.approx(16), pytest.approx(90), pytest.approx(90))
    assert (qkv["clock"], step["clock"]) == ("wall", "wall")


async def test_a_kernel_beside_a_plain_read_of_as_many_bytes(clock: Clock) -> None:
    reads = ((8e6, 10.0), (80e6, 46.0))
    qkv, attention, head, *_ = await rows_of(clock, replace(CEILINGS, reads=reads))
    assert qkv["of_read"] == pytest.approx((2 + 10) / 2 / 6)  # half way from an empty dispatch to the first one
    assert attention["of_read"] == pytest.approx((2 + 8 * 0.25 / 8) / 4)
    assert head["of_read"] == pytest.approx(26 / 20)
    assert replace(CEILINGS, reads=reads).read_us(160e6) == pytest.approx(92)
    assert (await rows_of(clock))[0]["of_read"] is None


async def test_shares_are_of_the_nearer_ceiling(clock: Clock) -> None:
    qkv, attention, head, *_ = await rows_of(clock)
    assert (qkv["bound"], qkv["share"]) == ("memory", pytest.approx(2 / 6))  # a tie with a dispatch's cost
    assert (attention["bound"], attention["share"]) == ("dispatch", pytest.approx(2 / 4))
    assert (head["bound"], head["share"]) == ("memory", pytest.approx(20 / 20))
    assert Ceilings(bandwidth=2e12, flops=1e11).least_us(40e6, 80e6) == (pytest.approx(800), "arithmetic")


async def test_without_ceilings_there_are_no_shares(clock: Clock) -> None:
    qkv, *_ = await rows_of(clock, Ceilings())
    assert (qkv["share"], qkv["bound"]) == (None, None)


async def test_a_step_that_stopped_is_no_measure(clock: Clock) -> None:
    rows = await rows_of(clock, stops=True)
    assert rows[-1]["stopped"] is True
    assert all(row["us_in_place"] is None for row in rows[:-1])


async def test_every_submit_is_bounded(clock: Clock) -> None:
    await rows_of(clock)
    for spans, repeat in clock.submits:
        assert repeat * sum(COST[row] for begin, end in spans for row in range(begin, end)) < 0.1
        assert repeat * timing.dispatches_of(spans) <= timing.MOST_DISPATCHES + 5


async def test_one_kernel_that_fails_leaves_the_others(clock: Clock) -> None:
    submit = clock.submit

    def refuse(spans: Any, **how: Any) -> None:
        if spans == ((4, 5),):
            raise ValueError("no")
        submit(spans, **how)

    clock.submit = refuse  # type: ignore[method-assign]
    rows: list[dict[str, Any]] = []
    failures: list[tuple[str, str]] = []
    await kernel_rows(
        watch(clock),
        subject(clock),
        CEILINGS,
        OPTIONS,
        rows.append,
        lambda what, error: failures.append((what, str(error))),
    )
    assert failures == [("logits", "no")]
    assert [row.get("operation") for row in rows] == [
        "layers.0.qkv_out", "layers.0.attention_out", "sample_random", None,
    ]  # fmt: skip


def test_dispatches_are_grouped_by_shader_and_size() -> None:
    groups = grouped(PLAN.dispatches)
    assert [(group.first.operation, group.rows) for group in groups] == [
        ("layers.0.qkv_out", (0, 2)), ("layers.0.attention_out", (1, 3)), ("logits", (4,)), ("sample_random", (5,)),
    ]  # fmt: skip
    wider = replace(PLAN.dispatches[0], workgroups=(16, 1, 1))
    assert len(grouped([PLAN.dispatches[0], wider])) == 2


def test_spans_of_rows() -> None:
    assert spans_of([5, 0, 1, 3]) == ((0, 2), (3, 4), (5, 6))
    assert spans_of([]) == ()


def test_a_streamed_model_is_refused() -> None:
    check_resident(frozenset(), "small")
    with pytest.raises(BadArgument, match="larger pool"):
        check_resident(frozenset({3}), "small")


# -- ceilings --------------------------------------------------------------------------------------------------------


def test_a_range_is_read_in_pieces_of_a_binding() -> None:
    line = 256 * ceilings_module.LOADS * 16
    some = reads(5 * line, 2 * line, 256)
    assert [each.workgroups for each in some] == [(2, 1, 1), (2, 1, 1), (1, 1, 1)]
    assert [(each.bindings[0].tensor, each.bindings[0].nbytes) for each in some] == [
        ("0", 2 * line), ("1", 2 * line), ("2", line),
    ]  # fmt: skip
    assert sum(each.bytes for each in some) == 5 * line


def test_a_walk_reads_every_whole_range_of_every_region() -> None:
    line = 256 * ceilings_module.LOADS * 16
    some = walks(2 * line, [5 * line, 4 * line], 256)
    places = [(each.bindings[0].tensor, each.bindings[0].offset, each.bindings[0].nbytes) for each in some]
    assert places == [(name, at * line, 2 * line) for name, at in (("0", 0), ("0", 2), ("1", 0), ("1", 2))]
    assert {(each.workgroups, each.bytes) for each in some} == {((2, 1, 1), 2 * line)}
    assert walks(8 * line, [5 * line, 4 * line], 256) == []


def test_reading_asks_for_the_whole_range_once() -> None:
    """A workgroup's line is as long as ``reads`` takes it to be, and each invocation asks for LOADS vec4 of it."""
    text = specialised(reads(256 * 16 * ceilings_module.LOADS, 1 << 20, 256)[0])
    first = [int(each) for each in re.findall(r"= data\[at \+ (\d+)u\]", text)]
    assert first == [256 * i for i in range(ceilings_module.LOADS)]
    assert f"group.x * {256 * ceilings_module.LOADS}u + local" in text


def test_every_ceiling_has_its_kernel() -> None:
    chain = Shader.of("bench_fma", WG=64, CHAINS=ceilings_module.CHAINS, TRIPS=ceilings_module.TRIPS)
    text = specialised(Dispatch("fma", chain, (), (1, 1, 1), 0, 0))
    assert text.count("fma(a") == ceilings_module.CHAINS
    assert f"i < {ceilings_module.TRIPS}u" in text
    shaders = [Shader.of("bench_empty", VARIANT=number, WG=64) for number in (0, 1)]
    empty = [specialised(Dispatch("empty", shader, (), (1, 1, 1), 0, 0)) for shader in shaders]
    assert empty[0] != empty[1]  # two pipelines, not one that a driver finds again


# -- shapes ----------------------------------------------------------------------------------------------------------


def graph_of(tokens: int, splits: int = 1) -> Graph:
    config = replace(QWEN25_15B, layers=2)
    formats = dict.fromkeys(packed_shapes(config), "q4")
    return fuse(build_graph(config, formats, tokens=tokens, context=4352, splits=splits), decoder_passes(GPU))


def specialised(dispatch: Dispatch) -> str:
    """The WGSL; raises where the shape leaves something without a value."""
    return preprocess(shader_text(f"{dispatch.shader.file}.wgsl"), dict(dispatch.shader.params), shader_text)


def test_the_present_shapes_are_among_those_that_are_tried() -> None:
    graph = graph_of(1, 16)
    step, chunk = lower(graph, GPU), lower(graph_of(256), GPU)
    present = {each.operation: shape_of(each) for each in step.dispatches if each.shader.file == "matvec"}
    products = products_of(graph, GPU)
    assert sum(len(each.ops) for each in products) == len(present) == 4 * 2 + 1
    for each in products:
        assert all(present[op.name] in each.candidates for op in each.ops)
    assert attention_shape_of(step) in attention_shapes(step, GPU)
    matmul = next(each for each in chunk.dispatches if each.shader.file == "matmul")
    assert tile_of(matmul) in tiles(GPU)
    assert with_tile([matmul], tile_of(matmul)) == [replace(matmul, per_tile=False)]


def test_a_product_in_a_shape_is_what_a_plan_in_that_shape_has() -> None:
    graph = graph_of(1, 16)
    rows = by_operation(lower(graph, GPU))
    for each in products_of(graph, GPU):
        for shape in (shape_of(rows[each.ops[0].name][0]), each.candidates[0]):
            plan = lower(graph, GPU, shapes={each.key: shape})
            own = [row for row in plan.dispatches if row.operation in {op.name for op in each.ops}]
            assert each.dispatches(rows, graph, GPU, shape) == own


def test_tiles_cover_a_chunk() -> None:
    chunk = lower(graph_of(256), GPU)
    matmuls = [each for each in chunk.dispatches if each.shader.file == "matmul"]
    assert len(tiles(GPU)) > 5
    for tile in tiles(GPU):
        for before, after in zip(matmuls, with_tile(matmuls, tile), strict=True):
            n = dict(before.shader.params)["N"]
            assert after.workgroups[0] * tile.tile_n >= n > (after.workgroups[0] - 1) * tile.tile_n
            assert after.workgroups[1] * tile.tile_m >= 256
            assert dict(after.shader.params)["WG"] == tile.workgroup <= GPU.max_invocations
            specialised(after)
    assert all(tile.workgroup <= 128 for tile in tiles(replace(GPU, max_invocations=128)))


def test_attention_in_another_shape_is_merged_in_that_shape() -> None:
    plan = lower(graph_of(1, 16), GPU)
    shapes = [shape for shape in attention_shapes(plan, GPU) if shape.splits == 16]
    assert len(shapes) > 3
    for shape in shapes:
        other = with_attention(plan, shape, GPU)
        assert attention_shape_of(other) == shape
        params = [dict(each.shader.params) for each in other.dispatches]
        assert {each["MIN_SPLIT"] for each in params if each.get("SPLITS")} == {shape.least}
        for each in other.dispatches:
            specialised(each)
    assert with_attention(plan, attention_shape_of(plan), GPU) == plan


def test_the_first_of_the_shapes_are_not_all_of_a_kind() -> None:
    graph = graph_of(1, 16)
    for each in products_of(graph, GPU):
        present = each.candidates[-1]
        order = spread(each.candidates, present)
        assert (order[0], sorted(order, key=str)) == (present, sorted(each.candidates, key=str))
        for count in (4, 12):
            assert {shape.lanes for shape in order[:count]} >= {4, 32}
            assert {shape.rows for shape in order[:count]} >= {1, 8} & {shape.rows for shape in each.candidates}
            assert {shape.workgroup for shape in order[:count]} >= {64, 256}
    shapes = tiles(GPU)
    order_of_tiles = spread(shapes, shapes[0])
    assert sorted(map(str, order_of_tiles)) == sorted(map(str, shapes))
    assert len({tile.tile_m for tile in order_of_tiles[:4]}) > 1


def test_products_are_tried_in_turns() -> None:
    assert in_turns(["abc", "d", "ef"]) == list("adebfc")
    assert in_turns([]) == []


def test_an_emulated_gpu_has_nothing_to_try() -> None:
    software = replace(GPU, software=True)
    graph = graph_of(1, 16)
    assert products_of(graph, software) == []
    assert attention_shapes(lower(graph, software), software) == []


@pytest.mark.parametrize("name", DECODER_PASSES)
def test_one_fusion_can_be_left_out(name: str) -> None:
    config = replace(QWEN25_15B, layers=2)
    graph = build_graph(config, dict.fromkeys(packed_shapes(config), "q4"), tokens=1, context=256, splits=16)
    fused, other = fuse(graph, decoder_passes(GPU)), fuse(graph, decoder_passes(GPU, [name]))
    assert len(graph.ops) > len(other.ops) > len(fused.ops)
    assert decoder_passes(GPU, DECODER_PASSES) == []


# -- options ---------------------------------------------------------------------------------------------------------


def test_options() -> None:
    assert KernelOptions.of({"which": "kernels"}) == KernelOptions()
    made = KernelOptions.of(
        {"models": "tiny,http://x/m.gguf", "vision": "none", "contexts": "64,512", "parts": "shapes", "submit": "5"}
    )
    assert made.models == ("tiny", "http://x/m.gguf")
    assert (made.vision, made.contexts, made.longest_context, made.parts) == (None, (64, 512), 512, ("shapes",))
    assert made.submit_seconds == 0.005
    assert KernelOptions.of({"models": "none"}).models == ()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"parts": "all"}, "parts has 'all'; known are ceilings, kernels, shapes, fusions"),
        ({"contexts": "128,x"}, "contexts is 'x'; it must be a whole number"),
        ({"submit": "200"}, "a submit may take at most 100"),
    ],
)
async def test_a_wrong_option_is_a_row(query: dict[str, str], message: str) -> None:
    rows: list[dict[str, Any]] = []
    await kernels.run(json.dumps(query), "/", lambda line: rows.append(json.loads(line)))
    assert [row["bench"] for row in rows] == ["kernels"]
    assert message in rows[0]["error"]
