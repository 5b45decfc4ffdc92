"""Two tabs of a site on one GPU, each with a client: what the tests of the tabs share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.door import tabs as tabs_module
from pyapp.door.services import Services
from tests.unit.door_fakes import FakeEngine, World
from tests.unit.tab_fakes import FakeTabs
from tests.unit.test_client import opened

ONLY = {"mode": "only_on_device"}
HOLD = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits, a hundred times shorter."""
    monkeypatch.setattr(tabs_module, "HOLD_SECONDS", HOLD)
    monkeypatch.setattr(tabs_module, "WAIT_SECONDS", 0.6)
    monkeypatch.setattr(tabs_module, "ASK_SECONDS", 0.01)


class Clock:
    """Stands still unless a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Tab(World):
    """A tab's world. Of the tabs that are made with the same ``site`` only one may have an engine at a time."""

    def __init__(self, site: FakeTabs, clock: Callable[[], float] = time.monotonic, **world: Any) -> None:
        super().__init__(tab_lock=site.lock, **world)
        self._clock = clock
        self.made = Alone(self, site)

    def services(self) -> Services:
        return replace(super().services(), clock=self._clock)

    @property
    def has_pool(self) -> bool:
        return any(not engine.closed for engine in self.made)


class Alone(list[FakeEngine]):
    """A tab's engines; one that comes while another tab has one is refused."""

    def __init__(self, tab: Tab, site: FakeTabs) -> None:
        super().__init__()
        self._site = site
        site.tabs.append(tab)

    def append(self, engine: FakeEngine) -> None:
        assert self._site.refused or not any(tab.has_pool for tab in self._site.tabs), "two pools at a time"
        super().append(engine)


async def one_writing(a: Tab, b: Tab) -> tuple[Client, Client, Any]:
    """Two clients, ``a``'s in the middle of a text so that ``b``'s has to wait: the first, the second, and the text."""
    second = await opened(b, **ONLY)
    first = await opened(a, **ONLY)
    a.made[-1].hold_at = 1
    writing = first.generate(prompt="Hi")
    await anext(writing)
    return first, second, writing


def two(clock: Callable[[], float] = time.monotonic) -> tuple[FakeTabs, Tab, Tab]:
    site = FakeTabs()
    return site, Tab(site, clock), Tab(site, clock)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not true():  # noqa: ASYNC110 - what the other tab does
            await asyncio.sleep(0.001)
