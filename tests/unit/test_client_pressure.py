"""The sentinel behind the door: which turns go to the cloud before anything fails, what is said, and who comes back."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.door.options import ClientOptions
from pyapp.door.pressure import Pressure
from pyapp.errors import CloudUnavailable, ContextFull
from pyapp.routing.router import Begin, End, Note, Piece, Turn
from pyapp.routing.sentinel import CRITICAL_SECONDS, EARLIER_TURNS, MEMORY_ERRORS, RECENT_TURNS, REST_SECONDS
from pyapp.text.sampling import SamplingParams
from tests.unit.door_fakes import FakeCloud, FakeEngine, FakeGeneration, World
from tests.unit.test_client import collect, kinds, opened, text_of

LONG = "x" * 3000  # a byte is a token here
ANSWER = "a text of some thirty characters"


def talk(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]


async def turn(client: Client, *contents: str, **more: Any) -> list[Any]:
    return await collect(client, prompt=None, messages=talk(*contents), **more)


def big(**world: Any) -> World:
    return World(engine=FakeEngine(context=8192), **world)


async def test_long_context_on_a_small_device_is_the_clouds_and_a_short_one_comes_back() -> None:
    world = big(memory_gib=2.0)
    client = await opened(world)
    events = await turn(client, LONG, "b", "c")
    assert kinds(events) == ["status", "text", "text", "usage", "done"]
    assert (events[0]["code"], events[0]["source"]) == ("pressure", "cloud")
    assert "tokens long, more than the 2,048" in events[0]["message"]
    assert events[-2]["deviceTokens"] == 0
    assert events[-1]["source"] == "cloud"
    assert world.engine.prompts == [], "nothing was tried here"
    assert (await turn(client, "new"))[-1]["source"] == "device"


@pytest.mark.parametrize(
    ("memory", "options"),
    [
        (None, {}),
        (4.0, {}),
        (2.0, {"context_pressure": None}),
        (2.0, {"context_pressure": 4000}),
        (2.0, {"mode": "only_on_device"}),
        (2.0, {"cloud": None}),
    ],
)
async def test_device_writes_where_memory_or_choice_says_so(memory: float | None, options: dict[str, Any]) -> None:
    world = big(memory_gib=memory)
    events = await turn(await opened(world, **options), LONG)
    assert (kinds(events)[0], events[-1]["source"]) == ("text", "device")
    assert world.cloud.requests == []


async def test_conversation_that_has_outgrown_the_cache_moves_before_it_is_cut_short() -> None:
    room = len("[user]a[assistant]b[user]c[assistant]") + 10
    world = World(engine=FakeEngine(context=room))
    client = await opened(world)
    assert (await turn(client, "a", "b", "c", max_tokens=11))[-1]["source"] == "device"
    events = await turn(client, "a", "b", "c", max_tokens=12)
    assert (events[0]["code"], events[-1]["source"]) == ("pressure", "cloud")
    assert "room for 11 more, fewer than the 12 asked for" in events[0]["message"]
    first = await turn(client, "a" * (room - 19), max_tokens=12)
    assert (first[0]["code"], first[-1]["source"]) == ("context_short", "device"), "a first turn stays"


async def test_device_that_was_spared_writes_when_the_cloud_fails() -> None:
    world = big(memory_gib=2.0, cloud=FakeCloud(error=CloudUnavailable("down"), fail_after=1))
    events = await turn(await opened(world), LONG)
    assert [event["code"] for event in events if event["type"] == "status"] == ["pressure", "cloud_unavailable"]
    assert text_of(events) == "Hello"
    assert events[-1]["source"] == "device"


async def test_cloud_with_the_shorter_context_leaves_the_turn_to_the_device() -> None:
    world = big(memory_gib=2.0, cloud=FakeCloud(error=ContextFull("The cloud's context holds 100 tokens.")))
    events = await turn(await opened(world), LONG)
    assert (text_of(events), events[-1]["source"]) == ("Hello", "device")


async def test_prompt_too_long_for_both_is_one_error() -> None:
    world = World(memory_gib=2.0, cloud=FakeCloud(error=ContextFull("The cloud's context holds 100 tokens.")))
    with pytest.raises(ContextFull, match="the context holds 2048"):
        await turn(await opened(world), LONG)


def timed(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lets each token take as long as the list's only number says."""
    seconds = [0.02]
    following = FakeGeneration.__anext__

    async def slowly(self: FakeGeneration) -> list[int]:
        world.now += seconds[0]
        return await following(self)

    monkeypatch.setattr(FakeGeneration, "__anext__", slowly)
    return seconds


async def test_device_that_slows_down_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(engine=FakeEngine(ANSWER), cloud=FakeCloud([ANSWER]))
    seconds = timed(world, monkeypatch)
    client = await opened(world)
    told: list[dict[str, Any]] = []
    client.on_status = told.append
    for _ in range(EARLIER_TURNS + RECENT_TURNS):
        assert (await turn(client, "a"))[-1]["source"] == "device"
    seconds[0] = 0.05
    for _ in range(RECENT_TURNS - 1):
        assert (await turn(client, "a"))[-1]["source"] == "device"
    assert client.status["source"] == told[-1]["source"] == "cloud", "known before the turn"
    assert client.status["reason"] == told[-1]["reason"]
    events = await turn(client, "a")
    assert (events[0]["code"], events[-1]["source"]) == ("pressure", "cloud")
    assert "from 50 to 20 tokens a second" in events[0]["message"]
    assert events[0]["message"] == told[-1]["reason"]
    world.now += REST_SECONDS
    assert client.status["source"] == "device"
    assert (await turn(client, "a"))[-1]["source"] == "device"
    assert (await turn(client, "a"))[-1]["source"] == "cloud", "still hot"
    world.now += REST_SECONDS
    seconds[0] = 0.02
    for _ in range(3):
        assert (await turn(client, "a"))[-1]["source"] == "device"


