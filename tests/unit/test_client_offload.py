"""Who writes where the pool has little room, and the list of what was decided."""

from __future__ import annotations

from typing import Any

import pytest

from pyapp.errors import CloudUnavailable
from tests.unit.door_fakes import FakeCloud, FakeEngine, World
from tests.unit.test_client import collect, kinds, opened, text_of

MIB = 1 << 20


def made(room: float, when: int = 1) -> dict[str, Any]:
    action = "resident" if room >= 1 else "stream"
    return {"when": when, "model": "language", "need": 200 * MIB, "room": int(room * 200) * MIB, "action": action}


def small(room: float, **world: Any) -> World:
    engine = FakeEngine()
    engine.room = room
    vision = {"when": 1, "model": "vision", "need": 9 * MIB, "room": 9 * MIB, "action": "resident"}
    engine.decisions = [made(room), vision]
    return World(engine=engine, **world)


async def test_little_room_sends_texts_to_the_cloud_and_keeps_photos_here() -> None:
    world = small(0.5)
    client = await opened(world)
    events = await collect(client)
    assert kinds(events) == ["text", "text", "usage", "done"]
    assert events[-1]["source"] == client.status["source"] == "cloud"
    assert (await client.describe(b"x"))["source"] == "device"
    assert client.status["reason"] == (
        "The language model needs 200 MiB of GPU memory and the pool has room for 100 MiB (50%, less than 70%), so the "
        "cloud writes, and the device when the cloud fails."
    )
    engine_s, vision_s, ours = client.status["decisions"]
    assert (engine_s["action"], vision_s["model"]) == ("stream", "vision")
    assert ours == {**made(0.5), "when": ours["when"], "action": "cloud"}
    assert ours["when"] > 1_600_000_000_000


async def test_device_with_little_room_writes_when_the_cloud_fails() -> None:
    world = small(0.5, cloud=FakeCloud(error=CloudUnavailable("down"), fail_after=1))
    events = await collect(await opened(world))
    assert text_of(events) == "Hello"
    assert events[-1]["source"] == "device"


@pytest.mark.parametrize(
    ("room", "options"),
    [
        (0.7, {}),
        (1.5, {}),
        (0.1, {"cloud_below": 0}),
        (0.5, {"cloud_below": 0.5}),
        (0.1, {"cloud": None}),
        (0.1, {"mode": "only_on_device"}),
    ],
)
async def test_device_writes_where_room_or_choice_says_so(room: float, options: dict[str, Any]) -> None:
    client = await opened(small(room), **options)
    assert (await collect(client))[-1]["source"] == "device"
    assert "cloud" not in [decision["action"] for decision in client.status["decisions"]]
    assert "runs on" in client.status["reason"]


async def test_settings_reach_the_engine() -> None:
    world = small(1)
    limits = {"maxBufferSize": 16 * MIB, "maxStorageBufferBindingSize": 4 * MIB}
    await opened(world, stream_below=1.25, limits=limits)
    assert world.wishes["stream_below"] == 1.25
    assert world.wishes["limits"] == limits
    await opened(world)
    assert (world.wishes["stream_below"], world.wishes["limits"]) == (1.0, None)


async def test_engine_without_room_for_the_vision_model_leaves_photos_to_the_cpu() -> None:
    world = small(1)
    world.engine.vision = None
    client = await opened(world)
    assert (await client.describe(b"x"))["source"] == "cpu"
    assert (await collect(client))[-1]["source"] == "device"


async def test_list_keeps_the_newest_over_all_engines() -> None:
    world = small(1)
    world.engine.decisions = [made(1, when) for when in range(40)]
    second = FakeEngine()
    second.decisions = [made(1, 100)]
    world.later = [second]
    client = await opened(world)
    assert [each["when"] for each in client.status["decisions"]] == list(range(8, 40))
    world.engine.lost.set()
    await client.inspect.plan("language")
    assert [each["when"] for each in client.status["decisions"]] == [*range(9, 40), 100]
    client.status["decisions"][0]["when"] = 7
    assert client.status["decisions"][0]["when"] == 9, "a snapshot"
    second.decisions.append(made(1, 101))
    assert client.status["decisions"][-1]["when"] == 101, "what the engine decides at work is seen as well"


async def test_new_engine_with_more_room_gets_the_texts_back() -> None:
    world = small(0.5)
    world.later = [FakeEngine()]
    client = await opened(world)
    world.engine.lost.set()
    await client.inspect.plan("language")
    assert (await collect(client))[-1]["source"] == "device"
