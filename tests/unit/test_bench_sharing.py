"""The bench of sharing without a GPU: which budgets it takes, and what its rows say of engines that only pretend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyapp.bench import rounds, sharing
from pyapp.bench.options import Options
from pyapp.bench.pairs import Pair, budgets_of, needs_of, open_pair
from pyapp.engine.loading import size_for
from pyapp.engine.sizing import overlap
from pyapp.errors import BadArgument, DeviceLost, OutOfMemory
from pyapp.gpu.lease import LeaseCoordinator
from pyapp.gpu.limits import DeviceLimits

H200 = DeviceLimits(max_binding=2 << 30, max_buffer=4 << 30, subgroup=32, subgroup_max=32)
TINY = Options(shapes="tiny", rounds=3, tokens=4, prompt=8)


async def pair_of(shapes: str) -> Pair:
    return await open_pair("synthetic", replace(TINY, shapes=shapes), "/")


def sizing_of(pair: Pair, budget: int) -> Any:
    return size_for(H200, budget, pair.language, pair.vision, pair.vision.lowered(H200)).sizing


# -- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", ["tiny", "qwen2.5-1.5b"])
async def test_roomy_is_what_both_need_and_one_byte_less_overlaps(shapes: str) -> None:
    pair = await pair_of(shapes)
    budget = budgets_of(pair, needs_of(pair, H200))["roomy"]
    assert overlap(sizing_of(pair, budget).placements) == 0
    assert sizing_of(pair, budget).context == pair.language.config.context
    assert overlap(sizing_of(pair, budget - 256).placements) == 256


async def test_tight_overlaps_by_half_of_the_smaller_model() -> None:
    pair = await pair_of("tiny")
    sizing = sizing_of(pair, budgets_of(pair, needs_of(pair, H200))["tight"])
    assert overlap(sizing.placements) == pair.vision.layout.total // 2 // 256 * 256
    assert not any(placement.streamed for placement in sizing.placements)


@pytest.mark.parametrize("shapes", ["tiny", "qwen2.5-1.5b"])
async def test_small_streams_the_language_model_alone(shapes: str) -> None:
    pair = await pair_of(shapes)
    sizing = sizing_of(pair, budgets_of(pair, needs_of(pair, H200))["small"])
    assert sizing.weights == int(0.6 * pair.language.layout.total) // 256 * 256
    assert sizing.placements[0].streamed
    assert not sizing.placements[1].streamed


async def test_held_is_each_model_alone_and_whole() -> None:
    pair = await pair_of("tiny")
    needs = needs_of(pair, H200)
    assert budgets_of(pair, needs)["held"] == needs.language + needs.vision
    writer = size_for(H200, needs.language, pair.language, None, None).sizing
    looker = size_for(H200, needs.vision, None, pair.vision, pair.vision.lowered(H200)).sizing
    assert (writer.context, writer.placements[0].streamed) == (pair.language.config.context, frozenset())
    assert looker.placements[0].streamed == frozenset()


async def test_the_pair_that_the_product_is_for_does_not_fit_900_mib() -> None:
    pair = await pair_of("qwen2.5-1.5b")
    needs = needs_of(pair, H200)
    budgets = budgets_of(pair, needs)
    assert budgets["held"] == budgets["tight"] == 900 << 20
    assert needs.language + needs.vision > 900 << 20
    sizing = sizing_of(pair, budgets["tight"])
    assert not any(placement.streamed for placement in sizing.placements)  # yet they share it
    assert sizing.context == 2048


# -- options ---------------------------------------------------------------------------------------------------------


def test_a_query_is_read() -> None:
    query = {"rounds": "2", "pairs": "real", "budgets": "roomy,small", "which": "sharing", "pool": "500"}
    options = Options.of(query)
    assert (options.rounds, options.pairs, options.budgets, options.pool) == (2, ("real",), ("roomy", "small"), 500)
    assert Options.of({}) == Options()


@pytest.mark.parametrize(
    "query", [{"rounds": "0"}, {"rounds": "two"}, {"pairs": "unreal"}, {"budgets": "huge"}, {"shapes": "large"}]
)
def test_a_wrong_query_is_refused_by_name(query: dict[str, str]) -> None:
    with pytest.raises(BadArgument, match=next(iter(query))):
        Options.of(query)


# -- rows ------------------------------------------------------------------------------------------------------------


@dataclass
class FakeEngine:
    """Two models that overlap by ``overlap`` bytes; an upload takes a millisecond a kilobyte."""

    overlap: int
    budget: int
    models: tuple[str, ...]
    answers: list[list[int]] = field(default_factory=list)
    """Of the next texts; afterwards always the same."""
    fail: list[Exception] = field(default_factory=list)
    kv: str = "f32"
    read_back: Callable[[], None] = lambda: None
    """Called at each read-back."""
    closed: bool = False

    def __post_init__(self) -> None:
        self.here: set[str] = set()
        self.context = 256
        self.decisions = [{"model": "language", "kv": self.kv}]
        self.pool = SimpleNamespace(peak=self.budget)
        self.device = SimpleNamespace(idle=lambda: asyncio.sleep(0), errors=[])
        placement = SimpleNamespace(homes=(), streamed=frozenset())
        sets = {name: SimpleNamespace(nbytes=10 * self.overlap, blocks=(), placement=placement) for name in self.models}
        self.residency = SimpleNamespace(moved_bytes=0, sets=sets, evict=self.here.clear)
        self.leases = LeaseCoordinator(self._enter, lambda _: asyncio.sleep(0))
        self.vision = object() if "vision" in self.models else None

    async def _enter(self, model: str) -> None:
        whole = 10 * self.overlap
        moved = whole if not self.here else 0 if self.here == {model} else self.overlap
        self.here = {model} if self.overlap else self.here
        self.residency.evict = self.here.clear
        await asyncio.sleep(moved / 1e6)
        self.residency.moved_bytes += moved

    async def classify(self, picture: Any) -> Any:
        if self.fail:
            raise self.fail.pop(0)
        return np.zeros(1000, np.float32)

    async def generate(self, ids: list[int], params: Any, ends: frozenset[int]) -> AsyncIterator[list[int]]:
        """One id, then two a read-back."""
        answer = list(self.answers.pop(0) if self.answers else range(params.max_tokens))
        for fresh in (answer[max(0, at) : at + 2] for at in range(-1, len(answer), 2)):
            self.read_back()
            await asyncio.sleep(0)
            yield fresh

    async def close(self) -> None:
        self.closed = True


@dataclass
class World:
    """What ``run`` finds instead of a browser; ``made`` has every engine."""

    made: list[FakeEngine] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    fail: list[Exception] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    """Of the next engines; afterwards f32."""

    async def rows(self, **query: str) -> list[dict[str, Any]]:
        lines: list[str] = []
        whole = {"pairs": "synthetic", "shapes": "tiny", "rounds": "3", "tokens": "4", "prompt": "8", **query}
        await sharing.run(json.dumps(whole), "/", lines.append)
        return [json.loads(line) for line in lines]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()

    async def probe(adapter: str) -> Any:
        return SimpleNamespace(adapter="a fake", software=True, tier="high", device_limits=lambda: H200)

    async def of_models(found: Any, budget: int, language: Any, vision: Any, progress: Any) -> FakeEngine:
        kv = world.caches.pop(0) if world.caches else "f32"
        models = tuple(name for name, model in (("language", language), ("vision", vision)) if model)
        world.made.append(FakeEngine(10_000, budget, models, world.answers, world.fail, kv))
        return world.made[-1]

    async def open_packed(key: str, layout: Any) -> None:
        return None

    monkeypatch.setattr(sharing, "probe", probe)
    monkeypatch.setattr(sharing.Engine, "of_models", of_models)
    monkeypatch.setattr("pyapp.bench.synthetic.open_packed", open_packed)
    return world


async def test_every_setup_has_its_row(world: World) -> None:
    about, *rows = await world.rows()
    assert about == {"adapter": "a fake", "software": True, "tier": "high"}
    assert [row["setup"] for row in rows] == ["held", "roomy", "tight", "small"]
    assert all(row["failures"] == 0 and "error" not in row for row in rows)
    held, shared = rows[0], rows[1]
    assert (held["moved_per_round"], held["to_vision_ratio"], held["to_language_moved"]) == (0, None, 0)
    assert held["peak"] == sum(engine.budget for engine in world.made[:2]) == held["budget"]
    assert [shared[name] for name in ("to_vision_moved", "to_language_moved", "moved_per_round")] == [10e3, 10e3, 20e3]
    assert shared["language_rate"] == pytest.approx(1e6, rel=0.3)
    assert shared["to_language_ratio"] == pytest.approx(1, abs=0.5)
    assert shared["to_language_p95_ms"] >= shared["to_language_ms"] >= 10
    assert shared["first_token_ms"] >= shared["to_language_in_round_ms"] >= 10
    assert len(world.made) == 5
    assert all(engine.closed for engine in world.made)


async def test_the_rate_is_that_of_the_tokens_behind_the_first_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = FakeEngine(0, 0, ("language", "vision"), [], [], "f32")
    clock: Any = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(rounds, "time", clock)
    engine.read_back = lambda: setattr(clock, "now", clock.now + 0.5)
    found = await rounds.photo_to_copy(rounds.Hosts(engine, engine), np.zeros(1), [1], 6)  # 1, 2, 2 and 1 of them
    assert (found.ids, found.first, found.rate) == ([0, 1, 2, 3, 4, 5], 0.5, 5 / 1.5)
    assert (await rounds.photo_to_copy(rounds.Hosts(engine, engine), np.zeros(1), [1], 1)).rate == 0


async def test_rounds_end_early_but_not_before_the_first(world: World) -> None:
    rows = (await world.rows(budgets="tight", rounds="1000", seconds="1", tokens="1"))[1:]
    assert 1 < rows[0]["rounds"] < 500  # of 20 ms each


async def test_what_cannot_be_held_is_refused_with_figures(world: World) -> None:
    rows = (await world.rows(pool="20", budgets="held,tight"))[1:]
    assert rows[0]["refused"].startswith("Held for good, the models take ")
    assert f"the budget is {20 << 20};" in rows[0]["refused"]
    assert rows[0]["need"] > rows[0]["budget"] == 20 << 20
    assert "peak" not in rows[0]
    assert rows[1]["failures"] == 0


async def test_another_answer_is_a_failure(world: World) -> None:
    world.answers += [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 9]]
    rows = (await world.rows(budgets="roomy,tight"))[1:]
    assert [(row["failures"], row["failed"]) for row in rows] == [(1, ["another answer"]), (0, [])]


async def test_an_answer_that_another_budget_changes_is_a_failure(world: World) -> None:
    world.answers += [[7, 7, 7, 7]] * 4
    rows = (await world.rows(budgets="roomy,tight"))[1:]
    assert [row["failures"] for row in rows] == [0, 4]


async def test_a_cache_of_another_type_is_compared_with_its_like(world: World) -> None:
    world.answers += [[7, 7, 7, 7]] * 4
    world.caches += ["f32", "f16"]
    rows = (await world.rows(budgets="roomy,tight,small"))[1:]
    assert [(row["cache"], row["failures"]) for row in rows] == [("f32", 0), ("f16", 0), ("f32", 4)]


async def test_an_error_in_a_round_is_counted_and_the_rest_goes_on(world: World) -> None:
    world.fail += [DeviceLost("The GPU was lost.")]
    failed, fine = (await world.rows(budgets="roomy,tight"))[1:]
    assert failed["error"] == "The GPU was lost."  # in the very first round there is nothing to compare with
    assert fine["failures"] == 0


async def test_memory_that_runs_out_in_a_round_is_no_refusal(world: World) -> None:
    world.fail += [OutOfMemory("The GPU ran out of memory.")]
    (row,) = (await world.rows(budgets="tight"))[1:]
    assert row["error"] == "The GPU ran out of memory."
    assert "refused" not in row


async def test_an_error_that_nobody_foresaw_is_a_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr(sharing, "open_pair", broken)
    assert (await world.rows())[1:] == [{"bench": "sharing", "pair": "synthetic", "error": "ValueError: no"}]
    rows = await world.rows(rounds="none")
    assert rows == [{"bench": "sharing", "error": "rounds is 'none'; it must be a whole number from 1 on."}]
