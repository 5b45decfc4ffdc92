"""The device as the client sees it: opened when needed, rebuilt when lost, handed on when another tab waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Literal

from pyapp.door import tabs
from pyapp.door.decisions import Decisions
from pyapp.door.device_side import DeviceSide
from pyapp.door.faults import HARMLESS, is_curable, is_for_good
from pyapp.door.flight import Flight, StillLoading
from pyapp.door.opening import Opener, close_engine
from pyapp.door.options import ClientOptions
from pyapp.door.rebuilds import Rebuilds
from pyapp.door.services import Progress, Services
from pyapp.door.site import Site
from pyapp.door.stall import Watch
from pyapp.door.verdicts import Verdicts
from pyapp.door.visits import Visits
from pyapp.errors import BadArgument, Busy, Closed, DeviceLost, NoDevice, TandemError
from pyapp.routing.router import named

log = logging.getLogger(__name__)

Which = Literal["language", "vision"]
TAKE_OVER_SECONDS = 1.0
"""How long a rebuild waits for the cloud to begin: it keeps Python from passing the cloud's text on."""
State = Literal["unopened", "ready", "lost", "elsewhere", "loading", "never"]
"""``lost``: the engine is gone and may be rebuilt. ``elsewhere``: another tab has the GPU. ``loading``: it has no
models yet, and the cloud writes. ``never``: given up."""


