"""The device as it comes and goes: made ready when needed, rebuilt when lost, handed on when another tab waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from pyapp.door import tabs
from pyapp.door.decisions import Decisions
from pyapp.door.faults import is_curable, is_for_good
from pyapp.door.flight import Flight, StillLoading
from pyapp.door.opening import Opener, close_engine
from pyapp.door.options import ClientOptions
from pyapp.door.rebuilds import Rebuilds
from pyapp.door.services import Progress, Services
from pyapp.door.site import Site
from pyapp.door.standing import in_words, lost, taken_away
from pyapp.door.verdicts import Verdicts
from pyapp.door.visits import Visits
from pyapp.errors import Busy, Closed, DeviceLost, NoDevice, TandemError

log = logging.getLogger(__name__)

TAKE_OVER_SECONDS = 1.0
"""How long a rebuild waits for the cloud to begin: it keeps Python from passing the cloud's text on."""
State = Literal["unopened", "ready", "lost", "elsewhere", "loading", "never"]
"""``lost``: the engine is gone and may be rebuilt. ``elsewhere``: another tab has the GPU. ``loading``: it has no
models yet, and the cloud writes. ``never``: given up."""


class DeviceLifecycle:
    """The state of the device, what is told of it, and every step from one state to the next; ``Device`` has the users.

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
            assert self._reason is not None
            return lost(self._reason, rebuilding=self._flying(), refusal=self._rebuilds.refusal())
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
            "reason": in_words(self.absent, self._engine, probe, self._decisions.why_cloud),
            "pool": None if self._engine is None else self._engine.pool_status(),
            "decisions": self._decisions.listed(),
        }

    def _has_other_side(self) -> bool:
        """Whether texts come from the cloud while the device is away, so that waiting for it is background work."""
        return self.options.mode == "prefer_on_device" and self.options.cloud is not None

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
            with self._turn.working("loading its models"):
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
        self._check_open()

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

    def _missed(self, error: TandemError) -> None:
        """The device could not be made ready. One that has worked before may do so again, later."""
        self._turn.give()
        if self._closed:
            return
        self._visits.failed(error)
        if isinstance(error, DeviceLost):
            self._verdicts.forget()  # a check that was failed, perhaps, in a shape that was tried and kept
        if not self._was_ready or is_for_good(error):
            self._give_up(error)
            return
        self._rebuilds.failed()
        said = f"The GPU could not be made ready again: {error.message}"
        self._state, self._reason = "lost", DeviceLost(said, cause=error.as_dict())

    # -- losing it -----------------------------------------------------------------------------------------------------

    async def _watch(self, engine: Any) -> None:
        await engine.lost.wait()
        self._failed(engine, taken_away())

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

    async def close(self) -> None:
        """Gives the GPU back; also the one that an opening still under way is about to get."""
        self._closed = True
        self._taken_over.set()  # nobody waits for the cloud any more
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
