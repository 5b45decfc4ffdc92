"""The Python door with fakes behind it: opening, modes, and one side taking over from the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.errors import (
    BadArgument,
    BadModel,
    BadWeights,
    CloudUnavailable,
    DeviceLost,
    NoDevice,
    OutOfMemory,
    TandemError,
)
from tests.unit.door_fakes import FakeCloud, FakeEngine, World
from tests.unit.test_client import collect, kinds, opened, text_of

# --- opening


async def test_opening_reports_progress_and_asks_for_the_models_of_the_site() -> None:
    world = World()
    reports: list[dict[str, Any]] = []
    client = await opened(world, on_progress=reports.append, pool_mib=100)
    assert {"stage": "weights", "loaded": 5, "total": 10} in reports
    assert "/site/models/smollm2-135m/manifest.json" in world.asked
    assert "/site/models/efficientnet-lite0/manifest.json" in world.asked
    assert f"engine {100 << 20}" in world.asked
    assert client.status == {
        "tier": "high",
        "adapter": "Fake GPU",
        "software": False,
        "loading": False,
        "source": "device",
        "reason": "The model runs on this device's GPU (Fake GPU).",
        "pool": world.engine.pool_status(),
        "decisions": [],
    }


@pytest.mark.parametrize(
    ("given", "site"),
    [({}, "https://shop.example/"), ({"base": "https://shop.example/write"}, "https://shop.example/write/")],
)
async def test_addresses_are_of_the_site_whole_for_workers_that_resolve_none(given: dict[str, Any], site: str) -> None:
    world, clouds = World(), []

    def cloud_side(url: str, shop: Any) -> FakeCloud:
        clouds.append(url)
        return world.cloud

    services = replace(world.services(), base="https://shop.example/", cloud_side=cloud_side)
    await Client.create(services=services, **given)
    assert f"{site}models/smollm2-135m/manifest.json" in world.asked
    for options in ({"cloud": "stream"}, {"cloud": "https://cloud.example/v1"}, {"model": "mine/a.gguf"}):
        await Client.create(services=services, **{**given, **options})
    assert clouds[:3] == ["https://shop.example/api/ai/cloud-stream", f"{site}stream", "https://cloud.example/v1"]
    assert f"{site}mine/a.gguf" in world.asked


async def test_gguf_address_is_used_as_it_is() -> None:
    world = World()
    await opened(world, model="https://shop.example/a/b.gguf?x=1")
    assert "https://shop.example/a/b.gguf?x=1" in world.asked


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": 3}, "model must be"),
        ({"model": ""}, "model must be"),
        ({"model": "no such"}, "model must be"),
        ({"model": "gpt-9"}, "smollm2-135m"),
        ({"vision": "smollm2-135m"}, "efficientnet-lite0"),
        ({"vision": 1}, "vision must be"),
        ({"mode": "fast"}, "only_on_device"),
        ({"mode": None}, "only_on_device"),
        ({"pool_mib": 0}, "pool_mib must be a whole number"),
        ({"pool_mib": 1.5}, "pool_mib must be a whole number"),
        ({"pool_mib": True}, "pool_mib must be a whole number"),
        ({"pool_mib": float("nan")}, "pool_mib must be a whole number"),
        ({"cloud": 5}, "cloud must be"),
        ({"cloud": ""}, "cloud must be"),
        ({"cloud": None, "mode": "only_in_cloud"}, "cloud must be a URL"),
        ({"adapter": "gpu"}, "auto, software, none"),
        ({"maxTokens": 3}, "does not know maxTokens"),
    ],
)
async def test_bad_options_are_refused_before_anything_is_fetched(options: dict[str, Any], says: str) -> None:
    world = World()
    with pytest.raises(BadArgument, match=says):
        await opened(world, **options)
    assert world.asked == []


@pytest.mark.parametrize("adapter", ["none", "auto"])
async def test_without_a_device_the_cloud_writes_and_the_first_event_says_why(adapter: str) -> None:
    world = World(tier="unsupported")
    client = await opened(world, adapter=adapter)
    reason = {"none": "adapter asked for is none", "auto": "no WebGPU here"}[adapter]
    assert client.status["source"] == "cloud"
    assert client.status["tier"] == "unsupported"
    assert client.status["pool"] is None
    assert reason in client.status["reason"]
    events = await collect(client)
    assert kinds(events) == ["status", "text", "text", "usage", "done"]
    assert events[0]["code"] == "no_device"
    assert reason in events[0]["message"]
    assert {event["source"] for event in events if event["type"] != "usage"} == {"cloud"}
    assert events[-2] == {
        "type": "usage",
        "promptTokens": 11,
        "completionTokens": 2,
        "deviceTokens": 0,
        "cloudTokens": 2,
    }


@pytest.mark.parametrize(
    ("world", "error"),
    [
        (World(tier="unsupported"), NoDevice),
        (World(model_errors={"smollm2-135m": BadWeights("wrong hash")}), BadWeights),
        (World(model_errors={"smollm2-135m": BadModel("truncated")}), BadModel),
        (World(engine_error=OutOfMemory("too big")), OutOfMemory),
        (World(engine_error=RuntimeError("a bug")), DeviceLost),
    ],
)
async def test_only_on_device_rejects_with_the_reason_and_others_open(world: World, error: type[TandemError]) -> None:
    with pytest.raises(error):
        await opened(world, mode="only_on_device")
    client = await opened(world)
    assert client.status["source"] == "cloud"
    assert text_of(await collect(client)) == "Hello"


@pytest.mark.parametrize(
    "world",
    [
        World(model_errors={"smollm2-135m": BadModel("truncated")}),
        World(language_error=BadModel("truncated")),
    ],
    ids=["seen by the store", "seen by the engine"],
)
async def test_model_that_cannot_run_leaves_the_gpu_to_the_photos(world: World) -> None:
    client = await opened(world)
    assert (await client.describe(b"x"))["source"] == "device"
    assert client.status["reason"] == "truncated"


# --- modes


async def test_only_in_cloud_never_touches_the_device() -> None:
    world = World()
    client = await opened(world, mode="only_in_cloud")
    events = await collect(client)
    assert kinds(events) == ["text", "text", "usage", "done"]
    assert world.asked == []
    with pytest.raises(NoDevice, match="only_in_cloud"):
        await client.inspect.memory()


async def test_prefer_in_cloud_opens_the_device_only_when_the_cloud_fails() -> None:
    world = World()
    client = await opened(world, mode="prefer_in_cloud")
    assert client.status["source"] == "cloud"
    assert kinds(await collect(client)) == ["text", "text", "usage", "done"]
    assert world.asked == []
    world.cloud.error = CloudUnavailable("The gateway is down.")
    events = await collect(client)
    assert events[0]["code"] == "cloud_unavailable"
    assert text_of(events) == "Hello"
    assert events[-1]["source"] == "device"


@pytest.mark.parametrize("fail_at", [0, 3])
async def test_only_on_device_sends_nothing_out_when_the_device_fails(fail_at: int) -> None:
    world = World()
    client = await opened(world, mode="only_on_device")
    world.engine.fail_at = fail_at
    with pytest.raises(DeviceLost, match="boom"):
        await collect(client)
    with pytest.raises(TandemError):
        await collect(client)
    assert world.cloud.requests == []


async def test_without_cloud_address_nothing_is_sent_and_the_reason_is_thrown() -> None:
    world = World(tier="unsupported")
    client = await opened(world, cloud=None)
    with pytest.raises(NoDevice, match="no WebGPU"):
        await collect(client)
    assert world.cloud.requests == []


async def test_with_neither_side_the_error_names_both() -> None:
    world = World(tier="unsupported", cloud=FakeCloud(error=CloudUnavailable("The gateway cannot be reached.")))
    client = await opened(world)
    with pytest.raises(CloudUnavailable, match=r"gateway cannot be reached.*no WebGPU") as caught:
        await collect(client)
    assert caught.value.details["device"]["code"] == "no_device"


# --- take-over


@pytest.mark.parametrize("fail_at", range(5))
async def test_cloud_goes_on_where_the_device_failed(fail_at: int) -> None:
    world = World()
    client = await opened(world)
    world.engine.fail_at = fail_at
    events = await collect(client, max_tokens=40)
    assert text_of(events) == "Hello"
    moved = [event for event in events if event["type"] == "status"]
    assert [event["code"] for event in moved] == ["device_lost"]
    _, shown, left = world.cloud.requests[0]
    assert shown == "Hello"[:fail_at]
    assert left == 40 - fail_at
    usage = events[-2]
    assert usage["deviceTokens"] == fail_at
    assert usage["completionTokens"] == usage["deviceTokens"] + usage["cloudTokens"]
    assert usage["promptTokens"] == len(world.engine.prompts[0])
    assert events[-1] == {"type": "done", "reason": "stop", "source": "cloud"}
    assert client.status["source"] == "cloud"
    assert client.status["pool"] is None
    await asyncio.sleep(0)
    assert world.engine.closed


async def test_half_a_character_is_left_to_the_side_that_takes_over() -> None:
    world = World(engine=FakeEngine("a茶"), cloud=FakeCloud(pieces=["a", "茶"]))
    client = await opened(world)
    world.engine.fail_at = 3  # "a" and two of the three bytes
    events = await collect(client)
    assert text_of(events) == "a茶"
    assert world.cloud.requests[0][1] == "a"
    assert events[-2]["deviceTokens"] == 1


async def test_device_goes_on_where_the_cloud_failed() -> None:
    world = World(cloud=FakeCloud(error=CloudUnavailable("cut"), fail_after=1))
    events = await collect(await opened(world, mode="prefer_in_cloud"))
    assert text_of(events) == "Hello"
    assert world.engine.prompts[0].endswith("[assistant]Hel")
    assert events[-2]["cloudTokens"] == 1
    assert events[-2]["deviceTokens"] == 2
    assert events[-2]["promptTokens"] == len(world.engine.prompts[0]) - 3


async def test_second_failure_is_thrown_without_usage_or_done() -> None:
    world = World(cloud=FakeCloud(error=CloudUnavailable("down")))
    client = await opened(world)
    world.engine.fail_at = 2
    seen: list[Any] = []

    async def read() -> None:
        async for event in client.generate(prompt="Hi"):
            seen.append(event)  # noqa: PERF401 - kept when the loop raises

    with pytest.raises(CloudUnavailable, match="down"):
        await read()
    assert kinds(seen) == ["text", "text", "status"]


async def test_loss_between_calls_moves_the_next_text_to_the_cloud() -> None:
    world = World()
    client = await opened(world)
    told: list[dict[str, Any]] = []
    client.on_status = told.append
    world.engine.lost.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.status["source"] == "cloud"
    assert "lost" in client.status["reason"]
    assert told
    assert told[-1]["source"] == "cloud"
