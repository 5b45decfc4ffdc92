"""What checks of the kernels found on earlier visits, so that one is not made on each.

A verdict counts for an adapter, a browser, a version of ours and a set of kernels (formats and limits of the device
with them), for a week, and only as long as the device works: one that has failed is checked again, be it rebuilt on
this visit or opened on the next. After a loss a driver is least to be trusted, and a check takes a fraction of a
rebuild.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

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

    async def passed(self, name: str) -> bool:
        await self.settle()
        try:
            when = await self._notes.load(name)
        except Exception:
            log.exception("earlier checks of the kernels cannot be read")
            return False
        self._relied_on.add(name)
        # One from the future is of a clock that has been put back: nobody knows how old it is.
        return isinstance(when, int | float) and 0 <= self._clock() - when < KEPT_SECONDS

    async def keep(self, name: str) -> None:
        self._relied_on.add(name)
        await self._save(name, self._clock())

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

    async def _save(self, name: str, when: float | None) -> None:
        try:
            await self._notes.save(name, when)
        except Exception:
            log.exception("a check of the kernels cannot be kept")


class VerdictsOnAdapter:
    """See ``engine.selfcheck.Verdicts``."""

    def __init__(self, verdicts: Verdicts, name: Callable[[str], str]) -> None:
        self._verdicts = verdicts
        self._name = name

    async def passed(self, kernels: str) -> bool:
        return await self._verdicts.passed(self._name(kernels))

    async def keep(self, kernels: str) -> None:
        await self._verdicts.keep(self._name(kernels))
