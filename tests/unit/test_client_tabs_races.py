"""Two tabs of a site at bad moments: a slow answer of the browser, an abort, a listener that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pyapp.door import tabs as tabs_module
from pyapp.door.tabs import NoTabs, Turn
from tests.unit.tab_fakes import FakeTabs
from tests.unit.tab_world import HOLD, ONLY, one_writing, quick, two, until  # noqa: F401 - the fixture of the short waits
from tests.unit.test_client import collect, opened, text_of


async def nothing() -> None: ...


class Site:
    """One tab's turn among others, on a clock that a test moves."""

    def __init__(self, leave: Callable[[], Any] = nothing) -> None:
        self.now = 0.0
        self.tabs = FakeTabs()
        self.turn = Turn(self.tabs.lock, "Shop", leave, lambda: self.now)
        self.other = self.tabs.lock(lambda line: None)
        self.third = self.tabs.lock(lambda line: None)

    async def wanted_after_its_share(self) -> asyncio.Future[bool]:
        """The turn is held, for longer than its share, and the other tab waits for it. Returns its waiting."""
        assert await self.turn.take_now()
        waiting = asyncio.ensure_future(self.other.acquire(wait=True))
        await asyncio.sleep(0)
        self.other.say('{"op": "wanted"}')
        await asyncio.sleep(0)
        self.now += tabs_module.TURN_SECONDS
        return waiting


@pytest.fixture
def never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabs_module, "HOLD_SECONDS", 1000.0)


# --- the turn


@pytest.mark.usefixtures("never_idle")
@pytest.mark.parametrize("seconds", [0.0, 0.02])
async def test_work_that_begins_while_the_turn_is_offered_keeps_it(seconds: float) -> None:
    site = Site()
    await site.wanted_after_its_share()
    site.tabs.answer_seconds = seconds
    offering = asyncio.ensure_future(site.turn.offer())
    await asyncio.sleep(seconds / 2)
    with site.turn.working("writing a text"):
        await offering
        assert site.turn.held
        assert site.tabs.holder is site.tabs.members[0]
    await site.turn.offer()
    assert site.tabs.holder is site.other, "the next offer counts"


@pytest.mark.usefixtures("never_idle")
@pytest.mark.parametrize("pauses", range(6))
async def test_work_that_begins_at_any_moment_of_an_offer_has_the_turn_or_knows_that_it_has_not(pauses: int) -> None:
    site = Site()
    await site.wanted_after_its_share()
    offering = asyncio.ensure_future(site.turn.offer())
    for _ in range(pauses):
        await asyncio.sleep(0)
    if site.turn.held:
        with site.turn.working("writing a text"):
            await offering
            assert site.turn.held
            assert site.tabs.holder is site.tabs.members[0]
    await offering


@pytest.mark.usefixtures("never_idle")
async def test_two_offers_hand_the_turn_on_once() -> None:
    left = 0

    async def leave() -> None:
        nonlocal left
        left += 1
        await asyncio.sleep(0.01)

    site = Site(leave)
    await site.wanted_after_its_share()
    await asyncio.gather(site.turn.offer(), site.turn.offer())
    assert left == 1


@pytest.mark.usefixtures("never_idle")
async def test_late_hand_on_does_not_take_the_place_in_the_queue() -> None:
    site = Site(lambda: asyncio.sleep(0.01))
    await site.wanted_after_its_share()
    handing = asyncio.ensure_future(site.turn.offer())
    await until(lambda: not site.turn.held)
    late = asyncio.ensure_future(site.turn._hand_on())
    assert not await site.turn.take_now()
    taking = asyncio.ensure_future(site.turn.take())
    await asyncio.gather(handing, late)
    await asyncio.sleep(0)
    assert [lock for lock, _ in site.tabs.queue] == [site.tabs.members[0]]
    site.other.release()
    await taking
    assert site.tabs.holder is site.tabs.members[0]


async def test_place_that_was_lost_is_asked_for_again() -> None:
    site = Site()
    assert await site.other.acquire(wait=False)
    taking = asyncio.ensure_future(site.turn.take())
    await until(lambda: bool(site.tabs.queue))
    site.tabs.members[0].release()  # "left"
    await until(lambda: bool(site.tabs.queue))
    assert not site.turn.held
    assert not taking.done()
    site.other.release()
    await taking
    assert site.turn.held
    assert site.tabs.holder is site.tabs.members[0]


async def test_lock_that_fails_gives_no_turn() -> None:
    class Broken(NoTabs):
        async def acquire(self, *, wait: bool) -> bool:
            raise RuntimeError("no locks")

    turn = Turn(Broken, "", nothing, lambda: 0.0)
    with pytest.raises(RuntimeError, match="no locks"):
        await turn.take()
    assert not turn.held


@pytest.mark.usefixtures("never_idle")
async def test_turn_is_released_though_leaving_fails() -> None:
    async def leave() -> None:
        raise ValueError("a fault of ours")

    site = Site(leave)
    waiting = await site.wanted_after_its_share()
    with pytest.raises(ValueError, match="fault"):
        await site.turn.offer()
    assert site.tabs.holder is site.other
    assert await waiting


# --- the client


