"""What earlier visits went through with this machine's GPU: the circuit breaker, and where it is kept.

It divides the work with ``rebuilds``. Within a visit, once the device has worked, a loss is answered by a rebuild, as
often as the setting allows; the breaker is not asked. Across visits the breaker remembers how work ended, and is asked
once, before the first opening: a device that keeps failing is left alone for a while, so that no visit walks into the
same wall. It is asked only where the cloud writes instead: with nobody else to answer, a poor chance is better than
none. It is told of every success and failure, whoever asked.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pyapp.door.faults import kind_of
from pyapp.door.machine import note_name
from pyapp.door.options import ClientOptions
from pyapp.door.services import Services
from pyapp.errors import NoDevice, TandemError
from pyapp.routing.breaker import Breaker, Kind

log = logging.getLogger(__name__)

WORDS: dict[Kind, str] = {
    "device_lost": "the GPU was lost",
    "out_of_memory": "its memory ran out",
    "bad_weights": "its weights were damaged",
    "wrong_result": "it computed wrong results",
    "stall": "it stood still",
}


class Visits:
    """The breaker of one client. Until ``admit`` has named the adapter there is nothing to count."""

    def __init__(self, options: ClientOptions, services: Services) -> None:
        self._options = options
        self._services = services
        self._notes = services.notes
        self._clock = services.wall_clock
        self._breaker: Breaker | None = None
        self._name = ""
        self._kept: Any = None
        self._saving: asyncio.Task[None] | None = None
        self._closed = False

    async def admit(self, adapter: str, *, has_other_side: bool) -> None:
        """Before the device is opened on ``adapter`` (its name). Later calls let through: see the module.

        Raises: NoDevice where the device is to be left alone on this visit, with ``details["wait"]`` in seconds.
        """
        if self._breaker is not None:
            return
        # What fails on one model or budget may do on another.
        self._name = note_name("breaker", self._services, adapter, self._options.model, self._options.pool_mib)
        try:
            self._kept = await self._notes.load(self._name)
        except Exception:
            log.exception("what earlier visits went through cannot be read")
        if self._closed:
            return  # nobody would say how a trial ended
        breaker = Breaker.from_state(self._kept, self._clock)
        wait = breaker.wait()
        if has_other_side and not breaker.admit():
            raise NoDevice(
                f"The device is not used on this visit, since it failed on earlier ones ({_counted(breaker)}); a visit "
                f"in {_time(wait)} tries it again.",
                adapter=adapter,
                failures=dict(breaker.counts),
                wait=wait,
            )
        self._breaker = breaker
        self._keep()

    def worked(self) -> None:
        """A text was written on the device, to its end."""
        if self._breaker is not None:
            self._breaker.succeeded()
            self._keep()

    def failed(self, error: TandemError) -> None:
        """The device failed, in the making or at work. Errors that say nothing of it only end a trial."""
        if self._breaker is None:
            return
        kind = kind_of(error)
        if kind is None:
            self._breaker.aborted()
        else:
            self._breaker.failed(kind)
        self._keep()

    def aborted(self) -> None:
        """The work was ended by the user, or by an error of the request."""
        if self._breaker is not None:
            self._breaker.aborted()
            self._keep()

    async def close(self) -> None:
        """Ends a trial that came to nothing, and returns once all is kept."""
        self._closed = True
        self.aborted()
        if self._saving is not None:
            await asyncio.wait([self._saving])

    def _keep(self) -> None:
        """Sees to it that the breaker's state is kept, in the background; nothing is written where nothing changed."""
        assert self._breaker is not None
        if self._breaker.state() != self._kept and (self._saving is None or self._saving.done()):
            self._saving = asyncio.ensure_future(self._save())

    async def _save(self) -> None:
        assert self._breaker is not None
        while (state := self._breaker.state()) != self._kept:
            self._kept = state
            try:
                await self._notes.save(self._name, state)
            except Exception:
                log.exception("what this visit went through cannot be kept")


def _counted(breaker: Breaker) -> str:
    return ", ".join(f"{WORDS[kind]} {count} time{'s' * (count > 1)}" for kind, count in breaker.counts.items())


def _time(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"
