"""A client that is there before its models: who writes and looks meanwhile, and how the device comes in."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.door.generation import Generation
from pyapp.door.options import ClientOptions
from pyapp.door.services import Progress
from pyapp.door.site import Site
from pyapp.errors import BadWeights, Closed, CloudUnavailable, ContextFull, NoDevice
from pyapp.routing.breaker import THRESHOLDS
from pyapp.routing.router import Part
from tests.unit.door_fakes import FakeCloud, World
from tests.unit.test_client import collect, opened, text_of


def loading(**world: Any) -> World:
    """A world whose models do not come before ``arrival`` is set."""
    return World(arrival=asyncio.Event(), **world)


async def arrived(world: World, client: Client) -> None:
    world.arrival.set()
    async with asyncio.timeout(2):
        while client.status["loading"]:  # noqa: ASYNC110 - what a page sees
            await asyncio.sleep(0.001)


async def fetching(world: World, model: str) -> None:
    """Waits until this model is asked for."""
    async with asyncio.timeout(2):
        while not any(model in line for line in world.asked):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def until_it_waits(writing: Generation) -> list[Any]:
    """The events up to the one that says that the text waits for the device."""
    events: list[Any] = [await anext(writing)]
    while "then." not in events[-1].get("message", ""):
        events.append(await anext(writing))
    return events


async def test_cloud_writes_at_once_and_the_device_from_the_next_turn_on() -> None:
    world = loading()
    told: list[dict[str, Any]] = []
    async with asyncio.timeout(1):
        client = await opened(world)
    client.on_status = told.append
    status = client.status
    assert (status["source"], status["loading"], status["adapter"]) == ("cloud", True, "Fake GPU")
    assert "still being loaded" in status["reason"]
    events = await collect(client)
    assert (events[0]["type"], events[0]["code"], events[0]["source"]) == ("status", "loading", "cloud")
    assert events[0]["message"] == (
        "This device is being made ready: its models are still being loaded. The text is written from the cloud."
    )
    assert (text_of(events), events[-1]["source"], events[-2]["deviceTokens"]) == ("Hello", "cloud", 0)
    await arrived(world, client)
    await asyncio.sleep(0)
    assert (told[-1]["source"], told[-1]["loading"]) == ("device", False)
    assert "runs on this device" in told[-1]["reason"]
    events = await collect(client)
    assert [event["type"] for event in events] == ["text"] * 5 + ["usage", "done"]
    assert events[-1]["source"] == "device"


async def test_text_that_the_cloud_has_begun_stays_there() -> None:
    world = loading(cloud=FakeCloud(hold_after=1))
    client = await opened(world)
    writing = client.generate(prompt="Hi")
    for _ in range(2):  # why it writes, and what
        assert (await anext(writing))["source"] == "cloud"  # type: ignore[typeddict-item]
    await arrived(world, client)
    assert world.engine.prompts == []
    await writing.aclose()
    assert (await collect(client))[-1]["source"] == "device"


async def test_photo_is_looked_at_on_the_cpu_meanwhile() -> None:
    world = loading()
    client = await opened(world)
    looking = asyncio.ensure_future(client.describe(b"x"))
    await fetching(world, "efficientnet")
    assert not looking.done(), "the vision model is on its way as well"
    await arrived(world, client)
    assert (await looking)["source"] == "cpu"
    assert (await client.describe(b"x"))["source"] == "device"


async def test_progress_of_models_that_come_together_is_one() -> None:
    world = loading()
    reports: list[dict[str, Any]] = []
    client = await opened(world, on_progress=reports.append)
    looking = asyncio.ensure_future(client.describe(b"x"))
    await fetching(world, "efficientnet")
    assert [(each["loaded"], each["total"]) for each in reports] == [(5, 10), (10, 20)]
    await arrived(world, client)
    await looking


async def test_what_is_stored_is_told_as_a_download_only_while_the_other_model_is_one() -> None:
    heard: dict[str, Progress] = {}

    async def ensure_model(url: str, progress: Progress) -> None:
        heard[url.split("/")[-2]] = progress

    told: list[tuple[str, int, int | None]] = []
    services = dataclasses.replace(World().services(), ensure_model=ensure_model)
    site = Site(ClientOptions(), services, "https://shop.example/", lambda *report: told.append(report))
    await site.language()
    await site.vision(fresh=True)
    language, vision = heard["smollm2-135m"], heard["efficientnet-lite0"]
    for tell, stage, here, of in (
        (language, "stored", 10, 10),
        (vision, "stored", 0, 5),
        (vision, "weights", 1, 5),
        (language, "stored", 10, 10),
        (vision, "weights", 5, 5),
        (language, "stored", 10, 10),
    ):
        tell(stage, here, of)
    assert told == [
        ("stored", 10, 10),
        ("stored", 10, 15),
        ("weights", 11, 15),
        ("weights", 11, 15),
        ("weights", 15, 15),
        ("stored", 15, 15),
    ]


async def test_a_download_that_broke_off_is_none_any_more() -> None:
    async def ensure_model(url: str, progress: Progress) -> None:
        if "smollm2" in url:
            progress("weights", 40, 100)
            raise BadWeights("The server is gone.")
        progress("stored", 5, 5)

    told: list[tuple[str, int, int | None]] = []
    services = dataclasses.replace(World().services(), ensure_model=ensure_model)
    site = Site(ClientOptions(), services, "https://shop.example/", lambda *report: told.append(report))
    with pytest.raises(BadWeights):
        await site.language()
    await site.vision(fresh=True)
    assert told == [("weights", 40, 100), ("stored", 5, 5)]


async def test_text_that_is_too_long_for_the_cloud_waits_for_the_device() -> None:
    world = loading(cloud=FakeCloud(error=ContextFull("The cloud's context holds 100 tokens.")))
    client = await opened(world)
    writing = client.generate(prompt="Hi")
    events = await until_it_waits(writing)
    world.arrival.set()
    events += [event async for event in writing]
    assert (text_of(events), events[-1]["source"]) == ("Hello", "device")


@pytest.mark.parametrize("fail_after", [0, 1])
async def test_text_waits_for_the_device_where_the_cloud_fails(fail_after: int) -> None:
    world = loading(cloud=FakeCloud(error=CloudUnavailable("The gateway is down."), fail_after=fail_after))
    client = await opened(world)
    writing = client.generate(prompt="Hi")
    events = await until_it_waits(writing)
    await arrived(world, client)
    events += [event async for event in writing]
    assert text_of(events) == "Hello"
    codes = [event["code"] for event in events if event["type"] == "status"]
    assert codes == ["loading", "cloud_unavailable", "loading"]
    assert events[-1]["source"] == "device"


async def test_download_that_fails_leaves_the_cloud_and_says_why() -> None:
    errors = {name: BadWeights(f"{name} is wrong.") for name in ("smollm2-135m", "efficientnet-lite0")}
    world = loading(model_errors=errors)
    told: list[dict[str, Any]] = []
    client = await opened(world)
    client.on_status = told.append
    await arrived(world, client)
    await asyncio.sleep(0)
    assert (told[-1]["source"], told[-1]["loading"]) == ("cloud", False)
    assert told[-1]["reason"] == "smollm2-135m is wrong."
    events = await collect(client)
    assert [event["code"] for event in events if event["type"] == "status"] == ["bad_weights"]


async def test_device_that_cannot_be_made_ready_is_no_hope_for_a_text_that_waits() -> None:
    world = loading(cloud=FakeCloud(error=CloudUnavailable("down")), engine_error=NoDevice("The driver refused."))
    client = await opened(world)
    writing = client.generate(prompt="Hi")
    await until_it_waits(writing)
    world.arrival.set()
    with pytest.raises(CloudUnavailable, match=r"down. This device cannot answer either: The driver refused."):
        await anext(writing)


async def test_device_that_fails_while_the_cloud_is_asked_is_told_as_it_is_by_then() -> None:
    cloud = FakeCloud(error=CloudUnavailable("down"))
    world = loading(cloud=cloud, engine_error=NoDevice("The driver refused."))
    client = await opened(world)
    stream = cloud.stream

    async def late(*request: Any) -> AsyncGenerator[Part]:
        await arrived(world, client)
        async for part in stream(*request):
            yield part

    cloud.stream = late  # type: ignore[assignment,method-assign]
    with pytest.raises(CloudUnavailable, match=r"down. This device cannot answer either: The driver refused."):
        await collect(client)


@pytest.mark.parametrize(
    "options", [{"cloud_while_loading": False}, {"cloud": None}, {"mode": "only_on_device"}], ids=str
)
async def test_create_waits_where_it_is_to_or_nobody_else_writes(options: dict[str, Any]) -> None:
    world = loading()
    opening = asyncio.ensure_future(opened(world, **options))
    await asyncio.sleep(0.01)
    assert not opening.done()
    world.arrival.set()
    client = await opening
    assert (client.status["source"], client.status["loading"]) == ("device", False)
    assert (await collect(client))[-1]["source"] == "device"
    assert world.cloud.requests == []


async def test_nothing_is_loaded_where_no_device_is_to_be_expected() -> None:
    world = loading(tier="unsupported")
    client = await opened(world)
    assert (client.status["source"], client.status["loading"]) == ("cloud", False)
    assert world.asked == ["probe auto"]


async def test_close_breaks_the_download_off() -> None:
    world = loading()
    client = await opened(world)
    await client.close()
    assert (world.broken_off, world.made) == (1, [])
    assert (client.status["source"], client.status["loading"]) == ("cloud", False)
    with pytest.raises(Closed):
        await collect(client)


async def test_close_while_an_engine_is_made_closes_what_comes_of_it() -> None:
    world = loading()
    world.made.append(world.engine)  # so that making the next one takes a while
    client = await opened(world)
    world.arrival.set()
    while not any(line.startswith("engine") for line in world.asked):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await client.close()
    await asyncio.sleep(2 * world.seconds)
    assert [engine.closed for engine in world.made[1:]] == [True]


async def test_cancelled_create_breaks_the_download_off_too() -> None:
    world = loading()
    opening = asyncio.ensure_future(opened(world, mode="only_on_device"))
    await fetching(world, "smollm2")
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert world.broken_off == 1


async def test_looking_inside_waits_and_a_map_of_nothing_says_that_it_is_to_come() -> None:
    world = loading()
    client = await opened(world)
    ids = asyncio.ensure_future(client.inspect.tokenize("ab"))
    with pytest.raises(NoDevice, match="still being loaded") as caught:
        await client.inspect.memory()
    assert caught.value.details["cause"]["code"] == "loading"
    assert not ids.done()
    await arrived(world, client)
    assert await ids == [97, 98]


async def test_visit_that_is_left_while_it_loads_counts_for_nothing() -> None:
    world = loading()
    for _ in range(2 * max(THRESHOLDS.values())):
        client = await opened(World(notes=world.notes, arrival=world.arrival))
        await client.close()
    assert world.notes.values == {}
