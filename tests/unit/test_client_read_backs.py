"""Tokens that come back from the GPU together: shown at once, and each counts once whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.door_fakes import FakeEngine, World
from tests.unit.test_client import collect, opened, text_of
from tests.unit.test_client_loss import BYTES, TEXT, losing


async def test_tokens_that_come_back_together_are_one_event() -> None:
    world = World()
    world.engine.at_once = 3
    events = await collect(await opened(world))
    assert [(event["text"], event["tokens"]) for event in events[:-2]] == [("Hel", 3), ("lo", 2)]
    assert events[-2]["deviceTokens"] == 5


async def test_a_character_split_over_two_read_backs_comes_with_the_second() -> None:
    world = World(engine=FakeEngine("a茶🙂b"))
    world.engine.at_once = 3
    events = await collect(await opened(world))
    # Bytes: a茶茶 | 茶🙂🙂 | 🙂🙂b. Tokens count with the character that they end in.
    assert [(event["text"], event["tokens"]) for event in events[:-2]] == [("a", 1), ("茶", 3), ("🙂b", 5)]
    assert events[-2]["deviceTokens"] == len("a茶🙂b".encode())


async def test_what_is_left_of_a_character_is_no_token_more() -> None:
    """The last token ends one character and begins another, which never comes."""
    world = World(engine=FakeEngine("ba"))
    world.engine.tokenizer.token_bytes = lambda token: b"a\xe8" if token == ord("a") else bytes([token])  # type: ignore[method-assign]
    events = await collect(await opened(world))
    assert text_of(events) == "ba�"
    assert sum(event["tokens"] for event in events[:-2]) == events[-2]["deviceTokens"] == 2


@pytest.mark.parametrize(("limit", "shown"), [(2, "a�"), (4, "a茶"), (6, "a茶�")])
async def test_max_tokens_in_the_middle_of_a_read_back(limit: int, shown: str) -> None:
    world = World(engine=FakeEngine("a茶🙂b"))
    world.engine.at_once = 4
    events = await collect(await opened(world), max_tokens=limit)
    assert (text_of(events), events[-1]["reason"]) == (shown, "length")
    assert events[-2]["deviceTokens"] == limit


async def test_abort_between_two_read_backs_counts_what_is_shown() -> None:
    world, signal = World(engine=FakeEngine("abc茶de")), asyncio.Event()
    world.engine.at_once, world.engine.hold_at = 5, 5
    client = await opened(world)
    events: list[Any] = []
    async for event in client.generate(prompt="Hi", signal=signal):
        events.append(event)
        signal.set()
    assert [(event["text"], event["tokens"]) for event in events[:-2]] == [("abc", 3)]
    assert events[-2]["deviceTokens"] == events[-2]["completionTokens"] == 3, "two bytes of 茶 are not shown"
    assert events[-1] == {"type": "done", "reason": "abort", "source": "device"}


def together(world: World, at_once: int) -> World:
    """Every engine of this world hands out so many ids a read-back."""
    for engine in (world.engine, *world.later):
        if isinstance(engine, FakeEngine):
            engine.at_once = at_once
    return world


@pytest.mark.parametrize("at_once", [2, 3, 6, 40])
@pytest.mark.parametrize("at", range(BYTES + 1))
async def test_the_next_engine_goes_on_after_exactly_the_ids_read_back(at: int, at_once: int) -> None:
    world = together(losing(at, None), at_once)
    events = await collect(await opened(world, mode="only_on_device"), max_tokens=100)
    told = next(event for event in events if event["type"] == "status")
    before, after = events[: events.index(told)], events[events.index(told) + 1 :]
    assert text_of(before) == TEXT.encode()[:at].decode(errors="ignore")
    assert text_of(before) + text_of(after) == TEXT
    assert world.made[1].ids == [world.made[0].ids[0] + list(TEXT.encode()[:at])]
    assert (world.made[1].steps, world.made[1].limits) == ([at], [100 - at])
    assert events[-2]["deviceTokens"] == events[-2]["completionTokens"] == BYTES
    assert sum(event["tokens"] for event in events if event["type"] == "text") == BYTES


@pytest.mark.parametrize("at_once", [2, 3, 6, 40])
@pytest.mark.parametrize("at", range(1, BYTES + 1))
async def test_the_cloud_goes_on_after_the_characters_read_back(at: int, at_once: int) -> None:
    world = together(losing(at), at_once)
    events = await collect(await opened(world), max_tokens=100)
    shown = TEXT.encode()[:at].decode(errors="ignore")
    assert text_of(events) == TEXT
    [(_, asked, left)] = world.cloud.requests
    # Tokens of half a character are neither shown nor counted: the cloud writes that character anew.
    assert (asked, left) == (shown, 100 - len(shown.encode()))
    assert events[-2]["deviceTokens"] == len(shown.encode())
