"""The door: one object that describes photos and writes copy, on this device or from the cloud.

``tandem.js`` is the same door in JavaScript: it posts calls to ``pyapp.worker``, which makes them here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any
from weakref import WeakSet

from pyapp import timeline
from pyapp.door import events
from pyapp.door.device import Device
from pyapp.door.device_side import DeviceSide
from pyapp.door.events import Event
from pyapp.door.generation import Generation, Signal
from pyapp.door.inspection import Inspect
from pyapp.door.options import (
    PROMPT_NAMES,
    SAMPLING_NAMES,
    ClientOptions,
    Spell,
    known,
    sampling_params,
    snake,
    well_formed,
)
from pyapp.door.photo import describe_photo
from pyapp.door.pressure import Pressure
from pyapp.door.services import Services, browser_services
from pyapp.door.telemetry import Telemetry
from pyapp.errors import Closed
from pyapp.routing.router import End, Note, Part, Piece, Router, Source, Tally, Turn
from pyapp.routing.telemetry import Record
from pyapp.text.prompts import build_messages

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long ``close`` waits for the calls that it ends."""


class Client:
    """See ``create``. Calls made at the same time queue: texts in their order, photos in theirs."""

    def __init__(self, options: ClientOptions, services: Services, device: Device, spell: Spell) -> None:
        self._spell = spell
        self._device = device
        site = device.site
        self._cloud = None if options.cloud is None else services.cloud_side(site.address(options.cloud), site.shop())
        telemetry = options.telemetry
        reporter = None if telemetry is None else services.reporter(site.address(telemetry), site.shop())
        self._telemetry = Telemetry(options, services.clock, reporter, lambda: device.status()["tier"])
        self._pressure = Pressure(options, services, device, self._tell_status)
        self._router = Router(
            options.mode,
            device.side,
            self._cloud,
            patient_device=DeviceSide(device, patient=True),
            device_returns=device.returns,
            device_absent=lambda: device.absent,
            cloud_first=device.prefers_cloud,
            pressure=self._pressure.weigh,
        )
        self._writing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._running: WeakSet[Generation] = WeakSet()
        self._closed = False
        self.inspect = Inspect(self._device, self._writing, self._looking, self._open, spell)
        """The parts of the machine, for tests and the curious; see ``pyapp.door.inspection``."""
        self.on_status: Callable[[dict[str, Any]], None] = lambda status: None
        """Hears of every new ``status``."""
        self._device.on_change = self._tell_status
        self._retelling: asyncio.TimerHandle | None = None
        """Of a status that changes although nothing happens."""

    @classmethod
    async def create(
        cls,
        *,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        base: str | None = None,
        page: str = "",
        services: Services | None = None,
        spell: Spell = snake,
        **options: Any,
    ) -> Client:
        """Opens a client; returns when ``generate`` can answer, from the cloud too.

        ``options``: ``model`` ("smollm2-135m", or the URL of a .gguf file), ``vision`` ("efficientnet-lite0" or None),
        ``mode`` ("prefer_on_device", "only_on_device", "prefer_in_cloud", "only_in_cloud"), ``pool_mib`` (900),
        ``cloud`` ("/api/ai/cloud-stream", or None), ``adapter`` ("auto", "software", "none"), ``rebuilds_per_hour`` (6:
        how often a lost GPU is made ready again; 0: never), ``cloud_below`` (0.7: with room for a smaller share of the
        language model, ``prefer_on_device`` asks the cloud first), ``stream_below`` (1.0: with room for a smaller share
        its weights are streamed), ``limits`` (None, or lower ``maxBufferSize`` and ``maxStorageBufferBindingSize`` than
        the GPU's, in bytes), ``context_pressure`` (2048: tokens past which ``prefer_on_device`` has the cloud write
        where memory is under 4 GB; None: however many), ``stall_seconds`` (30: a GPU from which nothing has come for so
        long, at least twice that before the first token, is given up, see ``pyapp.door.stall``; None: never), ``site``
        (None, or the merchant's public key, for a gateway with shops), ``ancestor`` (with ``site``: the origin of the
        shop's page; None: the one that this runs on), ``cloud_while_loading`` (True: with ``prefer_on_device`` and a
        cloud, returns once it is known whether there is a GPU; until the models are loaded the cloud writes, and photos
        are looked at on the CPU. False: returns when the device is ready), ``tune`` (False; True: the first start on a
        GPU tries which shapes of the kernels are the fastest and keeps them), ``telemetry`` (None, or the URL that gets
        a record of each text, see ``on_telemetry``).
        ``on_progress`` gets ``{"stage", "loaded", "total"}``, ``base`` is the site's address (None: the top of the site
        that this runs on), from where relative addresses go; ``page`` is the name under which other tabs that wait for
        the GPU hear of this one.

        Raises: BadArgument; with ``only_on_device`` also the error that kept the device from working, and Busy where
        another tab has kept the GPU for a minute.
        """
        checked = ClientOptions.checked(options, spell)

        def report(stage: str, loaded: int, total: int | None = None) -> None:
            if on_progress is not None:
                on_progress({"stage": stage, "loaded": loaded, "total": total})

        services = services or browser_services()
        device = Device(checked, services, services.base if base is None else base, report, page)
        try:
            with timeline.stage("list of models", "modules imported"):
                await device.site.check_names(spell)
            await device.open()
        except BaseException:
            await device.close()
            raise
        return cls(checked, services, device, spell)

    @property
    def status(self) -> dict[str, Any]:
        """A snapshot: ``{tier, adapter, software, loading, source, reason, pool, decisions}``, pool in bytes or None,
        decisions as in ``pyapp.door.decisions``; ``loading``: whether models are being loaded, of which ``on_progress``
        hears.

        ``source`` is the side that the next text comes from: "device" or "cloud".
        """
        status = {**self._device.status(), "source": self._next_source()}
        spared = self._spared()
        return status if spared is None else {**status, "reason": spared.message}

    @property
    def on_telemetry(self) -> Callable[[Record], None]:
        """Hears of every text at its end: figures only, see ``pyapp.routing.telemetry``."""
        return self._telemetry.on_record

    @on_telemetry.setter
    def on_telemetry(self, hear: Callable[[Record], None]) -> None:
        self._telemetry.on_record = hear

    def generate(self, *, signal: Signal | None = None, **request: Any) -> Generation:
        """Writes: an async iterator of events (``pyapp.door.events``). Begins at the first ``anext``.

        ``request``: ``prompt`` or ``messages``, ``facts``, ``brief``, ``max_tokens`` (256), ``temperature`` (0),
        ``top_k`` (0), ``top_p`` (1), ``seed`` (0). Setting ``signal`` ends the stream with reason "abort"; of a call
        whose signal is set before it begins the arguments are checked, and nothing else is done.

        Raises while iterating: BadArgument, ContextFull, Closed, and what kept every allowed side from answering.
        """
        return Generation(lambda tally: self._begin(request, tally), signal, self._running.add)

    def _begin(self, request: dict[str, Any], tally: Tally) -> AsyncGenerator[Event]:
        """The events of a request that is in order. Raises: BadArgument, Closed."""
        self._open()
        known(request, (*PROMPT_NAMES, *SAMPLING_NAMES), "generate", self._spell)
        sampling = sampling_params(request, self._spell)
        messages = build_messages(**{name: well_formed(request.get(name)) for name in PROMPT_NAMES})
        return self._generate(Turn(messages, sampling), tally)

    async def _generate(self, turn: Turn, tally: Tally) -> AsyncGenerator[Event]:
        tally.source = self._next_source()
        with self._telemetry.text(tally, lambda: self._closed) as watch:
            if self._writing.locked():
                yield events.status("queued", events.STATUS_CODES["queued"].capitalize() + ".", tally.source)
            async with self._writing:
                self._open()
                tally.source = self._next_source()  # it may be another one than before the wait
                try:
                    async with aclosing(self._router.stream(turn, tally)) as stream:
                        async for source, part in stream:
                            self._pressure.heard(source, part)
                            watch.heard(source, part)
                            if source == "cloud" and isinstance(part, Piece):
                                self._device.taken_over()
                            for event in _events(source, part, tally):
                                yield event
                finally:
                    self._tell_status()

    async def describe(self, image: Any) -> dict[str, Any]:
        """What is in a photo: ``{labels: [{index, name, p}] (5), source: "device" | "cpu", width, height}``.

        ``image`` is a JavaScript Blob, or the bytes of a PNG, JPEG, WebP or AVIF file. It never leaves this machine.

        Raises: BadImage, BadArgument (a client without a vision model), BadWeights, BadModel, Closed.
        """
        self._open()
        async with self._looking:
            self._open()
            try:
                return await describe_photo(self._device, image)
            except Exception:
                self._open()  # a call that was under way when the client was closed ends with that
                raise
            finally:
                self._tell_status()

    async def close(self) -> None:
        """Ends all calls with ``Closed`` and gives the GPU back. Harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        for generation in list(self._running):
            generation.fail(_closed())
        tasks = [generation.task for generation in self._running if generation.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)  # one that a GPU holds up ends when its engine is closed
        self._pressure.close()
        await asyncio.gather(self._telemetry.close(), self._device.close())
        self._tell_status()

    def _tell_status(self) -> None:
        """Never raises: a page that fails at hearing of a change must not keep the GPU from being given back."""
        try:
            self.on_status(self.status)
        except Exception:
            log.exception("on_status failed")
        if self._retelling is not None:
            self._retelling.cancel()
        seconds = None if self._closed else self._pressure.changes_in()
        if seconds is not None:
            self._retelling = asyncio.get_running_loop().call_later(seconds, self._tell_status)

    def _open(self) -> None:
        if self._closed:
            raise _closed()

    def _spared(self) -> Note | None:
        """Why the next text goes to the cloud although the device could write it, as far as that is known before."""
        sparable = self._router.order() == ["device", "cloud"] and self._device.usable
        return self._pressure.foresee() if sparable else None

    def _next_source(self) -> Source:
        if self._spared() is not None:
            return "cloud"
        for source in self._router.order():
            if source == "cloud" or self._device.usable:
                return source
        return self._router.order()[-1]


def _events(source: Source, part: Part, tally: Tally) -> list[Event]:
    """What a part of the answer looks like from outside."""
    match part:
        case Piece(text, tokens):
            return [events.text(text, tokens, source)] if text else []
        case Note(code, message):
            return [events.status(code, message, source)]
        case End(reason):
            return [events.usage(tally), events.done(reason, source)]
    return []


def _closed() -> Closed:
    return Closed("This client is closed; create a new one.")
