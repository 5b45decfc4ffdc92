"""A GPU that hangs: when it is given up, what waits without being a stall, and that nothing hangs with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.door import opening, stall
from pyapp.door.faults import kind_of
from pyapp.door.stall import Watch, patience
from pyapp.errors import CloudUnavailable, DeviceLost
from tests.unit.door_fakes import FakeCloud, FakeEngine, World
from tests.unit.test_client import collect, kinds, opened, text_of

TICK = 0.002


class Stubborn:
    """A generation that hangs for ever after ``ids``, and goes on hanging ``refusals`` times when it is cancelled."""

    def __init__(self, ids: bytes, refusals: int) -> None:
        self.finish_reason = "stop"
        self._stream = self._run(ids)
        self._refusals = refusals

    def __aiter__(self) -> Stubborn:
        return self

    async def __anext__(self) -> list[int]:
        return await anext(self._stream)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _run(self, ids: bytes) -> AsyncGenerator[list[int]]:
        for token in ids:
            yield [token]
        for _ in range(self._refusals):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue  # as the engine does, which waits for the steps in flight
        await asyncio.Event().wait()


class HungEngine(FakeEngine):
    """Hangs at ``hang_at`` tokens, whatever becomes of it."""

    def __init__(self, answer: str = "Hello", *, hang_at: int = 2, refusals: int = 0) -> None:
        super().__init__(answer)
        self.hang_at, self.refusals = hang_at, refusals

    def generate(self, ids: list[int], params: Any, *, step: int = 0) -> Any:
        made = len(self.tokenizer.decode(ids).rsplit("[assistant]", 1)[1])
        return Stubborn(self.answer.encode()[made : self.hang_at], self.refusals)

    async def classify(self, pixels: Any) -> Any:
        await asyncio.Event().wait()


class Ticking(World):
    """A world whose clock goes on with each look at it, as far as the timer of a watch goes on."""

    def services(self) -> Any:
        def clock() -> float:
            self.now += stall.TICK_SECONDS
            return self.now

        return replace(super().services(), clock=clock)


@pytest.fixture(autouse=True)
def _short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "TICK_SECONDS", TICK)


async def hung(engine: FakeEngine, mode: str = "prefer_on_device") -> tuple[Client, World]:
    """A client that takes a device for stalled after some twenty ticks."""
    world = Ticking(engine=engine, cloud=FakeCloud(pieces=[*engine.answer]))
    client = await opened(world, mode=mode)
    object.__setattr__(client._device.options, "stall_seconds", 20 * TICK)
    return client, world


async def timely(work: Any) -> Any:
    async with asyncio.timeout(5):
        return await work


@pytest.mark.parametrize("refusals", [0, 1, 5])
@pytest.mark.parametrize("at", range(5))
async def test_the_cloud_goes_on_after_a_device_that_hangs(at: int, refusals: int) -> None:
    client, world = await hung(HungEngine(hang_at=at, refusals=refusals))
    events = await timely(collect(client))
    assert text_of(events) == "Hello"
    told = next(event for event in events if event["type"] == "status")
    assert told["code"] == "device_lost"
    assert "finished nothing for" in told["message"]
    assert (events[-2]["deviceTokens"], events[-2]["cloudTokens"]) == (at, 1 if at else 5)
    assert world.made[0].closed
    breaker = client._device._visits._breaker
    assert breaker is not None
    assert breaker.counts == {"stall": 1}
    await timely(client.close())


async def test_only_on_device_goes_on_with_the_next_engine() -> None:
    client, world = await hung(HungEngine(hang_at=3), mode="only_on_device")
    events = await timely(collect(client))
    assert text_of(events) == "Hello"
    assert events[-2]["deviceTokens"] == 5
    assert [engine.closed for engine in world.made] == [True, False]


async def test_the_turn_passes_on_though_the_engine_never_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CLOSE_SECONDS", 0.02)
    engine = HungEngine(refusals=3)
    engine.close_seconds = 1e9
    client, world = await hung(engine, mode="only_on_device")
    assert text_of(await timely(collect(client))) == "Hello"
    assert len(world.made) == 2
    await timely(client.close())


async def test_a_picture_that_hangs_is_looked_at_by_the_cpu() -> None:
    client, world = await hung(HungEngine())
    shown = await timely(client.describe(b"x"))
    assert shown["source"] == "cpu"
    assert world.made[0].closed


async def test_abort_of_a_text_that_hangs_ends_and_no_cloud_is_asked() -> None:
    client, world = await hung(HungEngine(refusals=2))
    aborted = asyncio.Event()
    events: list[Any] = []
    async with asyncio.timeout(5):
        async for event in client.generate(prompt="Hi", signal=aborted):
            events.append(event)
            if event["type"] == "text":
                aborted.set()
    assert kinds(events) == ["text", "usage", "done"]
    assert events[-1]["reason"] == "abort"
    assert world.cloud.requests == []
    assert text_of(await timely(collect(client))) == "Hello", "and the next text is written"


class HungOpening(Ticking):
    """A world whose engines are never made, or where ``reports`` is set after so many slow steps."""

    reports = 0
    ended = False

    def services(self) -> Any:
        async def create_engine(*, progress: Any, **_: Any) -> Any:
            for number in range(self.reports):
                await asyncio.sleep(10 * TICK)
                progress("shaders", number + 1, None)
            if self.reports:
                return self.engine
            try:
                await asyncio.Event().wait()
            finally:
                self.ended = True  # where what was taken is given back

        return replace(super().services(), create_engine=create_engine)


async def test_a_gpu_that_hangs_while_it_is_made_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LOADING_PATIENCE", 20 * TICK)
    world = HungOpening()
    with pytest.raises(DeviceLost, match="finished nothing for") as caught:
        await timely(opened(world, mode="only_on_device", stall_seconds=1))
    assert kind_of(caught.value) == "stall"
    assert world.ended
    client = await timely(opened(HungOpening(cloud=FakeCloud(error=CloudUnavailable("down"))), stall_seconds=1))
    with pytest.raises(CloudUnavailable, match=r"down.*finished nothing for"):
        await timely(collect(client))
    await timely(client.close())


async def test_loading_that_goes_on_slowly_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LOADING_PATIENCE", 20 * TICK)
    world = HungOpening()
    world.reports = 8
    client = await timely(opened(world, mode="only_on_device", stall_seconds=1))
    assert text_of(await timely(collect(client))) == "Hello"


async def test_close_does_not_wait_for_a_device_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyapp.client.CLOSE_SECONDS", 0.02)
    world = World(engine=HungEngine(refusals=1))
    client = await opened(world)
    stream = client.generate(prompt="Hi")
    await anext(stream)
    await timely(client.close())
    assert world.engine.closed


# --- what is no stall


async def quiet_for(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "come"


def watched(seconds: float | None, clock: Any, pulse: Any, lost: list[Any]) -> Watch:
    return Watch(seconds, clock, pulse, lost.append)


class Clock:
    """A clock that goes on by ``step`` with each look at it."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


