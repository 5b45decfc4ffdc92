"""Two tabs of a site and one GPU: who has it, who waits, who goes without, and what a tab that vanishes leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.door import tabs as tabs_module
from pyapp.errors import Busy, Closed, DeviceLost, NoDevice
from tests.unit.door_fakes import FakeEngine
from tests.unit.tab_fakes import FakeTabs
from tests.unit.tab_world import HOLD, ONLY, Clock, Tab, one_writing, quick, two, until  # noqa: F401 - the fixture of the short waits
from tests.unit.test_client import collect, opened, text_of


async def test_idle_tab_gives_way_and_takes_its_turn_again() -> None:
    site, a, b = two()
    first = await opened(a, **ONLY)
    assert text_of(await collect(first)) == "Hello"
    second = await opened(b, **ONLY)
    assert not a.has_pool
    assert b.has_pool
    assert first.status["pool"] is None
    assert "Another tab" in first.status["reason"]
    assert text_of(await collect(second)) == "Hello"
    events = await collect(first)
    assert text_of(events) == "Hello"
    assert [event["code"] for event in events if event["type"] == "status"] == ["busy"]
    assert a.has_pool
    assert not b.has_pool
    await first.close()
    await second.close()
    assert site.holder is None
    assert not site.queue


async def test_tab_that_just_worked_is_not_asked_to_give_way() -> None:
    clock = Clock()
    site, a, b = two(clock)
    first = await opened(a, **ONLY)
    waiting = asyncio.ensure_future(opened(b, **ONLY))
    for _ in range(3):
        await collect(first)
        clock.now += HOLD * 0.9
        await asyncio.sleep(HOLD * 3)
        assert a.has_pool
        assert len(site.queue) == 1
    clock.now += HOLD * 0.2
    await waiting
    assert not a.has_pool


async def test_work_is_not_broken_off() -> None:
    _, a, b = two()
    first = await opened(a, **ONLY)
    a.engine.hold_at = 2
    writing = first.generate(prompt="Hi")
    await anext(writing)
    waiting = asyncio.ensure_future(opened(b, **ONLY))
    await asyncio.sleep(HOLD * 4)
    assert a.has_pool
    assert not waiting.done()
    await writing.aclose()
    await waiting
    assert b.has_pool


async def test_two_busy_tabs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabs_module, "HOLD_SECONDS", 1000.0)
    monkeypatch.setattr(tabs_module, "WAIT_SECONDS", 10.0)
    clock = Clock()
    site, a, b = two(clock)
    order = ""

    async def write(name: str, client: Client) -> None:
        nonlocal order
        for _ in range(6):
            assert text_of(await collect(client)) == "Hello"
            order += name
            clock.now += tabs_module.TURN_SECONDS / 2.5
        await client.close()

    async def enter_and_write() -> None:
        await write("b", await opened(b, **ONLY))

    first = await opened(a, **ONLY)
    second = asyncio.ensure_future(enter_and_write())
    await until(lambda: bool(site.queue))
    await asyncio.gather(write("a", first), second)
    assert order == "aaabbbaaabbb", "whoever has had the GPU for long enough lets the other one have it"


async def test_three_tabs_are_served_in_the_order_of_asking() -> None:
    site = FakeTabs()
    worlds = [Tab(site) for _ in range(3)]
    order: list[int] = []

    async def enter(number: int) -> None:
        client = await opened(worlds[number], **ONLY)
        order.append(number)
        await collect(client)

    entering = []
    for number in range(3):
        entering.append(asyncio.ensure_future(enter(number)))
        await asyncio.sleep(0.005)
    await asyncio.wait_for(asyncio.gather(*entering), 2)
    assert order == [0, 1, 2]


async def test_prefer_on_device_goes_without_and_gets_the_next_turn() -> None:
    _, a, b = two()
    first = await opened(a, page="Shop")
    a.engine.hold_at = 2
    writing = first.generate(prompt="Hi")
    await anext(writing)
    second = await asyncio.wait_for(opened(b), 0.1)
    assert second.status["source"] == "cloud"
    await asyncio.sleep(0.02)
    events = await collect(second)
    assert text_of(events) == "Hello"
    assert events[-1]["source"] == "cloud"
    assert events[0]["code"] == "busy"
    assert events[0]["message"].endswith("The text is written from the cloud.")
    assert "“Shop” is writing a text" in events[0]["message"]
    assert (await second.describe(b"x"))["source"] == "cpu"
    assert second.status["pool"] is None
    await writing.aclose()
    await until(lambda: second.status["pool"] is not None)
    assert second.status["source"] == "device"
    assert (await collect(second))[-1]["source"] == "device"
    assert (await second.describe(b"x"))["source"] == "device"


async def test_wait_that_is_too_long_names_the_holder() -> None:
    site, a, b = two()
    first = await opened(a, page="Shop", **ONLY)
    a.engine.hold_at = 0
    writing = asyncio.ensure_future(anext(first.generate(prompt="Hi")))
    with pytest.raises(Busy, match=r"has the GPU \(“Shop” is writing a text\), and did not .* 1 s") as caught:
        await opened(b, **ONLY)
    assert caught.value.details["holder"] == "“Shop” is writing a text"
    assert not site.queue, "the client that did not open has left the queue"
    assert site.members[1].closed
    writing.cancel()


async def test_inspect_says_that_the_device_is_busy_and_not_that_there_is_none() -> None:
    _, a, b = two()
    first = await opened(a, **ONLY)
    second = await opened(b, **ONLY)
    b.engine.hold_at = 0
    writing = asyncio.ensure_future(anext(second.generate(prompt="Hi")))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await first.inspect.memory()
    writing.cancel()


async def test_who_only_looks_at_the_memory_takes_and_keeps_no_turn() -> None:
    """As the page's map does, all the time."""
    site, a, b = two()
    first = await opened(a, **ONLY)
    looks = 0

    async def look() -> None:
        nonlocal looks
        while True:
            try:
                await first.inspect.memory()
            except Busy:
                looks += 1
            await asyncio.sleep(HOLD / 10)

    looking = asyncio.ensure_future(look())
    second = await opened(b, **ONLY)  # the first tab gives way although it is looked at
    assert site.holder is site.members[1]
    await asyncio.sleep(5 * HOLD)
    assert site.holder is site.members[1]
    assert looks > 3
    looking.cancel()
    await second.close()


