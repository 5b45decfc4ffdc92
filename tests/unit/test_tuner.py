"""Shapes tried at the first start: which, how they are timed, what is chosen, kept and read again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.compiler.graph import Graph, Tensor
from pyapp.compiler.lowering import lower
from pyapp.compiler.passes import fuse
from pyapp.compiler.products import NO_SHAPES, Shapes, VectorShape, vector_shape
from pyapp.engine.tuner import MOST_SECONDS, TRIAL_SECONDS, TRIED, Tuner, fastest, read, rounds, trials, written
from pyapp.engine.tuning import Tuning
from pyapp.errors import DeviceLost, NoDevice
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.plan import Plan
from pyapp.models.decoder import build_graph, packed_shapes

from .decoder_configs import SMOLLM2

GPU = DeviceLimits(max_binding=2 << 30, max_buffer=4 << 30, subgroup=32, subgroup_max=32)
HEAD = "q4 49152x576 rms_norm store"
BEST = VectorShape(16, 2, 128)
PASS = 5e-6
"""Seconds of an empty pass by the GPU's clock."""
ONE, TWO = VectorShape(16, 4, 128), VectorShape(8, 4, 64)


def step(pieces: dict[str, tuple[tuple[int, int], ...]] | None = None) -> Graph:
    config = replace(SMOLLM2, layers=3)
    formats = dict.fromkeys(packed_shapes(config), "q4")
    graph = build_graph(config, formats, tokens=1, context=256, splits=16, pieces=pieces or {})
    return fuse(graph)


def weight_of(key: str) -> Tensor:
    """A weight with the format and the sizes of a product's key."""
    fmt, sizes, *_ = key.split()
    n, k = map(int, sizes.split("x"))
    return Tensor("weight", (n, k), "weight", fmt=fmt)


def test_a_few_shapes_for_each_product_the_usual_one_first() -> None:
    tried = trials(step(), GPU)
    assert set(tried) == {
        "q4 960x576 rms_norm rope_cache",
        "q4 576x576 attention_merge residual",
        "q4 3072x576 rms_norm silu_mul",
        "q4 576x1536 plain residual",
        HEAD,
    }
    for key, shapes in tried.items():
        assert shapes[0] == vector_shape(GPU, weight_of(key), key.split()[3])
        assert len(set(shapes)) == len(shapes) > 3
        assert set(shapes[1:]) <= set(TRIED)
        assert {shape.lanes for shape in shapes} == {4, 8, 16, 32}
    for limits in (DeviceLimits(), replace(GPU, software=True)):
        assert trials(step(), limits) == {}
    for subgroup, lanes in ((16, {4, 8, 16}), (8, {4, 8}), (4, {4})):
        for shapes in trials(step(), replace(GPU, subgroup=subgroup)).values():
            assert {shape.lanes for shape in shapes} == lanes


@pytest.mark.parametrize("pieces", [{}, {"embed": ((0, 16384), (16384, 32768))}])
def test_rounds_have_the_rows_that_lowering_makes_for_their_shapes(pieces: Any) -> None:
    graph = step(pieces)
    tried = trials(graph, GPU)
    usual = lower(graph, GPU)
    found = rounds(graph, usual, GPU, tried)
    assert len(found) == max(map(len, tried.values()))
    for each in found:
        whole = lower(graph, GPU, shapes=each.shapes)
        assert each.plan.memory == usual.memory
        for key, (begin, end) in each.spans.items():
            rows = each.plan.dispatches[begin:end]
            assert len(rows) == (len(pieces.get("embed", (0,))) if key == HEAD else 3)
            assert list(rows) == [d for d in whole.dispatches if d in rows]
            assert {dict(d.shader.params)["LANES"] for d in rows} == {each.shapes[key].lanes}


def test_the_fastest_unless_it_is_hardly_faster_than_the_usual_one() -> None:
    assert fastest([(ONE, 1.0), (TWO, 0.9)]) == TWO
    assert fastest([(ONE, 1.0), (TWO, 0.98)]) == ONE
    assert fastest([(ONE, 1.0), (TWO, None)]) == ONE
    assert fastest([(ONE, None), (TWO, None)]) == ONE
    assert fastest([(ONE, 0.0), (TWO, 0.0)]) == ONE