async def test_waiting_that_is_long_enough_is_a_stall() -> None:
    lost: list[Any] = []
    with pytest.raises(DeviceLost, match=r"nothing for 0\.02 seconds") as caught:
        async with watched(10 * TICK, Clock(TICK), lambda: 0, lost) as watch:
            await timely(watch.wait(quiet_for(1e9)))
    assert lost == [caught.value]
    assert kind_of(caught.value) == "stall"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "what comes next in this task is not taken for cancelled"


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        (0.0, 10 * TICK),  # a machine that is asleep: the timer fires late, and once
        (TICK, None),  # nobody wants to know
    ],
)
async def test_waiting_without_end(step: float, seconds: float | None) -> None:
    lost: list[Any] = []
    async with watched(seconds, Clock(step), lambda: 0, lost) as watch:
        assert await watch.wait(quiet_for(50 * TICK)) == "come"
    assert lost == []


async def test_a_clock_that_jumps_counts_as_two_ticks_at_most() -> None:
    lost: list[Any] = []
    clock = Clock(0.0)
    async with watched(10 * TICK, clock, lambda: 0, lost) as watch:
        asyncio.get_running_loop().call_later(5 * TICK, lambda: setattr(clock, "now", 1e6))
        assert await watch.wait(quiet_for(30 * TICK)) == "come"
    assert lost == []


async def test_headway_of_any_kind_is_no_stall() -> None:
    lost: list[Any] = []
    clock = Clock(TICK)
    # Weights that come, or another model's work, once in five ticks.
    async with watched(10 * TICK, clock, lambda: int(clock.now / (5 * TICK)), lost) as watch:
        assert await watch.wait(quiet_for(100 * TICK)) == "come"
    assert lost == []


async def test_time_between_the_waits_does_not_count() -> None:
    lost: list[Any] = []
    async with watched(10 * TICK, Clock(TICK), lambda: 0, lost) as watch:
        for _ in range(5):
            assert await watch.wait(quiet_for(2 * TICK)) == "come"
            await asyncio.sleep(20 * TICK)
    assert lost == []


async def test_the_first_token_of_a_long_prompt_has_more_time() -> None:
    assert (patience(1), patience(256), patience(257), patience(2048)) == (2, 2, 3, 9)
    lost: list[Any] = []
    async with watched(10 * TICK, Clock(TICK), lambda: 0, lost) as watch:
        assert await watch.wait(quiet_for(20 * TICK), times=9) == "come"
        with pytest.raises(DeviceLost):
            await timely(watch.wait(quiet_for(1e9)))


async def test_errors_and_cancels_of_others_pass_through() -> None:
    lost: list[Any] = []

    async def fails() -> None:
        raise ValueError("other")

    async with watched(10 * TICK, Clock(0.0), lambda: 0, lost) as watch:
        with pytest.raises(ValueError, match="other"):
            await watch.wait(fails())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await watch.wait(quiet_for(1e9))
    assert lost == []
