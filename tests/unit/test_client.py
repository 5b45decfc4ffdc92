"""The Python door with fakes behind it: the order of events, modes, queueing, aborts, take-over, and every refusal."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.errors import (
    BadArgument,
    BadImage,
    BadModel,
    BadWeights,
    Closed,
    CloudUnavailable,
    ContextFull,
    DeviceLost,
    NoDevice,
    OutOfMemory,
    TandemError,
)
from tests.unit.door_fakes import FakeCloud, FakeEngine, World


async def opened(world: World, **options: Any) -> Client:
    return await Client.create(services=world.services(), base="/site/", **options)


async def collect(client: Client, **request: Any) -> list[Any]:
    return [event async for event in client.generate(**({"prompt": "Hi"} | request))]


def text_of(events: list[Any]) -> str:
    return "".join(event["text"] for event in events if event["type"] == "text")


def kinds(events: list[Any]) -> list[str]:
    return [event["type"] for event in events]


# --- a plain answer


async def test_device_answer_is_text_then_one_usage_then_done() -> None:
    world = World()
    client = await opened(world)
    events = await collect(client)
    assert kinds(events) == ["text"] * 5 + ["usage", "done"]
    assert events[0] == {"type": "text", "text": "H", "tokens": 1, "source": "device"}
    prompt = len(world.engine.prompts[0])
    expected = {"promptTokens": prompt, "completionTokens": 5, "deviceTokens": 5, "cloudTokens": 0}
    assert events[-2] == {"type": "usage", **expected}
    assert events[-1] == {"type": "done", "reason": "stop", "source": "device"}
    assert world.cloud.requests == []


async def test_characters_of_several_tokens_come_whole_and_are_counted() -> None:
    world = World(engine=FakeEngine("né 茶🙂"))
    events = await collect(await opened(world))
    assert [event["text"] for event in events[:-2]] == ["n", "é", " ", "茶", "🙂"]
    assert events[-2]["deviceTokens"] == len("né 茶🙂".encode())


async def test_max_tokens_ends_in_length() -> None:
    events = await collect(await opened(World()), max_tokens=3)
    assert text_of(events) == "Hel"
    assert events[-1]["reason"] == "length"


async def test_cut_character_at_the_limit_is_shown_as_replacement_and_counted() -> None:
    events = await collect(await opened(World(engine=FakeEngine("茶"))), max_tokens=2)
    assert text_of(events) == "�"
    assert events[-2]["deviceTokens"] == 2


async def test_facts_and_brief_reach_the_prompt() -> None:
    world = World()
    facts = {"labels": [{"index": 1, "name": "espresso maker", "p": 0.9}]}
    client = await opened(world)
    async for _ in client.generate(facts=facts, brief={"tone": "playful"}):
        pass
    assert "espresso maker" in world.engine.prompts[0]
    assert "playful" in world.engine.prompts[0]


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


# --- the request


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"prompt": None}, "prompt"),
        ({"messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"max_tokens": 0}, "max_tokens is 0: give a whole number from 1"),
        ({"max_tokens": None}, "max_tokens is null: give a number"),
        ({"max_tokens": "5"}, "max_tokens is '5': give a number"),
        ({"temperature": -1}, "temperature is -1: give a number from 0"),
        ({"temperature": float("inf")}, "temperature is 'inf': give a number"),
        ({"top_k": -1}, "top_k is -1: give"),
        ({"top_p": 0}, "top_p is 0: give a number above 0"),
        ({"top_p": 1.1}, "top_p is 1.1: give"),
        ({"seed": -1}, "seed is -1: give"),
        ({"seed": 1 << 32}, "seed is 4294967296: give"),
        ({"maxTokens": 5}, "generate does not know maxTokens"),
        ({"brief": {"tone": 5}}, "tone"),
        ({"facts": 5}, "facts"),
    ],
)
async def test_bad_requests_are_thrown_and_leave_the_client_usable(request_: dict[str, Any], says: str) -> None:
    world = World()
    client = await opened(world)
    with pytest.raises(BadArgument, match=says):
        await collect(client, **request_)
    assert text_of(await collect(client)) == "Hello"


async def test_prompt_longer_than_the_context_is_told_with_figures_and_stays_home() -> None:
    world = World(engine=FakeEngine(context=30))
    client = await opened(world)
    with pytest.raises(ContextFull, match="holds 30") as caught:
        await collect(client, prompt="x" * 100)
    assert caught.value.details["context"] == 30
    assert caught.value.details["tokens"] > 100
    assert world.cloud.requests == []
    assert client.status["source"] == "device"


async def test_little_room_shortens_the_answer_and_says_so() -> None:
    world = World(engine=FakeEngine(context=len("[user]Hi[assistant]") + 1))
    events = await collect(await opened(world))
    assert events[0]["code"] == "context_short"
    assert text_of(events) == "He"
    assert events[-1]["reason"] == "length"


async def test_lone_surrogates_become_replacement_characters() -> None:
    world = World()
    await collect(await opened(world), prompt="a\ud800b")
    assert "a�b" in world.engine.prompts[0]


# --- queue, abort, close


async def test_calls_at_the_same_time_queue_in_their_order() -> None:
    world = World()
    client = await opened(world)
    order: list[str] = []

    async def one(name: str) -> None:
        async for event in client.generate(prompt=name):
            order.append(f"{name} {event['type']}")  # noqa: PERF401 - the calls interleave

    await asyncio.gather(*(one(name) for name in "abc"))
    ends = [order.index(f"{name} done") for name in "abc"]
    assert ends == sorted(ends)
    assert order.index("b text") > order.index("a done")
    assert order.index("c text") > order.index("b done")
    assert order.count("b status") == 1


async def test_abort_ends_in_usage_and_done_without_a_throw() -> None:
    world, signal = World(), asyncio.Event()
    events: list[Any] = []
    world.engine.hold_at = 3
    client = await opened(world)
    async for event in client.generate(prompt="Hi", signal=signal):
        events.append(event)
        if text_of(events) == "Hel":
            signal.set()
    assert kinds(events) == ["text"] * 3 + ["usage", "done"]
    assert events[-2]["deviceTokens"] == 3
    assert events[-1] == {"type": "done", "reason": "abort", "source": "device"}
    assert world.engine.generations[0].closed
    world.engine.hold_at = None
    assert text_of(await collect(client)) == "Hello"
    assert client.status["source"] == "device", "an abort says nothing against the device"


async def test_abort_before_the_start_does_no_work() -> None:
    world, signal = World(), asyncio.Event()
    client = await opened(world)
    signal.set()
    events = await collect(client, signal=signal)
    assert kinds(events) == ["usage", "done"]
    assert events[-1]["reason"] == "abort"
    assert world.engine.prompts == []


async def test_abort_while_waiting_for_the_turn() -> None:
    world, signal = World(), asyncio.Event()
    world.engine.hold_at = 1
    client = await opened(world)
    first = client.generate(prompt="a")
    await anext(first)
    second = asyncio.ensure_future(collect(client, signal=signal))
    await asyncio.sleep(0.01)
    signal.set()
    events = await asyncio.wait_for(second, 1)
    assert kinds(events) == ["status", "usage", "done"]
    assert events[0]["code"] == "queued"
    assert len(world.engine.prompts) == 1
    await first.aclose()


async def test_abort_ends_the_cloud_exchange() -> None:
    world, signal = World(tier="unsupported", cloud=FakeCloud(hold_after=1)), asyncio.Event()
    client = await opened(world)
    events: list[Any] = []
    async for event in client.generate(prompt="Hi", signal=signal):
        events.append(event)
        if event["type"] == "text":
            signal.set()
    assert events[-1] == {"type": "done", "reason": "abort", "source": "cloud"}
    assert world.cloud.ended == 1


async def test_leaving_the_loop_frees_the_turn() -> None:
    world = World()
    world.engine.hold_at = 2
    client = await opened(world)
    async for event in client.generate(prompt="Hi"):
        if event["type"] == "text":
            break
    gc.collect()
    await asyncio.sleep(0.01)
    assert world.engine.generations[0].closed
    world.engine.hold_at = None
    assert text_of(await asyncio.wait_for(collect(client), 1)) == "Hello"


async def test_reader_who_stops_reading_holds_nobody_up() -> None:
    client = await opened(World())
    idle = client.generate(prompt="a")
    await anext(idle)
    assert text_of(await asyncio.wait_for(collect(client), 1)) == "Hello"
    second: Any = await anext(idle)
    assert (second["text"], second["tokens"]) == ("ello", 4), "what is there already comes together"
    assert [event["type"] async for event in idle] == ["usage", "done"]


async def test_close_ends_running_and_waiting_calls_and_later_ones() -> None:
    world = World()
    world.engine.hold_at = 1
    client = await opened(world)
    calls = [asyncio.ensure_future(collect(client)) for _ in range(2)]
    await asyncio.sleep(0.01)
    await client.close()
    for call in calls:
        with pytest.raises(Closed):
            await asyncio.wait_for(call, 1)
    assert world.engine.closed
    for again in (collect(client), client.describe(b"x"), client.inspect.memory()):
        with pytest.raises(Closed):
            await again
    await client.close()


# --- photos


async def test_describe_on_the_device() -> None:
    found = await (await opened(World())).describe(b"png")
    assert found["source"] == "device"
    assert (found["width"], found["height"]) == (20, 30)
    assert [label["index"] for label in found["labels"]] == [9, 8, 7, 6, 5]
    assert found["labels"][0]["name"] == "class 9"
    assert found["labels"][0]["p"] > found["labels"][1]["p"] > 0


@pytest.mark.parametrize("mode", ["prefer_on_device", "only_in_cloud"])
async def test_describe_on_the_cpu_where_there_is_no_device(mode: str) -> None:
    world = World(tier="unsupported")
    found = await (await opened(world, mode=mode)).describe(b"png")
    assert found["source"] == "cpu"
    assert found["labels"][0]["index"] == 0
    assert world.cloud.requests == []


async def test_device_that_fails_at_a_photo_leaves_it_to_the_cpu() -> None:
    world = World()
    client = await opened(world)
    world.engine.vision_error = DeviceLost("gone")
    assert (await client.describe(b"png"))["source"] == "cpu"
    assert client.status["source"] == "cloud"


async def test_bad_picture_harms_nothing() -> None:
    world = World()
    client = await opened(world)

    def refuse(image: Any) -> Any:
        raise BadImage("The file is empty.")

    good, world.picture = world.picture, refuse
    with pytest.raises(BadImage):
        await client.describe(b"")
    world.picture = good
    assert (await client.describe(b"png"))["source"] == "device"


async def test_client_without_vision_model_refuses_photos() -> None:
    client = await opened(World(), vision=None)
    with pytest.raises(BadArgument, match="without a vision model"):
        await client.describe(b"png")
    with pytest.raises(NoDevice):
        await client.inspect.vision(bytes(224 * 224 * 3))


# --- inspect


async def test_inspect_reaches_the_engine() -> None:
    client = await opened(World())
    assert await client.inspect.tokenize("Hi") == [72, 105]
    assert await client.inspect.detokenize([72, 105]) == "Hi"
    assert await client.inspect.detokenize([]) == ""
    message = [{"role": "user", "content": "x"}]
    assert await client.inspect.render(message, generation_prompt=False) == "[user]x"
    assert (await client.inspect.logits([1])).shape == (256,)
    assert (await client.inspect.nll([1, 2, 3])).shape == (2,)
    assert await client.inspect.greedy([1], 3) == [0, 1, 2]
    assert (await client.inspect.vision(bytes(224 * 224 * 3))).shape == (10,)
    assert await client.inspect.vision_times(bytes(224 * 224 * 3), 2) == [2.0, 2.0]
    assert (await client.inspect.plan("language"))["dispatchesPerLayer"] == 5
    assert (await client.inspect.memory())["asked"] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda i: i.tokenize(5),
        lambda i: i.tokenize("x", special=1),
        lambda i: i.detokenize([256]),
        lambda i: i.detokenize("ab"),
        lambda i: i.detokenize(None),
        lambda i: i.render("x"),
        lambda i: i.logits([]),
        lambda i: i.logits([-1]),
        lambda i: i.logits([0.5]),
        lambda i: i.nll([1]),
        lambda i: i.greedy([1], 0),
        lambda i: i.vision(b"short"),
        lambda i: i.vision("text"),
        lambda i: i.plan("both"),
    ],
)
async def test_inspect_refuses_bad_arguments(call: Any) -> None:
    client = await opened(World())
    with pytest.raises(BadArgument):
        await call(client.inspect)


async def test_inspect_rejects_with_no_device_whatever_the_cause() -> None:
    client = await opened(World(model_errors={"smollm2-135m": BadModel("truncated")}))
    with pytest.raises(NoDevice, match="truncated") as caught:
        await client.inspect.tokenize("x")
    assert caught.value.details["cause"]["code"] == "bad_model"
