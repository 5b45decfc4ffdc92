"""A GPU that goes away while it is at work: what is shown, what is made again, and how often."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.errors import (
    BadWeights,
    Closed,
    CloudUnavailable,
    DeviceLost,
    LeaseTimeout,
    NoDevice,
    OutOfMemory,
    TandemError,
)
from tests.unit.door_fakes import FakeCloud, FakeEngine, World
from tests.unit.test_client import collect, kinds, opened, text_of

TEXT = "aé 茶🙂z"
BYTES = len(TEXT.encode())
LOST = "The GPU was lost"


def losing(*fail_at: int | None, answer: str = TEXT) -> World:
    """A world whose engines are lost before those tokens of the answer, one after the other; None: never."""
    engines = [FakeEngine(answer) for _ in fail_at]
    for engine, at in zip(engines, fail_at, strict=True):
        engine.fail_at, engine.error = at, DeviceLost(f"{LOST} (test).")
    return World(engine=engines[0], later=[*engines[1:]], cloud=FakeCloud(pieces=[*answer]))


async def settled(client: Client) -> None:
    """Waits until the device is there again, and everybody has been told."""
    async with asyncio.timeout(5):
        while client.status["pool"] is None:  # noqa: ASYNC110 - what a page sees
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.001)


def notes(events: list[Any]) -> list[str]:
    return [event["code"] for event in events if event["type"] == "status"]


# --- only on the device: the stream waits


@pytest.mark.parametrize("at", range(BYTES + 1))
async def test_stream_goes_on_after_the_very_tokens_made(at: int) -> None:
    world = losing(at, None)
    client = await opened(world, mode="only_on_device")
    events = await collect(client, max_tokens=100)
    whole = await collect(await opened(World(engine=FakeEngine(TEXT)), mode="only_on_device"), max_tokens=100)
    assert [event for event in events if event["type"] != "status"] == whole, "as if nothing had happened"
    assert notes(events) == ["device_lost"]
    told = next(event for event in events if event["type"] == "status")
    shown = "".join(event["text"] for event in events[: events.index(told)])
    assert shown == TEXT.encode()[:at].decode(errors="ignore")
    assert ("goes on then" if at else "begins then") in told["message"]
    first, second = world.made
    assert second.ids == [first.ids[0] + list(TEXT.encode()[:at])]
    assert second.steps == [at]
    assert second.limits == [100 - at]
    assert first.closed
    assert not second.closed
    assert world.cloud.requests == []


async def test_several_losses_in_one_answer() -> None:
    world = losing(1, 1, 4, 9, None)
    client = await opened(world, mode="only_on_device")
    events = await collect(client)
    assert text_of(events) == TEXT
    assert notes(events) == ["device_lost"] * 4
    assert events[-2]["deviceTokens"] == events[-2]["completionTokens"] == BYTES
    assert [engine.closed for engine in world.made] == [True] * 4 + [False]


@pytest.mark.parametrize(("at", "shown"), [(3, "aé"), (0, "")])
async def test_device_that_fails_again_and_again_at_the_same_token_is_not_waited_for(at: int, shown: str) -> None:
    world = losing(at, at, at, at, None)
    client = await opened(world, mode="only_on_device", rebuilds_per_hour=20)
    events: list[Any] = []

    async def read() -> None:
        async for event in client.generate(prompt="Hi"):
            events.append(event)  # noqa: PERF401 (what came before the error counts)

    with pytest.raises(DeviceLost, match=LOST):
        await read()
    assert text_of(events) == shown
    assert len(world.made) <= 3 + (at > 0), "with the one that is made ready for the next text"
    await client.close()


async def test_loss_after_the_last_token_allowed_asks_for_no_more() -> None:
    world = losing(3, None)
    events = await collect(await opened(world, mode="only_on_device"), max_tokens=3)
    assert events[-1]["reason"] == "length"
    assert world.made[1].ids == []


async def test_half_a_character_at_the_end_is_shown_once() -> None:
    world = losing(2, None, answer="a茶")
    events = await collect(await opened(world, mode="only_on_device"), max_tokens=3)
    assert text_of(events) == "a�"
    assert events[-2]["deviceTokens"] == 3


async def test_without_a_cloud_prefer_on_device_waits_too() -> None:
    events = await collect(await opened(losing(2, None), cloud=None))
    assert text_of(events) == TEXT
    assert notes(events) == ["device_lost"]


async def test_rebuild_that_fails_is_told_and_tried_again_after_a_while() -> None:
    world = losing(2)
    world.later = [NoDevice("The browser found no adapter."), NoDevice("Still none.")]
    client = await opened(world, mode="only_on_device")
    with pytest.raises(DeviceLost, match=r"could not be made ready again: The browser found no adapter; .* in 5 s"):
        await collect(client)
    with pytest.raises(DeviceLost, match="in 5 s"):
        await collect(client)
    assert client.status["pool"] is None
    assert "in 5 s" in client.status["reason"]
    assert len(world.later) == 1, "not before its time"
    world.now += 5
    with pytest.raises(DeviceLost, match=r"Still none; .* in 10 s"):
        await collect(client)
    world.now += 10
    assert text_of(await collect(client)) == TEXT
    assert client.status["source"] == "device"


async def test_rebuilds_an_hour_are_capped() -> None:
    world = losing(1, 2, 3)
    client = await opened(world, mode="only_on_device", rebuilds_per_hour=2)
    with pytest.raises(DeviceLost, match=r"rebuilt 2 times within the hour, the most allowed; next in 60 min"):
        await collect(client)
    assert len(world.made) == 3
    world.now += 3600
    assert text_of(await collect(client)) == TEXT


async def test_no_rebuilds_where_none_are_wanted() -> None:
    world = losing(1)
    client = await opened(world, mode="only_on_device", rebuilds_per_hour=0)
    with pytest.raises(DeviceLost, match="switched off"):
        await collect(client)
    assert len(world.made) == 1
    assert world.engine.closed


# --- prefer on the device: the cloud goes on at once


async def test_cloud_goes_on_at_once_and_the_device_answers_the_next_turn() -> None:
    world = losing(3, None)
    told: list[dict[str, Any]] = []
    client = await opened(world)
    client.on_status = told.append
    world.seconds = 1.0
    events = await collect(client)
    assert text_of(events) == TEXT
    assert events[-1]["source"] == "cloud"
    assert len(world.made) == 1, "the cloud did not wait for the rebuild"
    during = await collect(client)
    assert kinds(during)[0] == "status"
    assert (during[0]["code"], during[-1]["source"]) == ("device_lost", "cloud")
    assert "is being made ready again. The text is written from the cloud." in during[0]["message"]
    assert "is being made ready again" in client.status["reason"]
    assert client.status["source"] == "cloud"
    assert (await client.describe(b"x"))["source"] == "cpu"
    await settled(client)
    assert told[-1]["source"] == "device"
    after = await collect(client)
    assert (after[-1]["source"], notes(after)) == ("device", [])
    assert (await client.describe(b"x"))["source"] == "device"
    assert world.asked.count("probe auto") == 2, "one rebuild, on an adapter of its own"


async def test_loss_between_calls_rebuilds_once_in_the_background() -> None:
    world = losing(None, None)
    client = await opened(world)
    world.engine.lost.set()
    await asyncio.sleep(0.001)
    assert client.status["source"] == "cloud"
    await settled(client)
    assert len(world.made) == 2
    assert world.made[0].closed
    assert (await collect(client))[-1]["source"] == "device"


@pytest.mark.parametrize("cloud_says", [0, 2])
async def test_cloud_that_fails_during_the_rebuild_leaves_it_to_the_device(cloud_says: int) -> None:
    world = losing(3, None, answer="Hello world")
    world.cloud = FakeCloud(["Hel", "l", "o", " w"], error=CloudUnavailable("The gateway is down."))
    # The cloud's pieces after what was shown come as one; so it says "lo w" or nothing.
    world.cloud.fail_after = cloud_says
    client = await opened(world)
    events = await collect(client, max_tokens=50)
    assert text_of(events) == "Hello world"
    assert notes(events) == ["device_lost", "cloud_unavailable", "device_lost"]
    assert events[-1]["source"] == "device"
    assert bytes(world.made[1].ids[0]).endswith(b"[assistant]Hel" + (b"lo w" if cloud_says else b""))


async def test_cloud_that_fails_where_no_rebuild_is_possible_is_told_with_both() -> None:
    world = losing(3)
    world.cloud.error = CloudUnavailable("The gateway is down.")
    client = await opened(world, rebuilds_per_hour=0)
    with pytest.raises(CloudUnavailable, match=rf"gateway is down\. This device cannot answer either: {LOST}"):
        await collect(client)


async def test_photo_that_meets_a_loss_is_looked_at_by_the_cpu_and_the_next_by_the_device() -> None:
    world = losing(None, None)
    client = await opened(world)
    world.engine.vision_error = DeviceLost("gone")
    assert (await client.describe(b"x"))["source"] == "cpu"
    await settled(client)
    assert (await client.describe(b"x"))["source"] == "device"


async def test_inspect_waits_for_the_rebuild() -> None:
    world = losing(None, None)
    client = await opened(world)
    world.engine.lost.set()
    await asyncio.sleep(0.001)
    assert (await client.inspect.plan("language"))["dispatchesPerLayer"] == 5
    assert len(world.made) == 2


# --- what is a loss, and what is none


@pytest.mark.parametrize(
    ("error", "rebuilt"),
    [
        (DeviceLost("The GPU stopped answering while running the language model (AbortError)."), True),
        (BadWeights("A block is not what was stored.", repack=True), True),
        (BadWeights("A chunk has a wrong hash."), False),
        (OutOfMemory("The GPU ran out of memory."), True),
        (NoDevice("The GPU refused a buffer."), False),
        (ZeroDivisionError("a fault of ours"), False),
    ],
)
async def test_only_what_a_new_engine_may_cure_is_rebuilt(error: Exception, rebuilt: bool) -> None:
    world = losing(3, None)
    client = await opened(world)
    world.engine.error = error
    assert text_of(await collect(client)) == TEXT
    await asyncio.sleep(0.05)
    assert len(world.made) == 1 + rebuilt
    assert world.engine.closed
    assert client.status["source"] == ("device" if rebuilt else "cloud")


async def test_waiting_in_vain_for_a_lease_says_nothing_against_the_device() -> None:
    world = World()
    client = await opened(world)
    world.engine.vision_error = LeaseTimeout("vision waited 5 s for the GPU.", holder="a text")
    assert (await client.describe(b"x"))["source"] == "cpu"
    world.engine.vision_error = None
    assert (await client.describe(b"x"))["source"] == "device"
    assert len(world.made) == 1


async def test_failure_of_the_cloud_says_nothing_against_the_device() -> None:
    world = World(cloud=FakeCloud(error=CloudUnavailable("down")))
    client = await opened(world, mode="prefer_in_cloud")
    assert text_of(await collect(client)) == "Hello"
    assert client.status["pool"] is not None
    assert not world.engine.closed


# --- aborts and closing while the rebuild is under way


async def test_abort_while_the_stream_waits_ends_as_one_and_holds_nothing() -> None:
    world, signal = losing(3, None), asyncio.Event()
    world.seconds = 0.2
    client = await opened(world, mode="only_on_device")
    events: list[Any] = []
    async for event in client.generate(prompt="Hi", signal=signal):
        events.append(event)
        if event["type"] == "status":
            signal.set()
    assert events[-1]["reason"] == "abort"
    assert events[-2]["deviceTokens"] == 3
    assert client.status["pool"] is None, "it did not wait"
    await settled(client)
    assert text_of(await collect(client)) == TEXT


@pytest.mark.parametrize("mode", ["only_on_device", "prefer_on_device"])
async def test_close_during_a_rebuild_closes_the_engine_that_comes(mode: str) -> None:
    world = losing(2, None)
    client = await opened(world, mode=mode)
    writing = asyncio.ensure_future(collect(client))
    async with asyncio.timeout(2):
        while not world.engine.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await client.close()
    if mode == "only_on_device":
        with pytest.raises(Closed):
            await asyncio.wait_for(writing, 1)
    else:
        await asyncio.wait([writing])
    await asyncio.sleep(0.05)
    assert all(engine.closed for engine in world.made)
    with pytest.raises(Closed):
        await collect(client)


async def test_two_texts_at_a_loss_share_one_rebuild() -> None:
    world = losing(3, None)
    client = await opened(world, mode="only_on_device")
    both = await asyncio.gather(collect(client, prompt="a"), collect(client, prompt="b"))
    assert [text_of(events) for events in both] == [TEXT] * 2
    assert len(world.made) == 2


async def test_error_type_of_a_failed_rebuild_is_a_loss_with_its_cause() -> None:
    world = losing(1)
    world.later = [OutOfMemory("The pool does not fit.", need=5)]
    client = await opened(world, mode="only_on_device")
    with pytest.raises(TandemError) as caught:
        await collect(client)
    assert caught.value.code == "device_lost"
    assert caught.value.details["cause"]["code"] == "out_of_memory"


async def test_late_word_of_an_engine_that_is_gone_does_not_harm_the_next() -> None:
    world = losing(None, None)
    client = await opened(world)
    world.engine.lost.set()
    await client.inspect.plan("language")
    client._device._failed(world.engine, DeviceLost("The GPU was lost, says another call."))
    assert client.status["source"] == "device"
    assert not world.made[1].closed


async def test_success_ends_the_growing_delay() -> None:
    world = losing(1, 1)
    world.later = [NoDevice("none"), world.later[0], NoDevice("none again")]
    client = await opened(world, mode="only_on_device")
    with pytest.raises(DeviceLost, match="in 5 s"):
        await collect(client)
    world.now += 5
    with pytest.raises(DeviceLost, match=r"none again; .* in 5 s"):
        await collect(client)


async def test_language_model_that_cannot_be_had_for_the_rebuild_is_a_passing_trouble() -> None:
    world = losing(None)
    client = await opened(world)
    world.model_errors["smollm2-135m"] = BadWeights("The manifest cannot be read.")
    world.engine.lost.set()
    await asyncio.sleep(0.03)
    assert "could not be made ready again: The manifest cannot be read; " in client.status["reason"]
    world.model_errors.clear()
    world.now += 5
    assert (await collect(client))[-1]["source"] == "cloud"
    await settled(client)
    assert (await collect(client))[-1]["source"] == "device"


# --- the cloud goes first


async def test_a_rebuild_begins_once_the_cloud_has_begun() -> None:
    world = losing(2, None)
    world.cloud.hold_after = 0  # it has been asked, and thinks
    client = await opened(world, mode="prefer_on_device")
    reading = asyncio.ensure_future(collect(client))
    await asyncio.sleep(0.1)
    assert world.cloud.requests
    assert len(world.made) == 1, "making a device ready keeps Python from passing on what the cloud says"
    assert world.made[0].closed
    reading.cancel()
    await client.close()
    world = losing(2, None)
    client = await opened(world, mode="prefer_on_device")
    await collect(client)
    async with asyncio.timeout(0.5):
        await settled(client)
    assert len(world.made) == 2


@pytest.mark.parametrize("error", [None, CloudUnavailable("The gateway is down (test).")])
async def test_a_rebuild_waits_no_longer_than_somebody_waits_for_the_cloud(error: CloudUnavailable | None) -> None:
    world = losing(2, None)
    world.cloud.error = error
    world.cloud.hold_after = None if error else 0
    client = await opened(world, mode="prefer_on_device")
    async with asyncio.timeout(2):
        if error:  # the device goes on itself, at once
            assert text_of(await asyncio.wait_for(collect(client), 0.5)) == TEXT
        else:
            reading = asyncio.ensure_future(collect(client))
            while not world.cloud.requests:  # noqa: ASYNC110 - the loss has been heard of then
                await asyncio.sleep(0)
            await settled(client)
            reading.cancel()
    assert len(world.made) == 2
    await client.close()