async def test_engine_is_not_closed_under_a_text_by_the_offer_of_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabs_module, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(tabs_module, "HOLD_SECONDS", 1000.0)
    site, a, b = two()
    first = await opened(a, **ONLY)
    waiting = asyncio.ensure_future(opened(b, **ONLY))
    await until(lambda: bool(site.queue) and first._device._turn._wanted)
    site.answer_seconds = 0.02
    offering = asyncio.ensure_future(first._device._turn.offer())
    await asyncio.sleep(0.01)
    with first._device._turn.working("writing a text"):
        await asyncio.sleep(0.05)
        assert not a.engine.closed
    await offering
    waiting.cancel()


@pytest.mark.parametrize("gone", ["handed on", "lost"])
async def test_listener_that_fails_keeps_no_turn(gone: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(status: Any) -> None:
        raise ValueError("the page is gone")

    site, a, b = two()
    first = await opened(a, rebuilds_per_hour=0, **ONLY)
    first.on_status = fail
    with caplog.at_level(logging.ERROR):
        if gone == "lost":
            a.engine.lost.set()
            await until(lambda: site.holder is None)
        second = await asyncio.wait_for(opened(b, **ONLY), 0.5)
    assert text_of(await collect(second)) == "Hello"
    assert "the page is gone" in caplog.text
    assert a.engine.closed


async def test_text_behind_an_aborted_one_waits_in_its_place() -> None:
    site, a, b = two()
    first, second, writing = await one_writing(a, b)
    signal = asyncio.Event()
    aborted = asyncio.ensure_future(collect(second, signal=signal))
    await until(lambda: bool(site.queue))
    behind = asyncio.ensure_future(collect(second))
    await asyncio.sleep(HOLD)
    signal.set()
    assert (await aborted)[-1]["reason"] == "abort"
    await asyncio.sleep(HOLD)
    assert not behind.done()
    assert len(site.queue) == 1
    await writing.aclose()
    assert text_of(await behind) == "Hello"
    await first.close()
    await second.close()
    assert site.holder is None


@pytest.mark.parametrize("pauses", range(8))
async def test_call_that_comes_as_another_leaves_the_queue_has_a_place_in_it(pauses: int) -> None:
    site, a, b = two()
    _, second, writing = await one_writing(a, b)
    leaving = second.generate(prompt="Hi")
    await anext(leaving)
    await until(lambda: bool(site.queue))
    closing = asyncio.ensure_future(leaving.aclose())
    for _ in range(pauses):
        await asyncio.sleep(0)
    coming = asyncio.ensure_future(second.inspect.plan("language"))
    await closing
    await asyncio.sleep(HOLD)
    assert not coming.done()
    assert len(site.queue) == 1
    await writing.aclose()
    assert (await coming)["dispatchesPerLayer"] == 5


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.02, 0.03])
async def test_close_while_the_turn_is_asked_for_leaves_the_queue_and_says_closed(seconds: float) -> None:
    site, a, b = two()
    first = await opened(a, **ONLY)
    a.engine.hold_at = 1
    writing = first.generate(prompt="Hi")
    await anext(writing)
    second = await opened(b, mode="prefer_in_cloud")
    site.answer_seconds = 0.02
    looking = asyncio.ensure_future(second.inspect.plan("language"))
    await asyncio.sleep(seconds)
    await second.close()
    await asyncio.wait([looking])
    await asyncio.sleep(0.05)
    assert not site.queue
    assert second._device._state == "never"
    assert "closed" in second.status["reason"]
    assert site.members[1].closed


async def test_call_that_is_aborted_while_the_turn_is_asked_for_does_not_queue() -> None:
    site, a, b = two()
    await opened(a, **ONLY)
    second = await opened(b, mode="prefer_in_cloud")
    site.answer_seconds = 0.02
    looking = asyncio.ensure_future(second.inspect.plan("language"))
    await asyncio.sleep(0.01)
    looking.cancel()
    await asyncio.sleep(HOLD * 5)
    assert not site.queue
    assert a.has_pool
    site.answer_seconds = 0.0
    assert (await second.inspect.plan("language"))["dispatchesPerLayer"] == 5, "the next one does"


@pytest.mark.parametrize("mode", [{"mode": "only_on_device"}, {"mode": "prefer_on_device", "cloud": None}])
async def test_photo_takes_a_free_turn_and_asks_nobody_for_another(mode: dict[str, Any]) -> None:
    site, a, b = two()
    second = await opened(b, **mode)
    first = await opened(a, **mode)
    said = len(site.said)
    assert (await second.describe(b"x"))["source"] == "cpu"
    await asyncio.sleep(HOLD * 5)
    assert not site.queue
    assert len(site.said) == said
    assert a.has_pool, "nobody wants it"
    await first.close()
    assert (await second.describe(b"x"))["source"] == "device"


async def test_photo_and_text_that_ask_for_the_turn_together_queue_for_the_text() -> None:
    site, a, b = two()
    second = await opened(b, **ONLY)
    await opened(a, **ONLY)
    site.answer_seconds = 0.005
    photo = asyncio.ensure_future(second.describe(b"x"))
    await asyncio.sleep(0.001)
    writing = asyncio.ensure_future(collect(second))
    assert (await photo)["source"] == "cpu"
    assert text_of(await writing) == "Hello"
