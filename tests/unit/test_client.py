"""The Python door with fakes behind it: the order of events, requests and their refusal, queueing, aborts."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.errors import BadArgument, Closed, ContextFull
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


@pytest.mark.parametrize("mode", ["prefer_on_device", "only_in_cloud"])
async def test_abort_before_the_start_does_no_work_and_names_no_side(mode: str) -> None:
    world, signal = World(), asyncio.Event()
    client = await opened(world, mode=mode)
    signal.set()
    events = await collect(client, signal=signal)
    assert kinds(events) == ["usage", "done"]
    assert events[-1] == {"type": "done", "reason": "abort", "source": None}
    assert (world.engine.prompts, world.cloud.requests) == ([], [])


async def test_what_is_wrong_with_a_call_is_told_of_one_that_is_aborted_already_too() -> None:
    signal = asyncio.Event()
    signal.set()
    client = await opened(World())
    for wrong, said in (
        ({"prompt": ""}, "prompt"),
        ({"prompt": "Hi", "top_p": 2}, "top_p"),
        ({"prompt": "Hi", "tone": "x"}, "tone"),
    ):
        writing = client.generate(signal=signal, **wrong)
        with pytest.raises(BadArgument, match=said):
            await anext(writing)
        with pytest.raises(StopAsyncIteration):
            await anext(writing)
    await client.close()
    with pytest.raises(Closed):
        await collect(client, signal=signal)


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
    assert events[-1]["source"] is None
    assert len(world.engine.prompts) == 1
    await first.aclose()


async def test_abort_before_the_other_side_s_first_word_names_the_one_that_wrote() -> None:
    world, signal = World(cloud=FakeCloud(hold_after=0)), asyncio.Event()
    world.engine.fail_at = 3
    client = await opened(world, rebuilds_per_hour=0)
    events: list[Any] = []
    async for event in client.generate(prompt="Hi", signal=signal):
        events.append(event)
        if event["type"] == "status":
            await asyncio.sleep(0.01)
            assert len(world.cloud.requests) == 1
            signal.set()
    assert kinds(events) == ["text"] * 3 + ["status", "usage", "done"]
    assert events[-1] == {"type": "done", "reason": "abort", "source": "device"}


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


async def test_who_waits_for_a_text_that_another_task_leaves_is_at_its_end() -> None:
    world = World()
    world.engine.hold_at = 2
    client = await opened(world)
    writing = client.generate(prompt="Hi")
    async with asyncio.timeout(5):
        await anext(writing)
        reading = asyncio.ensure_future(_rest(writing))
        await asyncio.sleep(0.01)
        await writing.aclose()
        assert all(event["type"] == "text" for event in await reading)


async def _rest(writing: Any) -> list[Any]:
    return [event async for event in writing]


@pytest.mark.parametrize("steps", range(0, 40, 2))
async def test_a_text_that_ended_before_its_client_was_closed_is_whole(steps: int) -> None:
    world = World()
    client = await opened(world)
    writing = client.generate(prompt="Hi")
    events = [await anext(writing)]
    for _ in range(steps):
        await asyncio.sleep(0)
    await client.close()
    with suppress(Closed):
        events += [event async for event in writing]
        assert events[-1]["type"] == "done"
        return
    assert events[-1]["type"] != "done"


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