class Device:
    """Who wants to work here asks ``using``, which opens, waits and, when the work fails, draws the consequences.

    ``page`` is the name by which other tabs hear of this one.
    """

    def __init__(
        self, options: ClientOptions, services: Services, base: str, progress: Progress, page: str = ""
    ) -> None:
        self.options = options
        self.services = services
        self.site = Site(options, services, base, progress)
        self.on_change: Callable[[], None] = lambda: None
        """Hears of a device that comes or goes. Must not raise."""
        self._visits = Visits(options, services)
        self._verdicts = Verdicts(services)
        self._opener = Opener(options, services, self.site, progress, self._check_open, self._admit, self._verdicts)
        self._rebuilds = Rebuilds(options.rebuilds_per_hour, services.clock)
        self._decisions = Decisions(options.cloud_below)
        self._turn = tabs.Turn(services.tab_lock, page, self._hand_on, services.clock)
        self._state: State = "unopened"
        self._reason: TandemError | None = None
        self._trouble: TandemError | None = None
        """Why an engine that is there has no language model."""
        self._engine: Any = None
        self._has_vision = False
        self._was_ready = False
        self._flight: Flight | None = None
        """The last attempt to make the device ready."""
        self._watcher: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._taken_over = asyncio.Event()
        """Clear between a failure in the middle of a text and the cloud's first piece of it."""
        self._taken_over.set()
        if options.mode == "only_in_cloud":
            self._give_up(NoDevice("The device is not used: the mode is only_in_cloud."))
        elif options.adapter == "none":
            self._give_up(NoDevice("The device is not used: the adapter asked for is none."))

    # -- what is known of it -------------------------------------------------------------------------------------------

    @property
    def absent(self) -> TandemError | None:
        """Why no text can come from here now; None while the device works or has not been tried yet."""
        if self._state == "lost":
            return self._lost()
        if self._flight is not None and self._flight.queued:
            return self._turn.busy()  # by now the holder may have said who it is
        return self._reason or self._trouble

    @property
    def writer(self) -> Any:
        """The engine that would write the next text, to be looked at; None where there is none at the moment."""
        return self._engine if self.usable else None

    @property
    def emulated(self) -> bool:
        """Whether the GPU that was found is one on the CPU."""
        return bool(getattr(self._opener.probe, "software", False))

    @property
    def usable(self) -> bool:
        """Whether the next text can come from here, as far as is known."""
        return self.absent is None

    @property
    def present(self) -> Any:
        """The engine where there is one now, for who only looks: no turn is taken or kept for that. Else None."""
        return self._engine if self._state == "ready" else None

    def returns(self) -> bool:
        """Whether waiting for the device makes sense."""
        if self._state == "lost":
            return self._flying() or self._rebuilds.refusal() is None
        return self._state != "never" and self._trouble is None

    def prefers_cloud(self) -> bool:
        """Whether the device has so little room that ``prefer_on_device`` asks the cloud first."""
        return self._decisions.why_cloud is not None

    def status(self) -> dict[str, Any]:
        """``Client.status`` but for the source."""
        probe = self._opener.probe
        return {
            "tier": getattr(probe, "tier", None) or ("unsupported" if self._state == "never" else None),
            "adapter": getattr(probe, "adapter", None) or None,
            "software": self.emulated,
            "loading": self._flying() and not self._flight.queued,  # type: ignore[union-attr]
            "reason": self._said(),
            "pool": None if self._engine is None else self._engine.pool_status(),
            "decisions": self._decisions.listed(),
        }

    def _said(self) -> str:
        if self.absent is not None:
            return self.absent.message
        if self._engine is None:
            return "The cloud is asked first, as the mode says; the device is made ready when the cloud fails."
        kind = "a software adapter, as asked" if self._opener.probe.software else "this device's GPU"
        return self._decisions.why_cloud or f"The model runs on {kind} ({self._opener.probe.adapter})."

    def _lost(self) -> DeviceLost:
        assert self._reason is not None
        said = self._reason.message.rstrip(".")
        if self._flying():
            return DeviceLost(f"{said}; the device is being made ready again.")
        refusal = self._rebuilds.refusal()
        rest = f"the device is not made ready again now: {refusal}" if refusal else "the next text makes it ready again"
        return DeviceLost(f"{said}; {rest}.", **self._reason.details)

    # -- using it ------------------------------------------------------------------------------------------------------

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

    @asynccontextmanager
    async def holding(self, what: str, which: Which, *, patient: bool) -> AsyncIterator[Any]:
        """The engine, while it does something (``what``, as the rest of "this tab is ...") with one of its models.

        ``patient``: waits for another tab and for a rebuild. Raises: why there is none.
        """
        wait = await self.knock(which, patient=patient)
        if wait is not None:
            if not patient:
                raise wait
            await self._arrival(which)
        engine = self._engine
        async with self._turn.working(what):
            yield engine

    @asynccontextmanager
    async def using(self, what: str, which: Which = "language", *, patient: bool) -> AsyncIterator[Any]:
        """``holding`` for the work that the device is there for: when that fails, the device has failed.

        Raises too: what the work raises, an error that nobody foresaw as DeviceLost.
        """
        async with self.holding(what, which, patient=patient) as engine:
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
            self._failed(self._engine, _taken_away())  # before whoever watches for it has woken
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

    async def close(self) -> None:
        """Gives the GPU back; also the one that an opening still under way is about to get."""
        self._closed = True
        self._let_go()
        self._give_up(NoDevice("The client is closed."))
        if self._closing:
            await asyncio.wait(self._closing)
        await self._visits.close()
        await self._verdicts.settle()
        if self._flight is not None:
            self._flight.call_off()
            if self._flight.called_off:
                await asyncio.wait([self._flight.task])
        if self._flight is not None and self._flight.under_way:
            self._flight.task.add_done_callback(lambda _: self._turn.close())  # it closes what it opens
        else:
            self._turn.close()

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

    def _has_other_side(self) -> bool:
        """Whether texts come from the cloud while the device is away, so that waiting for it is background work."""
        return self.options.mode == "prefer_on_device" and self.options.cloud is not None

    async def _admit(self, adapter: str) -> None:
        """The GPU is there: unless earlier visits speak against it, what remains is to load the models."""
        await self._visits.admit(adapter, has_other_side=self._has_other_side())
        flight = self._flight
        assert flight is not None
        if self._has_other_side() and self.options.cloud_while_loading and not flight.late.is_set():
            flight.late.set()
            if self._state != "lost":
                self._state, self._reason = "loading", StillLoading()
            self.on_change()

    # -- making it ready -----------------------------------------------------------------------------------------------

    def _flying(self) -> bool:
        return self._flight is not None and self._flight.under_way

    def _take_off(self) -> Flight:
        """Begins to make the device ready, unless that is under way. Raises: why not."""
        if self._flight is not None and self._flight.under_way:
            return self._flight
        if self._state == "never" or (self._state == "lost" and self._rebuilds.refusal() is not None):
            assert self.absent is not None
            raise self.absent
        if self._state == "lost":
            self._rebuilds.begin()
        self._flight = Flight(self._make_ready, after=self._flight)
        self._flight.task.add_done_callback(lambda _: self.on_change())
        return self._flight

    async def _make_ready(self, flight: Flight) -> None:
        """Takes the turn and opens an engine. Never raises; a failure is kept as the reason."""
        try:
            await flight.clear()
            if self._closing:
                await asyncio.wait(self._closing)
            await self._let_the_cloud_begin()
            if not await self._take_turn(flight):
                return
            async with self._turn.working("loading its models"):
                flight.fetching = True
                models = await self._opener.fetch()
                flight.fetching = False
                opened = await self._opener.open(models)
        except asyncio.CancelledError:
            self._turn.give()
            raise
        except Exception as error:
            if not isinstance(error, TandemError):
                log.exception("opening the device failed in a way nobody foresaw")
                cause = f"{type(error).__name__}: {error}"
                error = DeviceLost(f"The device failed while it was made ready ({error}).", cause=cause)
            self._missed(error)
            return
        if opened.engine is None:
            self._missed(opened.trouble or NoDevice("There is no model to run on this device."))
            return
        self._engine, self._has_vision, self._trouble = opened.engine, opened.has_vision, opened.trouble
        self._state, self._reason, self._was_ready = "ready", None, True
        self._rebuilds.succeeded()
        if self._trouble is not None:
            self._visits.failed(self._trouble)
        self._decisions.begin(self._engine, has_cloud=self._has_other_side() and self._trouble is None)
        self._watcher = asyncio.ensure_future(self._watch(self._engine))

    async def _let_the_cloud_begin(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKE_OVER_SECONDS):
                await self._taken_over.wait()

    async def _take_turn(self, flight: Flight) -> bool:
        """Whether the turn is had. It is not waited for where nobody would wait. Raises: Closed."""
        if await self._turn.take_now():
            return True
        self._check_open()
        self._state, self._reason = "elsewhere", self._turn.busy()
        if not flight.wanted and not self._has_other_side():
            self.on_change()
            return False
        flight.queued = True
        flight.late.set()
        self.on_change()
        try:
            await self._turn.take()
        finally:
            flight.queued = False
        self._check_open()
        self._reason = Busy("Another tab of this site had the GPU; the models are being loaded here.")
        self.on_change()
        return True

    def _missed(self, error: TandemError) -> None:
        """The device could not be made ready. One that has worked before may do so again, later."""
        self._turn.give()
        if self._closed:
            return
        self._visits.failed(error)
        if not self._was_ready or is_for_good(error):
            self._give_up(error)
            return
        self._rebuilds.failed()
        said = f"The GPU could not be made ready again: {error.message}"
        self._state, self._reason = "lost", DeviceLost(said, cause=error.as_dict())

    # -- losing it -----------------------------------------------------------------------------------------------------

    async def _watch(self, engine: Any) -> None:
        await engine.lost.wait()
        self._failed(engine, _taken_away())

    def _failed(self, engine: Any, error: TandemError) -> None:
        """``engine`` failed at work. Until it is back the cloud writes and the CPU looks."""
        if engine is not self._engine:
            return  # told before, or closed by ourselves
        self._visits.failed(error)
        self._verdicts.forget()
        closing = self._let_go()
        self._state, self._reason = ("lost" if is_curable(error) else "never"), error
        if self._state == "lost" and self._rebuilds.refusal() is None:
            self._take_off()
        if not self._flying() and closing is not None:
            closing.add_done_callback(lambda _: self._turn.give())
        self.on_change()

    async def _hand_on(self) -> None:
        """Another tab's turn: the engine goes, and comes back when it is needed."""
        closing = self._let_go()
        if self._state == "ready":
            self._state, self._reason = "elsewhere", self._turn.busy()
            self.on_change()
        if closing is not None:
            await closing

    def _give_up(self, reason: TandemError) -> None:
        self._state, self._reason = "never", reason
        self.on_change()

    def _let_go(self) -> asyncio.Task[None] | None:
        """Parts with the engine; the result ends once its GPU memory is free."""
        engine, self._engine = self._engine, None
        self._has_vision, self._trouble = False, None
        if engine is None:
            return None
        self._decisions.end()
        if self._watcher is not None:
            self._watcher.cancel()
        task = asyncio.ensure_future(close_engine(engine))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("The client is closed.")


def _taken_away() -> DeviceLost:
    return DeviceLost("The GPU was lost: the browser or its driver took it away.")
