"""The device as its users see it: they ask for the engine, and need not know whether it was open, lost or elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Literal

from pyapp.door import tabs
from pyapp.door.device_lifecycle import DeviceLifecycle
from pyapp.door.device_side import DeviceSide
from pyapp.door.faults import HARMLESS
from pyapp.door.flight import Flight
from pyapp.door.stall import Watch
from pyapp.door.standing import taken_away
from pyapp.errors import BadArgument, DeviceLost, NoDevice, TandemError
from pyapp.routing.router import named

log = logging.getLogger(__name__)

Which = Literal["language", "vision"]


class Device(DeviceLifecycle):
    """Who wants to work here asks ``using``, which opens, waits and, when the work fails, draws the consequences."""

    async def open(self) -> None:
        """What ``create`` waits for. Raises: with ``only_on_device``, the reason why there is no device."""
        if self.options.mode == "prefer_in_cloud" and self.options.cloud is not None:
            return  # opened when the cloud fails for the first time
        try:
            wait = await self.knock(patient=not self._has_other_side())
            if wait is not None and not self._has_other_side():
                await self._arrival()
        except TandemError:
            if self.options.mode == "only_on_device":
                raise

    async def side(self) -> DeviceSide:
        """For the router: answers at once or not at all."""
        return DeviceSide(self, patient=False)

    async def reach(self, which: Which, *, patient: bool) -> Any:
        """The engine, to do something with one of its models: at once, and all of it while ``working``.

        ``patient``: waits for another tab and for a rebuild. Raises: why there is none.
        """
        wait = await self.knock(which, patient=patient)
        if wait is not None:
            if not patient:
                raise wait
            await self._arrival(which)
        return self._engine

    def working(self, what: str) -> AbstractContextManager[None]:
        """Around what is done with the engine (``what``, as the rest of "this tab is ...")."""
        return self._turn.working(what)

    @asynccontextmanager
    async def using(self, what: str, which: Which = "language", *, patient: bool) -> AsyncIterator[Any]:
        """``reach`` and ``working``, for the work that the device is there for: when that fails, the device has failed.

        Raises too: what the work raises, an error that nobody foresaw as DeviceLost.
        """
        engine = await self.reach(which, patient=patient)
        with self.working(what):
            try:
                yield engine
                if which == "language":  # a picture asks little of a GPU
                    self._visits.worked()
            except (*HARMLESS, asyncio.CancelledError, GeneratorExit):
                self._visits.aborted()
                raise
            except Exception as error:
                failure = named("device", error)
                if which == "language" and not patient and self._has_other_side():
                    self._taken_over.clear()
                self._failed(engine, failure)
                if failure is error:
                    raise
                raise failure from error

    def watch(self, engine: Any) -> Watch:
        """Around work with ``engine``: where it hangs, the device has failed."""
        options, clock = self.options, self.services.clock
        return Watch(options.stall_seconds, clock, lambda: engine.pulse, lambda error: self._failed(engine, error))

    async def knock(self, which: Which = "language", *, patient: bool) -> TandemError | None:
        """Sees to it that the device becomes ready. Returns None once it is; the reason where that may take long.

        ``patient``: whether the caller would wait for another tab. Where nobody does, only a free turn is taken.
        Raises: the reason why there is none and none is to come.
        """
        if patient:
            self.taken_over()
        await self._turn.offer()
        if self._engine is not None and self._engine.lost.is_set():
            self._failed(self._engine, taken_away())  # before whoever watches for it has woken
        if self._state != "ready":
            flight = self._take_off()
            if self._state == "lost" or flight.late.is_set():
                return self.absent
            late = asyncio.ensure_future(flight.late.wait())
            try:
                with flight.waited_for() if patient else nullcontext():
                    await asyncio.wait({flight.task, late}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self._unwanted(flight)
                raise
            finally:
                late.cancel()
            if flight.late.is_set() and flight.under_way:
                return self.absent
        self._check(which)
        return None

    def taken_over(self) -> None:
        """The cloud's text has begun, or nobody waits for one: a rebuild is in nobody's way any more."""
        self._taken_over.set()

    async def classify(self, pixels: Any) -> tuple[Any, str]:
        """``(logits float32 [classes], "device" | "cpu")`` of ``uint8 [224, 224, 3]``, on whichever there is."""
        # A picture does not open the device, but it brings back one that was open.
        if self._state != "unopened":
            try:
                async with (
                    self.using("looking at a picture", "vision", patient=False) as engine,
                    self.watch(engine) as watch,
                ):
                    return await watch.wait(engine.classify(pixels), times=2), "device"
            except BadArgument:
                raise
            except TandemError as error:
                if self._closed:
                    raise
                log.info("the CPU looks at the picture: %s", error.message)
        return await self.site.classify_on_cpu(pixels), "cpu"

    async def _arrival(self, which: Which = "language") -> None:
        """Waits for what ``knock`` has begun. Raises: why it came to nothing; Busy when the turn did not come."""
        flight = self._flight
        assert flight is not None
        try:
            with flight.waited_for():
                while not flight.task.done():
                    await asyncio.wait([flight.task], timeout=tabs.WAIT_SECONDS)
                    if flight.queued:
                        raise self._turn.busy(tabs.WAIT_SECONDS)
        finally:
            self._unwanted(flight)
        self._check(which)

    def _unwanted(self, flight: Flight) -> None:
        """Somebody has stopped waiting for ``flight``, which need not go on for nobody."""
        if flight.queued and not flight.wanted and not self._has_other_side():
            flight.call_off()

    def _check(self, which: Which) -> None:
        """Raises: why the model is not there."""
        if self._state != "ready":
            raise self.absent or DeviceLost("The device was given up while it was made ready.")
        if which == "language" and self._trouble is not None:
            raise self._trouble
        if which == "vision" and not self._has_vision:
            raise NoDevice("No vision model runs on this device; open the client with one.")
