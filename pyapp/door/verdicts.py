"""What was found out about the kernels on earlier visits, so that it is not found out on each: which are right, and in
which shapes they are fastest.

A verdict counts for an adapter, a browser, a version of ours and a set of kernels (formats and limits of the device
with them), for a week, and only as long as the device works: one that has failed is checked again, be it rebuilt on
this visit or opened on the next. After a loss a driver is least to be trusted, and a check takes a fraction of a
rebuild. The shapes go with the verdicts: where a device fails, they may be why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pyapp.door.machine import note_name
from pyapp.door.services import Services

log = logging.getLogger(__name__)

KEPT_SECONDS = 7 * 86400.0


class Verdicts:
    """Those of one client. Storage that fails only means that another check is made."""

    def __init__(self, services: Services) -> None:
        self._notes = services.notes
        self._clock = services.wall_clock
        self._services = services
        self._relied_on: set[str] = set()
        """Notes that this client has read or written."""
        self._forgetting: set[asyncio.Task[None]] = set()

    def on(self, adapter: str) -> VerdictsOnAdapter:
        """What the engine that is opened on ``adapter`` (its name) is handed."""
        return VerdictsOnAdapter(self, lambda kernels: note_name("kernels", self._services, adapter, kernels))

    def shapes_on(self, adapter: str) -> ShapesOnAdapter:
        """The same, for the shapes."""
        return ShapesOnAdapter(self, note_name("shapes", self._services, adapter))

    async def load(self, name: str) -> Any:
        """A note, on which this client relies from now on; None where there is none."""
        await self.settle()
        self._relied_on.add(name)
        try:
            return await self._notes.load(name)
        except Exception:
            log.exception("what was found out about the kernels cannot be read")
            return None

    async def passed(self, name: str) -> bool:
        when = await self.load(name)
        # One from the future is of a clock that has been put back: nobody knows how old it is.
        return isinstance(when, int | float) and 0 <= self._clock() - when < KEPT_SECONDS

    async def keep(self, name: str, value: Any) -> None:
        self._relied_on.add(name)
        await self._save(name, value)

    @property
    def now(self) -> float:
        """Seconds that mean the same on the next visit."""
        return self._clock()

    def forget(self) -> None:
        """The device has failed: what is known of its kernels no longer counts."""
        for name in self._relied_on:
            task = asyncio.ensure_future(self._save(name, None))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)
        self._relied_on.clear()

    async def settle(self) -> None:
        """Returns once all is forgotten that was to be."""
        if self._forgetting:
            await asyncio.wait(self._forgetting)

    async def _save(self, name: str, value: Any) -> None:
        try:
            await self._notes.save(name, value)
        except Exception:
            log.exception("what was found out about the kernels cannot be kept")


class VerdictsOnAdapter:
    """See ``engine.selfcheck.Verdicts``."""

    def __init__(self, verdicts: Verdicts, name: Callable[[str], str]) -> None:
        self._verdicts = verdicts
        self._name = name

    async def passed(self, kernels: str) -> bool:
        return await self._verdicts.passed(self._name(kernels))

    async def keep(self, kernels: str) -> None:
        await self._verdicts.keep(self._name(kernels), self._verdicts.now)


class ShapesOnAdapter:
    """See ``engine.tuner.ShapeNotes``."""

    def __init__(self, verdicts: Verdicts, name: str) -> None:
        self._verdicts = verdicts
        self._name = name

    async def load(self) -> Any:
        return await self._verdicts.load(self._name)

    async def keep(self, value: dict[str, list[int]]) -> None:
        await self._verdicts.keep(self._name, value)
