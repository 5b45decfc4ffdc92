"""A text among others who want the GPU: on a runner without a GPU that makes one token a step."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pyapp.compiler.graph import NO_TOKEN
from pyapp.engine import generation
from pyapp.engine.generation import Generation
from pyapp.errors import DeviceLost
from pyapp.gpu.lease import Lease, LeaseCoordinator
from pyapp.text.sampling import SamplingParams


class State:
    def __init__(self, step: int, limit: int) -> None:
        self.step, self.stopped = step, step >= limit

    def ids_since(self, seen: int) -> list[int]:
        return list(range(seen, self.step))


class Runner:
    """Token n is n. ``in_flight``: the most steps that were on their way at once."""

    context = 100
    device = SimpleNamespace(limits=SimpleNamespace(software=True))  # one step a submit
    decode = SimpleNamespace(in_flight=None)

    leases: LeaseCoordinator

    def __init__(self) -> None:
        self.step_now = 0
        self.cleared = 0
        self.ended = 0
        """How often a text has cleared everything at its end, in its lease."""
        self.turns: list[int] = []

    def check_room(self, tokens: int) -> None: ...

    async def start(self, lease: Lease, ids: list[int], params: Any, ends: Any, *, step: int, limit: int) -> int:
        lease.check()
        self.step_now, self.limit = step + 1, limit
        self.turns.append(lease.epoch)
        return self.step_now

    async def steps(self, lease: Lease, params: Any, count: int) -> int:
        lease.check()
        assert 0 < count <= self.limit - self.step_now
        self.step_now += count
        self.turns.append(lease.epoch)
        return self.step_now

    async def state(self, promise: int) -> State:
        await asyncio.sleep(0)
        return State(promise, self.limit)

    def clear_cache(self) -> None:
        self.cleared += 1

    def clear_all(self) -> None:
        assert self.leases.current is not None
        assert self.step_now == self.limit, "no step may be submitted behind it"
        self.ended += 1


class Together(Runner):
    """Four steps a submit, as on a GPU; the sequence stops for good after ``last``."""

    device = SimpleNamespace(limits=SimpleNamespace(software=False))

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int = 1 << 30) -> None:
        super().__init__()
        self.last = last
        monkeypatch.setattr(generation, "Pace", lambda most: SimpleNamespace(steps=4, arrived=lambda *_, **__: None))

    async def state(self, promise: int) -> State:
        await asyncio.sleep(0)
        return State(min(promise, self.last + 1), min(self.limit, self.last + 1))

    def clear_all(self) -> None:
        assert self.leases.current is not None
        self.ended += 1


async def nothing(model: str) -> None: ...


def text(
    runner: Runner, leases: LeaseCoordinator, lock: asyncio.Lock, n: int, step: int = 0, ends: tuple[int, ...] = ()
) -> Generation:
    given: Any = runner
    runner.leases = leases
    return Generation(given, leases, lock, [7] * 5, SamplingParams(max_tokens=n), frozenset(ends), step)


async def all_of(generation: Generation) -> list[int]:
    return [token async for ids in generation for token in ids]


async def test_two_that_ask_for_ever_do_not_starve_a_text() -> None:
    runner, leases = Runner(), LeaseCoordinator(nothing, nothing)

    async def look() -> None:
        while True:
            async with leases.lease("vision"):
                await asyncio.sleep(0)

    looking = [asyncio.ensure_future(look()) for _ in range(2)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await all_of(text(runner, leases, asyncio.Lock(), 20)) == list(range(20))
    # Each turn made at least a token, and none was kept to itself.
    assert 2 < len(set(runner.turns)) <= 20
    for each in looking:
        each.cancel()
    await asyncio.gather(*looking, return_exceptions=True)
    assert (runner.ended, runner.cleared) == (1, 1)


@pytest.mark.parametrize("step", [0, 3])
async def test_a_text_counts_from_where_it_goes_on(step: int) -> None:
    runner, leases = Runner(), LeaseCoordinator(nothing, nothing)
    assert await all_of(text(runner, leases, asyncio.Lock(), 4, step)) == list(range(step, step + 4))


async def test_ids_come_as_they_were_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, leases = Together(monkeypatch), LeaseCoordinator(nothing, nothing)
    writing = text(runner, leases, asyncio.Lock(), 11)
    assert [ids async for ids in writing] == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert writing.finish_reason == "length"
    assert (runner.ended, runner.cleared) == (1, 1)


@pytest.mark.parametrize(
    ("end", "wanted"),
    [(3, [[0], [1, 2]]), (5, [[0], [1, 2, 3, 4]]), (8, [[0], [1, 2, 3, 4], [5, 6, 7]]), (0, [])],
    ids=["in the middle", "the first", "the last", "at once"],
)
async def test_an_end_token_ends_the_ids_of_its_read_back(
    monkeypatch: pytest.MonkeyPatch, end: int, wanted: list[list[int]]
) -> None:
    runner, leases, lock = Together(monkeypatch, last=end), LeaseCoordinator(nothing, nothing), asyncio.Lock()
    writing = text(runner, leases, lock, 30, ends=(end, 50))
    assert [ids async for ids in writing] == wanted, "and no list is empty"
    assert writing.finish_reason == "stop"
    assert not lock.locked()
    assert leases.current is None
    assert (runner.ended, runner.cleared) == (1, 1)


async def test_python_never_works_on_tokens_with_nothing_queued_behind_them() -> None:
    """On a GPU, where the steps of a submit come together: from the second submit on, whoever reads its tokens has at
    least one more submit on its way, until the last ones have been asked for."""
    outstanding: list[int] = []

    class Watched(Runner):
        device = SimpleNamespace(limits=SimpleNamespace(software=False))

        async def start(self, *args: Any, **named: Any) -> int:
            outstanding.append(1)
            return await super().start(*args, **named)

        async def steps(self, lease: Lease, params: Any, count: int) -> int:
            outstanding.append(1)
            return await super().steps(lease, params, count)

        async def state(self, promise: int) -> State:
            state = await super().state(promise)
            outstanding.pop()
            return state

    runner, leases = Watched(), LeaseCoordinator(nothing, nothing)
    writing = text(runner, leases, asyncio.Lock(), 60)
    queued = [(len(ids), len(outstanding)) async for ids in writing if runner.step_now < runner.limit]
    assert sum(tokens for tokens, _ in queued) > 30
    assert min(submits for _, submits in queued) >= 1
    assert max(submits for _, submits in queued) == 2


async def test_one_text_after_the_other() -> None:
    runner, leases, lock = Runner(), LeaseCoordinator(nothing, nothing), asyncio.Lock()
    order: list[str] = []

    async def write(name: str) -> None:
        order.extend([name async for _ in text(runner, leases, lock, 3)])

    await asyncio.gather(write("a"), write("b"))
    assert order == ["a"] * 3 + ["b"] * 3
    assert len(set(runner.turns)) == 2  # a turn each: neither offered its own to the other


async def test_leaving_early_gives_the_turn_and_the_conversation_back() -> None:
    runner, leases, lock = Runner(), LeaseCoordinator(nothing, nothing), asyncio.Lock()
    writing = text(runner, leases, lock, 50)
    assert await anext(writing) == [0]
    await writing.aclose()
    assert not lock.locked()
    assert leases.current is None
    assert (runner.ended, runner.cleared) == (0, 1)


async def test_no_number_is_no_token() -> None:
    """What came before it is kept; the steps behind it were stopped on the GPU."""

    class NoNumber(State):
        def ids_since(self, seen: int) -> list[int]:
            return [token if token < 3 else NO_TOKEN for token in super().ids_since(seen)]

    class Broken(Runner):
        async def state(self, promise: int) -> State:
            await super().state(promise)
            return NoNumber(promise, self.limit)

    runner, leases, lock = Broken(), LeaseCoordinator(nothing, nothing), asyncio.Lock()
    writing = text(runner, leases, lock, 20)
    assert [await anext(writing) for _ in range(3)] == [[0], [1], [2]]
    with pytest.raises(DeviceLost, match="no number for its token 4") as caught:
        await anext(writing)
    assert caught.value.details["kind"] == "wrong_result"
    assert not lock.locked()
    assert leases.current is None
    assert (runner.ended, runner.cleared) == (0, 1)


async def test_ids_before_one_that_is_no_number_are_handed_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoNumber(State):
        def ids_since(self, seen: int) -> list[int]:
            return [NO_TOKEN if token == 3 else token for token in super().ids_since(seen)]

    class Broken(Together):
        async def state(self, promise: int) -> State:
            state = await super().state(promise)
            return NoNumber(state.step, self.last + 1)

    runner, leases, lock = Broken(monkeypatch, last=3), LeaseCoordinator(nothing, nothing), asyncio.Lock()
    writing = text(runner, leases, lock, 20)
    assert [await anext(writing) for _ in range(2)] == [[0], [1, 2]]
    with pytest.raises(DeviceLost, match="no number for its token 4"):
        await anext(writing)
    assert not lock.locked()
    assert leases.current is None
    assert (runner.ended, runner.cleared) == (0, 1)


class Slow(Runner):
    """A GPU whose submits arrive when the test says so; ``state`` waits for its own when it is cancelled once, too."""

    device = SimpleNamespace(limits=SimpleNamespace(software=False))

    def __init__(self) -> None:
        super().__init__()
        self.arrived: dict[int, asyncio.Event] = {}

    async def start(self, *args: Any, **named: Any) -> int:
        return self._submitted(await super().start(*args, **named))

    async def steps(self, *args: Any) -> int:
        return self._submitted(await super().steps(*args))

    def _submitted(self, step: int) -> int:
        self.arrived[step] = asyncio.Event()
        return step

    async def state(self, promise: int) -> State:
        try:
            await self.arrived[promise].wait()
        except asyncio.CancelledError:
            await self.arrived[promise].wait()
            raise
        return State(promise, self.limit)


@pytest.mark.parametrize("aborts", [1, 4])
async def test_an_abort_while_submits_are_waited_for_waits_for_all_of_them_and_more_aborts_for_none(
    aborts: int,
) -> None:
    runner, leases, lock = Slow(), LeaseCoordinator(nothing, nothing), asyncio.Lock()
    reading = asyncio.ensure_future(anext(text(runner, leases, lock, 50, ends=(0,)), None))
    await asyncio.sleep(0.01)
    first, *others = runner.arrived.values()
    assert len(others) == 2
    first.set()  # the end token; the others are behind it
    for _ in range(aborts):
        await asyncio.sleep(0.01)
        reading.cancel()
    if aborts == 1:
        for other in others:
            await asyncio.sleep(0.01)
            assert leases.current is not None
            other.set()
    async with asyncio.timeout(5):
        await asyncio.wait([reading])
    assert reading.cancelled()
    assert leases.current is None
    assert not lock.locked()