@pytest.mark.parametrize("how", ["close", "crash"])
async def test_tab_that_goes_lets_the_next_one_in(how: str) -> None:
    site, a, b = two()
    first = await opened(a, **ONLY)
    a.engine.hold_at = 1
    writing = asyncio.ensure_future(collect(first))
    await asyncio.sleep(0.01)
    waiting = asyncio.ensure_future(opened(b, **ONLY))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    if how == "close":
        await first.close()
        with pytest.raises(Closed):
            await writing
    else:
        writing.cancel()
        for engine in a.made:
            engine.closed = True  # the browser's doing
        site.crash(site.members[0])
    assert text_of(await collect(await waiting)) == "Hello"


async def test_abort_while_waiting_leaves_nothing_held() -> None:
    site, a, b = two()
    _, second, writing = await one_writing(a, b)
    signal = asyncio.Event()
    events: list[Any] = []
    async for event in second.generate(prompt="Hi", signal=signal):
        events.append(event)
        if event["type"] == "status":
            await asyncio.sleep(0.02)
            assert len(site.queue) == 1
            signal.set()
    assert [event["type"] for event in events] == ["status", "usage", "done"]
    assert events[0]["message"].endswith("The text begins then.")
    assert events[-1]["reason"] == "abort"
    await until(lambda: not site.queue)
    await writing.aclose()
    await asyncio.sleep(0.1)
    assert a.has_pool
    assert not b.has_pool, "nobody over there wants it any more"
    assert text_of(await collect(second)) == "Hello"


async def test_turn_that_comes_in_the_moment_of_closing_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    site, a, b = two()
    second = await opened(b, **ONLY)
    first = await opened(a, **ONLY)
    monkeypatch.setattr(tabs_module, "HOLD_SECONDS", 1000.0)
    writing = asyncio.ensure_future(collect(second))
    await until(lambda: bool(site.queue))
    await first.close()
    await second.close()
    await asyncio.wait([writing])
    await asyncio.sleep(0.05)
    assert site.holder is None
    assert not a.has_pool
    assert not b.has_pool


