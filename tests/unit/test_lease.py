"""Leases: first come, first served, and whatever is cancelled, times out or fails leaves nothing held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.errors import BadArgument, LeaseTimeout, StaleLease
from pyapp.gpu.lease import Lease, LeaseCoordinator


class Log:
    """A coordinator whose hooks write down what happens; ``pause`` makes each hook take so many turns of the loop."""

    def __init__(self, pause: int = 0) -> None:
        self.events: list[str] = []
        self.pause = pause
        self.fail_enter: set[str] = set()
        self.fail_leave: set[str] = set()
        self.inside: str | None = None
        self.leases = LeaseCoordinator(self._enter, self._leave)

    async def _enter(self, model: str) -> None:
        assert self.inside is None, f"{model} enters while {self.inside} is inside"
        self.inside = model
        self.events.append(f"enter {model}")
        for _ in range(self.pause):
            await asyncio.sleep(0)
        if model in self.fail_enter:
            raise RuntimeError(f"{model} cannot enter")

    async def _leave(self, model: str) -> None:
        assert self.inside == model
        self.events.append(f"leave {model}")
        for _ in range(self.pause):
            await asyncio.sleep(0)
        self.inside = None
        self.events.append(f"left {model}")
        if model in self.fail_leave:
            raise RuntimeError(f"{model} cannot leave")

    async def work(self, model: str, turns: int = 0, **options: Any) -> None:
        async with self.leases.lease(model, **options):
            self.events.append(f"run {model}")
            for _ in range(turns):
                await asyncio.sleep(0)

    async def until(self, event: str) -> None:
        for _ in range(100):
            if event in self.events:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{event} never came: {self.events}")

    async def is_free(self) -> None:
        """Somebody who comes now gets the turn at once, once those who leave have left."""
        async with asyncio.timeout(5):
            await self.work("last")
        assert self.leases.current is None
        assert self.leases.waiting == 0
        assert self.inside is None


def runs(log: Log) -> list[str]:
    return [event.split()[1] for event in log.events if event.startswith("run")]


async def settle(turns: int = 10) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_first_come_first_served() -> None:
    log = Log(pause=2)
    names = [f"m{i}" for i in range(6)]
    await asyncio.gather(*(log.work(name, turns=i % 3) for i, name in enumerate(names)))
    assert log.events == [f"{word} {name}" for name in names for word in ("enter", "run", "leave", "left")]
    await log.is_free()


async def test_who_comes_back_queues_behind_those_who_wait() -> None:
    log = Log()

    async def twice(model: str) -> None:
        for _ in range(3):
            await log.work(model, turns=1)

    await asyncio.gather(twice("a"), twice("b"))
    assert runs(log) == ["a", "b"] * 3


async def test_the_holder_sees_who_waits() -> None:
    log = Log()
    async with log.leases.lease("a", holder="a long text") as lease:
        assert log.leases.current is lease
        assert (lease.model, lease.holder, log.leases.waiting) == ("a", "a long text", 0)
        others = [asyncio.create_task(log.work("b")) for _ in range(2)]
        await settle()
        assert log.leases.waiting == 2
        assert runs(log) == []
    await asyncio.gather(*others)
    assert (log.leases.waiting, log.leases.current) == (0, None)


async def test_epochs_and_stale_leases() -> None:
    log = Log()
    kept: list[Lease] = []
    for model in ("a", "b", "a"):
        async with log.leases.lease(model) as lease:
            lease.check()
            kept.append(lease)
    assert [lease.epoch for lease in kept] == [1, 2, 3]
    for lease in kept:
        with pytest.raises(StaleLease, match=f"lease {lease.epoch} of {lease.model} has ended"):
            lease.check()


async def test_a_lease_is_stale_before_its_memory_is_cleared() -> None:
    seen: list[bool] = []

    async def enter(_: str) -> None: ...

    async def leave(_: str) -> None:
        assert leases.current is not None
        seen.append(leases.current.active)

    leases = LeaseCoordinator(enter, leave)
    async with leases.lease("a"):
        pass
    assert seen == [False]


async def test_nesting_is_refused_and_harms_nothing() -> None:
    log = Log()
    async with log.leases.lease("a") as lease:
        for model in ("a", "b"):
            with pytest.raises(BadArgument, match=r"lease of a already.*deadlock"):
                await log.work(model)
        lease.check()
        assert log.leases.waiting == 0
    await log.work("a")  # one after the other is no nesting
    await log.is_free()


async def test_a_child_task_waits_and_does_not_count_as_nesting() -> None:
    log = Log()
    async with log.leases.lease("a"):
        child = asyncio.create_task(log.work("b"))
        await settle()
        assert runs(log) == []
    await child
    assert runs(log) == ["b"]


async def test_waiting_in_vain_names_the_holder() -> None:
    log = Log()
    async with log.leases.lease("a", holder="a text being written"):
        # In a task of its own: this one holds the lease.
        waiter = asyncio.create_task(log.work("b", timeout=0.01))
        with pytest.raises(
            LeaseTimeout, match=r"b waited 0.01 s for the GPU, which a text being written holds"
        ) as error:
            await waiter
        assert error.value.code == "busy"
        assert error.value.details == {"holder": "a text being written", "seconds": 0.01}
        assert log.leases.waiting == 0
    assert runs(log) == []
    await log.is_free()


async def test_a_timeout_does_not_count_once_the_turn_has_come() -> None:
    log = Log()
    await log.work("a", turns=20, timeout=0)
    assert runs(log) == ["a"]


@pytest.mark.parametrize("fails", ["fail_enter", "fail_leave"])
async def test_a_hook_that_fails_passes_the_turn_on(fails: str) -> None:
    log = Log(pause=1)
    setattr(log, fails, {"bad"})
    bad, good = asyncio.create_task(log.work("bad")), asyncio.create_task(log.work("good"))
    with pytest.raises(RuntimeError, match="bad cannot"):
        await bad
    await good
    assert "left bad" in log.events  # what was made resident for nothing is cleared all the same
    assert runs(log)[-1] == "good"
    await log.is_free()


async def test_what_the_work_raises_comes_through() -> None:
    log = Log()
    with pytest.raises(ZeroDivisionError):
        async with log.leases.lease("a"):
            raise ZeroDivisionError
    await log.is_free()


@pytest.mark.parametrize("turns", range(16))
async def test_cancelled_at_any_await_nothing_stays_held(turns: int) -> None:
    """The one that is cancelled waits, enters, works or leaves, by ``turns``; those behind it get their turn."""
    log = Log(pause=3)
    first = asyncio.create_task(log.work("first", turns=2))
    victim = asyncio.create_task(log.work("victim", turns=3))
    third = asyncio.create_task(log.work("third"))
    await settle(turns)
    victim.cancel()
    await asyncio.gather(first, victim, third, return_exceptions=True)
    assert runs(log)[-1] == "third"
    await log.is_free()
    assert log.events.count("enter victim") == log.events.count("left victim")


async def test_the_next_starts_when_the_cancelled_one_has_left() -> None:
    log = Log(pause=5)
    victim = asyncio.create_task(log.work("victim"))
    await log.until("leave victim")
    after = asyncio.create_task(log.work("after"))
    await asyncio.sleep(0)
    victim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await victim
    await after
    assert log.events.index("left victim") < log.events.index("enter after")


async def test_who_was_cancelled_while_leaving_may_come_again() -> None:
    log = Log(pause=5)

    async def again() -> None:
        try:
            await log.work("a")
        except asyncio.CancelledError:
            await log.work("again")

    task = asyncio.create_task(again())
    await log.until("leave a")
    task.cancel()
    await task
    assert runs(log) == ["a", "again"]


async def test_a_timeout_and_the_turn_at_the_same_moment() -> None:
    """Whichever wins, the turn is not lost."""
    for delay in (0.0, 0.0005, 0.001, 0.0015, 0.002):
        log = Log()

        async def hold(log: Log = log, delay: float = delay) -> None:
            async with log.leases.lease("a"):
                await asyncio.sleep(delay)

        results = await asyncio.gather(hold(), log.work("b", timeout=0.001), log.work("c"), return_exceptions=True)
        assert results[2] is None
        assert results[1] is None or isinstance(results[1], LeaseTimeout)
        await log.is_free()


Step = tuple[str, int]


@given(
    st.lists(
        st.tuples(st.sampled_from(["start", "cancel", "wait", "fail"]), st.integers(0, 5)), max_size=40
    ),
    st.integers(0, 3),
)  # fmt: skip
def test_any_order_of_starts_cancellations_and_failures(steps: list[Step], pause: int) -> None:
    """Against the simplest model: those that were never cancelled run, in the order of their coming, one at a time."""

    async def play() -> None:
        log = Log(pause)
        tasks: list[asyncio.Task[None]] = []
        cancelled: set[int] = set()
        for word, number in steps:
            if word in ("start", "fail"):
                name = f"{len(tasks)}"
                if word == "fail":
                    log.fail_enter.add(name)
                tasks.append(asyncio.create_task(log.work(name, turns=number)))
            elif word == "cancel" and tasks:
                cancelled.add(number % len(tasks))
                tasks[number % len(tasks)].cancel()
            else:
                await settle(number)
        await asyncio.gather(*tasks, return_exceptions=True)
        order = [int(name) for name in runs(log)]
        assert order == sorted(order)
        missing = set(range(len(tasks))) - set(order)
        assert missing <= cancelled | {int(name) for name in log.fail_enter}
        await log.is_free()

    asyncio.run(play())


def test_the_coordinator_needs_no_running_loop_to_be_made() -> None:
    make: Callable[[], Log] = Log
    assert make().leases.waiting == 0