async def test_overloaded_machine_has_the_cloud_write_until_it_is_fair() -> None:
    world = World()
    client = await opened(world)
    told: list[dict[str, Any]] = []
    client.on_status = told.append
    [hear] = world.machine
    hear("critical")
    assert client.status["source"] == "device"
    world.now += CRITICAL_SECONDS
    assert (client.status["source"], "overloaded" in client.status["reason"]) == ("cloud", True)
    events = await turn(client, "a")
    assert (events[0]["code"], events[-1]["source"]) == ("pressure", "cloud")
    hear("serious")
    assert (await turn(client, "a"))[-1]["source"] == "cloud", "not before it is fair"
    hear("fair")
    assert (told[-1]["source"], "runs on this device" in told[-1]["reason"]) == ("device", True)
    assert (await turn(client, "a"))[-1]["source"] == "device"
    await client.close()
    assert world.machine == []


async def test_status_that_changes_by_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyapp.routing.sentinel.CRITICAL_SECONDS", 0.02)
    world = World(clock=time.monotonic)
    client = await opened(world)
    told: list[dict[str, Any]] = []
    client.on_status = told.append
    world.machine[0]("critical")
    assert [status["source"] for status in told] == ["device"]
    await asyncio.sleep(0.06)
    assert [status["source"] for status in told] == ["device", "cloud"]
    world.machine[0]("critical")
    await client.close()
    count = len(told)
    await asyncio.sleep(0.04)
    assert len(told) == count, "a closed client tells nothing"


@pytest.mark.parametrize("options", [{"mode": "only_on_device"}, {"mode": "prefer_in_cloud"}, {"cloud": None}], ids=str)
async def test_machine_is_not_watched_where_no_turn_would_move(options: dict[str, Any]) -> None:
    world = World()
    await opened(world, **options)
    assert world.machine == []


async def test_emulated_gpu_is_itself_what_loads_the_machine() -> None:
    world = World()
    client = await opened(world, adapter="software")
    world.machine[0]("critical")
    world.now += CRITICAL_SECONDS
    assert client.status["source"] == "device"
    assert (await turn(client, "a"))[-1]["source"] == "device"


async def test_without_a_device_its_own_reason_is_told() -> None:
    world = World(tier="unsupported")
    client = await opened(world)
    world.machine[0]("critical")
    world.now += CRITICAL_SECONDS
    assert "no WebGPU here" in client.status["reason"]


async def test_aborted_texts_and_an_engine_with_another_room_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(engine=FakeEngine(ANSWER), cloud=FakeCloud([ANSWER]))
    seconds = timed(world, monkeypatch)
    client = await opened(world)
    for _ in range(EARLIER_TURNS + RECENT_TURNS):
        await turn(client, "a")
    seconds[0] = 0.05
    for _ in range(RECENT_TURNS):
        generation = client.generate(messages=talk("a"))
        async for event in generation:
            if event["type"] == "text":
                break
        await generation.aclose()
    assert (await turn(client, "a"))[-1]["source"] == "device"
    world.engine.room = 0.9  # as a rebuilt engine's might be
    for _ in range(2 * RECENT_TURNS):
        assert (await turn(client, "a"))[-1]["source"] == "device"


async def test_without_a_device_nothing_is_said_of_pressure() -> None:
    world = World(memory_gib=2.0, tier="unsupported")
    events = await turn(await opened(world), LONG)
    assert [event["code"] for event in events if event["type"] == "status"] == ["no_device"]


TURN = Turn(talk("a"), SamplingParams())


def hear_text(pressure: Pressure, world: World, seconds: float, waits_in_the_middle: bool = False) -> None:
    """One text of 60 pieces on the device, each after ``seconds``."""
    pressure.heard("device", Begin(5))
    for number in range(60):
        if waits_in_the_middle and number == 30:
            world.now += 100
            pressure.heard("device", Note("device_lost", "The GPU was lost; the text goes on then."))
        world.now += seconds
        pressure.heard("device", Piece("x", 1))
    pressure.heard("device", End("stop"))


def test_waiting_in_the_middle_of_a_text_is_no_slowness() -> None:
    world = World()
    pressure = Pressure(ClientOptions(), world.services(), SimpleNamespace(writer=world.engine, emulated=False))
    assert pressure.weigh(TURN) is None
    for _ in range(EARLIER_TURNS + RECENT_TURNS):
        hear_text(pressure, world, 0.02)
    for _ in range(RECENT_TURNS):
        hear_text(pressure, world, 0.02, waits_in_the_middle=True)
    assert pressure.weigh(TURN) is None
    for _ in range(RECENT_TURNS):
        hear_text(pressure, world, 0.1)
    assert pressure.weigh(TURN) is not None


def test_memory_that_runs_out_twice_in_a_conversation_is_noticed() -> None:
    world = World()
    pressure = Pressure(ClientOptions(), world.services(), SimpleNamespace(writer=world.engine, emulated=False))
    for _ in range(MEMORY_ERRORS):
        assert pressure.weigh(TURN) is None
        pressure.heard("cloud", Note("out_of_memory", "The GPU ran out of memory. The text goes on from the cloud."))
    note = pressure.weigh(TURN)
    assert note is not None
    assert (note.code, "ran out 2 times" in note.message) == ("pressure", True)