async def test_close_while_waiting_leaves_the_queue() -> None:
    site, a, b = two()
    await opened(a)
    second = await opened(b)
    await second.close()
    await asyncio.sleep(0)
    assert not site.queue
    assert not b.made


async def test_turn_nobody_needs_any_more_is_not_given_away() -> None:
    site, a, b = two()
    await opened(a, **ONLY)
    waiting = asyncio.ensure_future(opened(b, **ONLY))
    await until(lambda: bool(site.queue))
    waiting.cancel()
    await asyncio.sleep(HOLD * 3)
    assert a.has_pool


async def test_rebuild_keeps_the_turn_and_one_that_fails_gives_it_up() -> None:
    site, a, _ = two()
    a.later = [FakeEngine(), NoDevice("no adapter")]
    first = await opened(a, **ONLY)
    a.engine.lost.set()
    await asyncio.sleep(0.005)
    assert site.holder is site.members[0]
    await first.inspect.plan("language")
    a.made[1].fail_at, a.made[1].error = 1, DeviceLost("gone")
    with pytest.raises(DeviceLost, match="no adapter"):
        await collect(first)
    assert site.holder is None


async def test_device_that_gave_up_frees_the_turn() -> None:
    site, a, b = two()
    first = await opened(a)
    a.engine.fail_at = 1  # with an error that a rebuild does not cure
    await collect(first)
    await until(lambda: site.holder is None)
    assert text_of(await collect(await opened(b, **ONLY))) == "Hello"


async def test_without_locks_every_tab_has_its_own() -> None:
    site = FakeTabs(refused=True)
    clients = [await opened(Tab(site), **ONLY) for _ in range(2)]
    for client in clients:
        assert text_of(await collect(client)) == "Hello"
        assert client.status["pool"] is not None


async def test_tab_without_a_device_holds_nothing() -> None:
    site = FakeTabs()
    await opened(Tab(site, tier="unsupported"))
    assert site.holder is None


async def test_turn_is_not_handed_on_while_the_models_are_being_loaded() -> None:
    site, a, b = two()
    first = await opened(a, **ONLY)
    second = await opened(b, **ONLY)
    a.seconds = HOLD * 5
    writing = asyncio.ensure_future(collect(first))
    await until(lambda: site.holder is site.members[0])
    both = await asyncio.gather(writing, collect(second))
    assert [text_of(events) for events in both] == ["Hello"] * 2
    assert len(a.made) == 2, "loaded once more, and used"


@pytest.mark.parametrize("pauses", range(14))
async def test_turn_that_comes_while_its_waiter_leaves_is_not_kept(pauses: int) -> None:
    """The lock is granted, and the only one who waits for it leaves before anybody has noticed."""
    site, a, b = two()
    second = await opened(b, **ONLY)
    first = await opened(a, **ONLY)
    writing = second.generate(prompt="Hi")
    await anext(writing)
    await until(lambda: bool(site.queue))
    closing = asyncio.ensure_future(first.close())
    for _ in range(pauses):
        await asyncio.sleep(0)
    await writing.aclose()
    await closing
    await asyncio.sleep(0.05)
    assert (site.holder is not None) == b.has_pool, "held without a pool"
    await second.close()
    assert site.holder is None
    assert not b.has_pool


async def test_new_holder_learns_of_those_who_queued_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabs_module, "ASK_SECONDS", 1000.0)  # they say it once, to the first holder
    site = FakeTabs()
    await opened(Tab(site), **ONLY)
    others = [asyncio.ensure_future(opened(Tab(site), **ONLY)) for _ in range(2)]
    await asyncio.wait_for(asyncio.gather(*others), 2)


async def test_turn_is_asked_for_again_only_once_it_has_been_given_back() -> None:
    _, a, b = two()
    first = await opened(a, **ONLY)
    a.engine.close_seconds = 0.05
    entering = asyncio.ensure_future(opened(b, **ONLY))
    await until(lambda: first.status["pool"] is None)
    assert not a.engine.closed, "on its way out"
    events = await collect(first)
    second = await entering
    assert text_of(events) == "Hello"
    assert [event["code"] for event in events if event["type"] == "status"] == ["busy"], "the other tab was first"
    assert text_of(await collect(second)) == "Hello"