SHAPES = st.builds(
    VectorShape, st.sampled_from([4, 8, 16, 32]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([64, 128, 256])
)


@given(st.dictionaries(st.text(max_size=9), SHAPES))
def test_a_note_says_what_was_chosen(shapes: dict[str, VectorShape]) -> None:
    assert read(written(shapes)) == shapes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(JSON)
def test_rubbish_says_nothing(kept: Any) -> None:
    for shape in read(kept).values():
        assert (shape.lanes, shape.rows, shape.workgroup) in {
            (a, b, c) for a in (4, 8, 16, 32) for b in (1, 2, 4, 8) for c in (64, 128, 256)
        }
    assert read({"a": [16, 4, 128], "b": [0, 4, 128], "c": [16, 4], "d": "x"}) == {"a": ONE}


def test_lowering_leaves_out_a_shape_that_the_device_cannot_run() -> None:
    graph = step()
    assert lower(graph, replace(GPU, subgroup=8), shapes={HEAD: VectorShape(32, 4, 128)}) == lower(
        graph, replace(GPU, subgroup=8)
    )


class World:
    """A device on which a byte takes so many seconds, by shape; a trip there and back takes ``trip``."""

    def __init__(self, pace: dict[VectorShape, float], trip: float = 0.001) -> None:
        self.limits = GPU
        self.now = 0.0
        self.pace, self.trip = pace, trip
        self.record = 0.0
        """Seconds that the CPU takes for a dispatch, before the GPU begins: what the wall clock has too."""
        self.submits = 0
        self.otherwise = 1e-10
        self.prepared: list[Any] = []
        self.log: list[str] = []
        self.refuses: str | None = None
        self.lost = False
        self.busy = 0.0
        self.graph = step()
        self.plan = lower(self.graph, GPU)
        self.discarded: set[Any] = set()
        self.clocked: Any = None
        self.untold = 1 << 30
        """Of so many submits, the GPU's clock says nothing of one."""
        # As the runner.
        self.context = 256
        self.shapes: Shapes = NO_SHAPES
        self.model = self
        self.decode_plan = self.prefill_plan = self.plan

    def clock(self) -> float:
        return self.now

    def tuner(self) -> Tuner:
        world: Any = self
        return Tuner(self.graph, self.plan, world, world, trials(self.graph, GPU), self.clock)

    async def timestamps(self) -> Any:
        """As the pool."""
        return self.clocked

    # -- kernels

    async def prepare(self, dispatches: Any) -> None:
        shaders = {dispatch.shader for dispatch in dispatches}
        if self.refuses:
            raise NoDevice(self.refuses)
        self.prepared.append(shaders)

    def discard(self, shaders: set[Any]) -> None:
        self.discarded |= shaders

    # -- device

    async def idle(self) -> None:
        if self.lost:
            raise DeviceLost("gone")
        self.now += self.trip + self.busy
        self.busy = 0.0

    # -- runner

    def bound(self, kernels: Any, plan: Plan) -> Any:
        world = self

        class Replay:
            def submit(self, spans: Any, *, tiles: int, repeat: int) -> None:
                for begin, end in spans:
                    for dispatch in plan.dispatches[begin:end]:
                        params = dict(dispatch.shader.params)
                        shape = VectorShape(params["LANES"], params["ROWS"], params["WG"])
                        world.busy += repeat * dispatch.bytes * world.pace.get(shape, world.otherwise)
                    world.submits += 1
                    world.now += repeat * (end - begin) * world.record

            async def timed(self, spans: Any, timestamps: Any, *, tiles: int, repeat: int) -> float | None:
                assert timestamps == "the GPU's"
                self.submit(spans, tiles=tiles, repeat=repeat)
                busy = world.busy
                await world.idle()
                return None if world.submits % world.untold == 0 else PASS + busy

        return Replay()

    def hold_at(self, position: int) -> None:
        self.log.append(f"held at {position}")

    def clear_cache(self) -> None:
        self.log.append("cache cleared")

    def clear_activations(self) -> None:
        self.log.append("activations cleared")

    async def rebuild(self, kernels: Any, shapes: Shapes) -> None:
        await self.prepare(())
        self.shapes = shapes
        self.decode_plan = lower(self.graph, GPU, shapes=shapes)
        self.log.append("rebuilt")


async def test_each_product_gets_the_shape_that_is_fastest_for_it() -> None:
    world = World({BEST: 0.5e-10})
    tuner = world.tuner()
    await tuner.prepare()
    assert world.prepared == [tuner.shaders]
    best = await tuner.choose(world)  # type: ignore[arg-type]
    assert best == dict.fromkeys(trials(world.graph, GPU), BEST)
    assert world.log == ["held at 128", "cache cleared", "activations cleared"]
    assert world.now <= MOST_SECONDS + 0.1


async def test_the_way_there_and_back_does_not_hide_a_difference() -> None:
    world = World({BEST: 0.9e-10}, trip=TRIAL_SECONDS / 2)
    assert (await world.tuner().choose(world))[HEAD] == BEST  # type: ignore[arg-type]


async def test_what_there_is_no_time_for_keeps_its_shape_and_most_bytes_come_first() -> None:
    world = World({BEST: 0.5e-9}, trip=0.0)
    world.otherwise = 0.9e-9
    best = await world.tuner().choose(world)  # type: ignore[arg-type]
    assert best[HEAD] == BEST
    assert best["q4 576x576 attention_merge residual"] == vector_shape(GPU, weight_of("q4 576x576"), "residual")
    assert world.now <= MOST_SECONDS + 0.9e-9 * max(dispatch.bytes for dispatch in world.plan.dispatches)


@pytest.mark.parametrize("untold", [1 << 30, 7])
async def test_by_the_gpus_clock_what_the_cpu_takes_does_not_hide_a_difference(untold: int) -> None:
    key = "q4 3072x576 rms_norm silu_mul"
    world = World({BEST: 0.9e-10}, trip=0.0)
    world.record, world.untold = 3e-4, untold
    assert (await world.tuner().choose(world, "the GPU's"))[key] == BEST  # type: ignore[arg-type]
    assert world.now <= MOST_SECONDS + 0.1
    assert (await world.tuner().choose(world))[key] != BEST  # type: ignore[arg-type]


async def test_where_the_gpus_clock_says_nothing_the_wall_clock_counts() -> None:
    world = World({BEST: 0.5e-10})
    world.untold = 1
    assert (await world.tuner().choose(world, "the GPU's"))[HEAD] == BEST  # type: ignore[arg-type]


async def test_a_device_that_is_lost_meanwhile_leaves_nothing_behind() -> None:
    world = World({})
    world.lost = True
    with pytest.raises(DeviceLost):
        await world.tuner().choose(world)  # type: ignore[arg-type]
    assert world.log[-2:] == ["cache cleared", "activations cleared"]


class Notes:
    def __init__(self, kept: Any = None) -> None:
        self.kept = kept

    async def load(self) -> Any:
        return self.kept

    async def keep(self, value: dict[str, list[int]]) -> None:
        self.kept = value


async def tuned(world: World, notes: Notes) -> None:
    kept = notes.kept
    tuning = Tuning(notes, world)  # type: ignore[arg-type]
    await tuning.recall()
    tuning.begin(world.graph, world.plan, world, world, world.clock)  # type: ignore[arg-type]
    try:
        await tuning.apply(world, world, world)  # type: ignore[arg-type]
        assert notes.kept == kept, "before the kernels have been checked"
        await tuning.keep()
    finally:
        await tuning.stop()


async def test_the_first_start_tries_and_keeps_and_the_next_ones_do_not() -> None:
    notes = Notes()
    world = World({BEST: 0.5e-10})
    await tuned(world, notes)
    assert read(notes.kept) == world.shapes == dict.fromkeys(trials(world.graph, GPU), BEST)
    assert world.log[-1] == "rebuilt"
    used = {dispatch.shader for dispatch in world.decode_plan.dispatches}
    assert len(world.discarded) > 10
    assert not world.discarded & used
    later = World({})
    await tuned(later, notes)
    assert later.shapes == world.shapes
    assert (later.log, later.prepared) == ([], [])


async def test_the_pools_timestamps_are_what_trials_are_timed_by() -> None:
    world = World({BEST: 0.9e-10})
    world.trip, world.record, world.clocked = 0.0, 3e-4, "the GPU's"
    await tuned(world, Notes())
    assert world.shapes["q4 3072x576 rms_norm silu_mul"] == BEST


async def test_only_what_is_not_known_is_tried() -> None:
    notes = Notes({HEAD: [32, 2, 64], "q8 1x32 plain store": [4, 1, 64]})
    world = World({BEST: 0.5e-10})
    await tuned(world, notes)
    assert world.shapes[HEAD] == VectorShape(32, 2, 64)
    assert world.shapes["q4 576x1536 plain residual"] == BEST
    assert "q8 1x32 plain store" in notes.kept, "another model's"


async def test_a_driver_that_refuses_a_trial_leaves_the_usual_shapes() -> None:
    notes = Notes()
    world = World({})
    world.refuses = "The GPU's driver refused the kernel."
    await tuned(world, notes)
    assert (world.shapes, notes.kept, world.log) == ({}, None, [])


async def test_a_load_that_fails_ends_what_is_being_compiled() -> None:
    world = World({})
    tuning = Tuning(Notes(), world)  # type: ignore[arg-type]
    tuning.begin(world.graph, world.plan, world, world)  # type: ignore[arg-type]
    await tuning.stop()
    assert world.prepared == []
