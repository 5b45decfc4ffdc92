"""The breaker behind the door: what one visit leaves for the next, who asks it, and what opens and closes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.door.faults import kind_of
from pyapp.errors import (
    BadModel,
    BadWeights,
    CloudUnavailable,
    DeviceLost,
    NoDevice,
    OutOfMemory,
    TandemError,
)
from pyapp.routing.breaker import FIRST_WAIT, THRESHOLDS, TRIAL_SECONDS
from tests.unit.door_fakes import FakeCloud, FakeEngine, World
from tests.unit.test_client import collect, opened, text_of

LOST = THRESHOLDS["device_lost"]


def visited(before: World, **world: Any) -> World:
    """The next visit: new engines, the same notes and the same time."""
    return World(notes=before.notes, wall=before.wall, **world)


async def spoilt(world: World, times: int = LOST, error: Exception | None = None) -> World:
    """After ``times`` visits on which the device failed at its first text."""
    for _ in range(times):
        world = visited(world)
        world.engine.fail_at, world.engine.error = 0, error or DeviceLost("The GPU was lost (test).")
        world.later = [NoDevice("none for now")]
        client = await opened(world)
        assert text_of(await collect(client)) == "Hello"
        await client.close()
    return world


def asked_for_an_engine(world: World) -> bool:
    return any(line.startswith("engine") for line in world.asked)


async def test_first_visit_leaves_no_note_where_all_is_well() -> None:
    world = World()
    client = await opened(world)
    await collect(client)
    await client.close()
    assert world.notes.values == {}


async def test_device_that_fails_visit_after_visit_is_left_alone_and_nothing_is_fetched_for_it() -> None:
    world = visited(await spoilt(World()))
    client = await opened(world)
    assert client.status["source"] == "cloud"
    assert client.status["reason"] == (
        "The device is not used on this visit, since it failed on earlier ones (the GPU was lost 3 times); a visit in "
        "10 min tries it again."
    )
    assert client.status["adapter"] == "Fake GPU"
    assert world.asked == ["probe auto"], "nothing was downloaded"
    events = await collect(client)
    assert (events[0]["code"], events[-1]["source"]) == ("no_device", "cloud")
    assert (await client.describe(b"x"))["source"] == "cpu"
    assert text_of(await collect(client)) == "Hello"
    assert not asked_for_an_engine(world)


@pytest.mark.parametrize("change", [{"browser": "Fake 2"}, {"adapter": "Other GPU"}], ids=str)
async def test_other_browser_or_gpu_begins_anew(change: dict[str, str]) -> None:
    world = visited(await spoilt(World()), **change)
    assert (await collect(await opened(world)))[-1]["source"] == "device"


async def test_no_note_is_read_or_written_while_texts_are_made() -> None:
    world = World()
    client = await opened(world)
    traffic: list[str] = []

    async def load(name: str) -> Any:
        traffic.append("load")

    async def save(name: str, value: Any) -> None:
        traffic.append("save")

    world.notes.load, world.notes.save = load, save  # type: ignore[method-assign]
    for _ in range(5):
        await collect(client)
        await client.describe(b"x")
        await client.inspect.greedy([1], 3)
    await client.close()
    assert traffic == []


async def test_fewer_failures_than_the_threshold_change_nothing() -> None:
    world = visited(await spoilt(World(), LOST - 1))
    assert (await collect(await opened(world)))[-1]["source"] == "device"


async def test_trial_after_the_wait_and_its_success_closes() -> None:
    world = visited(await spoilt(World()))
    world.wall += FIRST_WAIT
    client = await opened(world)
    other_tab = await opened(visited(world))
    assert other_tab.status["source"] == "cloud", "one trial at a time"
    assert (await collect(client))[-1]["source"] == "device"
    await client.close()
    assert list(world.notes.values.values()) == [None]
    assert (await collect(await opened(visited(world))))[-1]["source"] == "device"


async def test_trial_that_fails_doubles_the_wait() -> None:
    world = visited(await spoilt(World()))
    world.wall += FIRST_WAIT
    world = visited(await spoilt(world, 1))
    world.wall += FIRST_WAIT
    assert "a visit in 10 min tries" in (await opened(world)).status["reason"]
    world = visited(world)
    world.wall += FIRST_WAIT
    assert (await opened(world)).status["source"] == "device"


@pytest.mark.parametrize("how", ["close", "abort", "bad request"])
async def test_trial_that_proved_nothing_leaves_the_next_visit_another(how: str) -> None:
    world = visited(await spoilt(World()))
    world.wall += FIRST_WAIT
    client = await opened(world)
    if how == "abort":
        signal = asyncio.Event()
        world.engine.hold_at = 2
        async for event in client.generate(prompt="Hi", signal=signal):
            if event["type"] == "text":
                signal.set()
    if how == "bad request":
        with pytest.raises(TandemError, match="context holds"):
            await collect(client, prompt="x" * 5000)
    if how == "close":
        await client.close()
    else:
        await asyncio.sleep(0.01)  # the page is left without a word
    assert (await opened(visited(world))).status["source"] == "device"


async def test_page_that_is_gone_in_the_middle_of_a_trial_blocks_it_for_no_longer_than_its_deadline() -> None:
    world = visited(await spoilt(World()))
    world.wall += FIRST_WAIT
    await opened(world)
    await asyncio.sleep(0.01)
    world = visited(world)
    world.wall += TRIAL_SECONDS - 1
    assert (await opened(world)).status["source"] == "cloud"
    world = visited(world)
    world.wall += 1
    assert (await opened(world)).status["source"] == "device"


@pytest.mark.parametrize("options", [{"mode": "only_on_device"}, {"cloud": None}])
async def test_with_nobody_else_to_write_the_breaker_is_not_asked_and_a_success_closes_it(
    options: dict[str, Any],
) -> None:
    world = visited(await spoilt(World()))
    client = await opened(world, **options)
    assert text_of(await collect(client)) == "Hello"
    await client.close()
    assert (await opened(visited(world))).status["source"] == "device"


async def test_prefer_in_cloud_takes_the_device_when_the_cloud_fails_whatever_the_breaker_says() -> None:
    world = visited(await spoilt(World()), cloud=FakeCloud(error=CloudUnavailable("down")))
    client = await opened(world, mode="prefer_in_cloud")
    assert text_of(await collect(client)) == "Hello"


async def test_within_a_visit_rebuilds_go_on_and_the_next_visit_hears_of_the_losses() -> None:
    world = World(cloud=FakeCloud(pieces=[*"Hello"]))
    engines = [world.engine, *(FakeEngine() for _ in range(LOST - 1))]
    for engine in engines:
        engine.fail_at, engine.error = 0, DeviceLost("The GPU was lost (test).")
    world.later = [*engines[1:]]
    client = await opened(world)
    for made in range(1, LOST + 1):
        async with asyncio.timeout(2):
            while len(world.made) < made or client.status["pool"] is None:  # noqa: ASYNC110 - what a page sees
                await asyncio.sleep(0.001)
        assert text_of(await collect(client)) == "Hello"
    async with asyncio.timeout(2):
        while client.status["pool"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert len(world.made) == LOST + 1, "made ready again, though the breaker is open by now"
    assert (await opened(visited(world))).status["source"] == "cloud"
    assert (await collect(client))[-1]["source"] == "device"
    assert (await opened(visited(world))).status["source"] == "device", "there is no better proof than work done"


async def test_failures_while_opening_count_too() -> None:
    world = World()
    for _ in range(THRESHOLDS["out_of_memory"]):
        world = visited(world, engine_error=OutOfMemory("The pool does not fit."))
        client = await opened(world)
        assert "does not fit" in client.status["reason"]
        await client.close()
    assert "its memory ran out 2 times" in (await opened(visited(world))).status["reason"]


async def test_damaged_weights_count_though_the_gpu_looks_at_pictures() -> None:
    world = World()
    for _ in range(THRESHOLDS["bad_weights"]):
        world = visited(world, language_error=BadWeights("A chunk is wrong.", reason="hash"))
        client = await opened(world)
        assert (await client.describe(b"x"))["source"] == "device"
        await client.close()
    assert "its weights were damaged 3 times" in (await opened(visited(world))).status["reason"]


@pytest.mark.parametrize("options", [{"pool_mib": 400}, {"model": "https://shop.example/other.gguf"}])
async def test_other_models_and_budgets_are_another_matter(options: dict[str, Any]) -> None:
    world = visited(await spoilt(World()))
    assert (await opened(world, **options)).status["source"] == "device"


class BrokenNotes:
    async def load(self, name: str) -> Any:
        raise OSError("no")

    async def save(self, name: str, value: Any) -> None:
        raise OSError("no")


async def test_notes_that_fail_keep_nobody_from_anything() -> None:
    world = World()
    world.engine.fail_at, world.engine.error = 3, DeviceLost("gone")
    services = replace(world.services(), notes=BrokenNotes())
    client = await Client.create(services=services, base="/site/")
    assert text_of(await collect(client)) == "Hello"
    await client.close()


@pytest.mark.parametrize("rubbish", [5, "x", [], {}, {"counts": 5}, {"counts": {"device_lost": 9}, "openings": True}])
async def test_rubbish_in_the_notes_counts_as_none(rubbish: Any) -> None:
    world = await spoilt(World())
    world.notes.values = dict.fromkeys(world.notes.values, rubbish)
    assert (await opened(visited(world))).status["source"] == "device"


async def test_client_that_is_closed_while_it_opens_begins_no_trial() -> None:
    world = visited(await spoilt(World()))
    world.wall += FIRST_WAIT
    before = dict(world.notes.values)
    gate = asyncio.Event()
    load = world.notes.load

    async def slow(name: str) -> Any:
        await gate.wait()
        return await load(name)

    world.notes.load = slow  # type: ignore[method-assign]
    opening = asyncio.ensure_future(opened(world))
    await asyncio.sleep(0.01)
    opening.cancel()
    await asyncio.wait([opening])
    gate.set()
    await asyncio.sleep(0.01)
    assert world.notes.values == before


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DeviceLost("gone"), "device_lost"),
        (DeviceLost("gone", kind="stall"), "stall"),
        (NoDevice("It computes rubbish.", kind="wrong_result"), "wrong_result"),
        (OutOfMemory("full"), "out_of_memory"),
        (BadWeights("damaged", repack=True), "bad_weights"),
        (BadWeights("damaged", reason="hash"), "bad_weights"),
        (BadWeights("offline", reason="network"), None),
        (BadWeights("no such file", reason="http"), None),
        (BadModel("no model"), None),
        (NoDevice("no adapter"), None),
        (CloudUnavailable("down", kind="http"), None),
    ],
)
def test_what_an_error_counts_as(error: TandemError, kind: str | None) -> None:
    assert kind_of(error) == kind
