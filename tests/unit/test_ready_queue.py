"""The queue of what is ready: in order, nothing lost, and the browser gets its turn."""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.door.ready_queue import MOST_SECONDS, ReadyQueue


class Browser:
    """Counts what it is asked for. ``end_turn`` is the end of its turn, ``turn`` the next one. Its clock moves by
    ``tick`` a look."""

    def __init__(self, tick: float = 0.0) -> None:
        self.faults: list[dict[str, Any]] = []
        loop: Any = SimpleNamespace(get_debug=lambda: False, call_exception_handler=self.faults.append)
        self.microtasks = self.posts = 0
        self.now = 0.0
        self.tick = tick
        self.queue = ReadyQueue(loop, self._soon, self._later, self._clock)

    def _soon(self) -> None:
        self.microtasks += 1

    def _later(self) -> None:
        self.posts += 1

    def _clock(self) -> float:
        self.now += self.tick
        return self.now

    def end_turn(self) -> None:
        while self.microtasks:
            self.microtasks -= 1
            self.queue.flush(None)

    def turn(self) -> None:
        assert self.posts == 1
        self.posts = 0
        self.queue.flush_in_turn(None)
        self.end_turn()


@pytest.fixture
def browser() -> Browser:
    return Browser()


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=30))
def test_everything_runs_once_breadth_first_in_the_turn_that_made_it_ready(tree: list[Any]) -> None:
    browser = Browser()
    order: list[int] = []
    levels = [[(0, tree)]]
    while levels[-1]:
        levels.append([(level + 1, child) for level, node in levels[-1] for child in node])

    def visit(level: int, node: list[Any]) -> None:
        order.append(level)
        for child in node:
            browser.queue.call_soon(visit, level + 1, child)

    browser.queue.call_soon(visit, 0, tree)
    browser.end_turn()
    assert order == [level for nodes in levels for level, _ in nodes]
    browser.turn()
    assert (browser.posts, browser.microtasks) == (0, 0)  # nobody asks for turns where nothing is ready


def test_one_call_for_all_that_is_ready(browser: Browser) -> None:
    for _ in range(100):
        browser.queue.call_soon(lambda: None)
    assert (browser.microtasks, browser.posts) == (1, 1)


def test_what_is_cancelled_does_not_run(browser: Browser) -> None:
    ran: list[str] = []
    second = browser.queue.call_soon(ran.append, "second")
    browser.queue.call_soon(second.cancel)
    browser.queue.call_soon(ran.append, "third")
    second.cancel()
    browser.end_turn()
    assert ran == ["third"]


def test_who_never_rests_leaves_the_browser_its_turn() -> None:
    browser = Browser(tick=MOST_SECONDS / 8)
    rounds = 0

    def again() -> None:
        nonlocal rounds
        rounds += 1
        browser.queue.call_soon(again)

    browser.queue.call_soon(again)
    browser.end_turn()
    assert 0 < rounds <= 16
    for _ in range(3):
        before = rounds
        browser.turn()
        assert before < rounds <= before + 16


def test_who_waits_for_promises_that_are_kept_already_leaves_the_browser_its_turn() -> None:
    """Each makes the next one ready in a microtask of the same turn, without a rest that a queue could see."""
    browser = Browser(tick=MOST_SECONDS / 8)
    for _ in range(3):
        begun, rounds = browser.now, 0
        while not rounds or browser.microtasks:
            browser.end_turn()
            browser.queue.call_soon(lambda: None)
            rounds += 1
            assert rounds < 100
        assert browser.now - begun <= 2 * MOST_SECONDS
        browser.turn()


def test_a_callback_that_fails_stops_no_other(browser: Browser) -> None:
    ran: list[str] = []
    browser.queue.call_soon(lambda: 1 / 0)
    browser.queue.call_soon(ran.append, "after")
    browser.end_turn()
    assert ran == ["after"]
    assert [type(fault["exception"]) for fault in browser.faults] == [ZeroDivisionError]


def test_a_callback_that_exits_keeps_what_is_behind_it(browser: Browser) -> None:
    def leave() -> None:
        raise SystemExit

    ran: list[str] = []
    browser.queue.call_soon(leave)
    browser.queue.call_soon(ran.append, "after")
    with pytest.raises(SystemExit):
        browser.end_turn()
    browser.end_turn()
    assert ran == ["after"]


def test_context_variables_go_along(browser: Browser) -> None:
    name: ContextVar[str] = ContextVar("name", default="none")
    found: list[str] = []
    context = copy_context()
    context.run(name.set, "here")
    browser.queue.call_soon(lambda: found.append(name.get()), context=context)
    browser.queue.call_soon(lambda: found.append(name.get()))
    browser.end_turn()
    assert found == ["here", "none"]
