"""What checks of the kernels leave for the next visit, and what an engine is handed of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pyapp.door.services import NotesInMemory
from pyapp.door.verdicts import KEPT_SECONDS, Verdicts
from pyapp.errors import DeviceLost
from tests.unit.door_fakes import World
from tests.unit.test_client import collect, opened, text_of

WRONG = DeviceLost("This GPU computes wrong results (test).", kind="wrong_result")


def verdicts(world: World, browser: str = "Browser 1") -> Verdicts:
    return Verdicts(replace(world.services(), browser=browser))


async def test_a_verdict_counts_for_its_kernels_adapter_and_browser_for_a_week() -> None:
    world = World()
    first = verdicts(world).on("GPU")
    assert not await first.passed("kernels")
    await first.keep("kernels")
    assert await first.passed("kernels")
    world.wall += KEPT_SECONDS - 1
    assert await verdicts(world).on("GPU").passed("kernels")
    assert not await verdicts(world).on("GPU").passed("others")
    assert not await verdicts(world).on("another GPU").passed("kernels")
    assert not await verdicts(world, "Browser 2").on("GPU").passed("kernels")
    world.wall += 1
    assert not await verdicts(world).on("GPU").passed("kernels")


@pytest.mark.parametrize("kept", [None, "yes", [], 1e300])
async def test_what_makes_no_sense_is_no_verdict(kept: Any) -> None:
    world = World()
    await verdicts(world).on("GPU").keep("kernels")
    [name] = world.notes.values
    world.notes.values[name] = kept
    assert not await verdicts(world).on("GPU").passed("kernels")


async def test_a_failure_takes_back_what_was_relied_on_and_nothing_else() -> None:
    world = World()
    mine = verdicts(world)
    await mine.on("GPU").keep("kernels")
    await verdicts(world).on("GPU").keep("other kernels")
    mine.forget()
    assert not await mine.on("GPU").passed("kernels"), "asked at once, it waits for the note to be gone"
    assert await verdicts(world).on("GPU").passed("other kernels")


class BrokenNotes(NotesInMemory):
    async def load(self, name: str) -> Any:
        raise OSError("no storage")

    async def save(self, name: str, value: Any) -> None:
        raise OSError("no storage")


async def test_storage_that_fails_means_another_check() -> None:
    world = World(notes=BrokenNotes())
    mine = verdicts(world)
    await mine.on("GPU").keep("kernels")
    assert not await mine.on("GPU").passed("kernels")
    mine.forget()
    await mine.settle()


async def test_an_engine_is_handed_the_verdicts_of_its_adapter_and_a_rebuild_finds_none() -> None:
    world = World()
    client = await opened(world, mode="only_on_device", cloud=None)
    await world.wishes["verdicts"].keep("kernels")
    [name] = world.notes.values
    assert "Fake GPU" in name
    world.engine.fail_at, world.engine.error = 2, DeviceLost("The GPU was lost (test).")
    assert text_of(await collect(client)) == "Hello"
    assert len(world.made) == 2
    assert not await world.wishes["verdicts"].passed("kernels")
    await client.close()
    assert world.notes.values.get(name) is None


async def test_shapes_with_which_an_opening_fails_are_not_taken_again() -> None:
    """They were chosen at an earlier start, and one of their kernels may be what computes wrong."""
    world = World()
    client = await opened(world, tune=True, mode="only_on_device", cloud=None)
    await world.wishes["shapes"].keep({"product": [16, 4, 128]})
    await client.close()
    after = World(notes=world.notes, wall=world.wall)
    services = after.services()

    async def create_engine(**wishes: Any) -> Any:
        assert await wishes["shapes"].load() == {"product": [16, 4, 128]}
        raise WRONG

    after.services = lambda: replace(services, create_engine=create_engine)  # type: ignore[method-assign]
    with pytest.raises(DeviceLost, match="computes wrong results"):
        await opened(after, tune=True, mode="only_on_device", cloud=None)
    for _ in range(9):  # it is forgotten beside what goes on
        await asyncio.sleep(0)
    [name] = [name for name in after.notes.values if name.startswith("shapes")]
    assert after.notes.values[name] is None


async def test_no_shapes_are_tried_unless_somebody_asks_for_it() -> None:
    world = World()
    await opened(world)
    assert world.wishes["shapes"] is None


async def test_wrong_results_are_not_cured_by_a_rebuild() -> None:
    """The text shown until then is kept, the cloud goes on, and the device is left alone, on the next visit too."""
    world = World()
    world.engine.fail_at, world.engine.error = 2, WRONG
    client = await opened(world)
    events = await collect(client)
    assert text_of(events) == "Hello"
    assert next(event["source"] for event in events if event["type"] == "text") == "device"
    assert events[-1]["source"] == "cloud"
    assert text_of(await collect(client)) == "Hello"
    assert len(world.made) == 1
    assert client.status["reason"] == WRONG.message
    await client.close()
    after = World(notes=world.notes, wall=world.wall)
    client = await opened(after)
    assert (await collect(client))[-1]["source"] == "cloud"
    assert after.made == []


async def test_kernels_found_wrong_at_a_rebuild_end_the_rebuilds() -> None:
    world = World()
    world.engine.fail_at, world.engine.error = 2, DeviceLost("The GPU was lost (test).")
    world.later = [WRONG]
    client = await opened(world, mode="only_on_device", cloud=None)
    with pytest.raises(DeviceLost, match="computes wrong results") as caught:
        await collect(client)
    assert caught.value.details["kind"] == "wrong_result"
    assert len(world.made) == 1
    with pytest.raises(DeviceLost, match="computes wrong results"):
        await collect(client)
