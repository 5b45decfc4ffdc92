"""The device as the client sees it: opened once, given up at its first failure, and then a reason why not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pyapp.door.device_side import DeviceSide
from pyapp.door.options import ClientOptions, Spell, is_url
from pyapp.door.services import Progress, Services, SiteError
from pyapp.errors import BadArgument, BadModel, BadWeights, DeviceLost, NoDevice, TandemError

log = logging.getLogger(__name__)

MIB = 1 << 20


class Device:
    """Probe, store and engine behind one question: is there somebody here who can answer?

    ``absent`` is None while the device works or has not been tried yet, and else the error that says why not.
    """

    def __init__(self, options: ClientOptions, services: Services, base: str, progress: Progress) -> None:
        self.options = options
        self.services = services
        self.absent: TandemError | None = None
        self._base = base if base.endswith("/") else base + "/"
        self._progress = progress
        self._engine: Any = None
        self._has_vision = False
        self._probe: Any = None
        self._opening = asyncio.Lock()
        self._vision: Any = None
        self._cpu: Any = None
        self._classes: list[str] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self.on_change: Callable[[], None] = lambda: None
        """Hears of a device that comes or goes."""
        if options.mode == "only_in_cloud":
            self.absent = NoDevice("The device is not used: the mode is only_in_cloud.")
        elif options.adapter == "none":
            self.absent = NoDevice("The device is not used: the adapter asked for is none.")

    @property
    def usable(self) -> bool:
        """Whether the next text can come from here, as far as is known."""
        return self.absent is None

    def model_url(self, model: str) -> str:
        return model if is_url(model) else f"{self._base}models/{model}/manifest.json"

    async def check_names(self, spell: Spell) -> None:
        """Raises: BadArgument for a model that this site does not have, with the names of those it has."""
        names = {"model": self.options.model, "vision": self.options.vision}
        wanted = {argument: name for argument, name in names.items() if name is not None and not is_url(name)}
        if not wanted:
            return
        try:
            listed = (await self.services.fetch_json(f"{self._base}models/index.json"))["models"]
            here = [(entry["name"], entry["kind"]) for entry in listed]
        except (SiteError, KeyError, TypeError) as error:
            log.warning("the site's list of models cannot be read: %s", error)
            return  # whether the model is there shows when it is fetched
        for argument, name in wanted.items():
            kind = "vision" if argument == "vision" else "language"
            if (name, kind) not in here:
                there = [other for other, its_kind in here if its_kind == kind]
                raise BadArgument(
                    f"{spell(argument)} must be one of {', '.join(there) or 'none'} on this site; it was {name!r}.",
                    argument=argument,
                    allowed=there,
                )

    async def open(self) -> None:
        """What ``create`` waits for. Raises: with ``only_on_device``, the reason why there is no device."""
        if self.options.mode == "prefer_in_cloud" and self.options.cloud is not None:
            return  # opened when the cloud fails for the first time
        try:
            await self.engine()
        except TandemError:
            if self.options.mode == "only_on_device":
                raise

    async def side(self) -> DeviceSide:
        """For the router. Raises: the reason why there is no device."""
        return DeviceSide(await self.engine())

    async def engine(self) -> Any:
        """The engine with its language model; opened at the first call. Raises: the reason why there is none."""
        async with self._opening:
            if self.absent is None and self._engine is None:
                try:
                    await self._open()
                except TandemError as error:
                    self._give_up(error)
                except Exception as error:
                    log.exception("opening the device failed in a way nobody foresaw")
                    cause = f"{type(error).__name__}: {error}"
                    self._give_up(DeviceLost(f"The device failed while it was made ready ({error}).", cause=cause))
        if self.absent is not None:
            raise self.absent
        return self._engine

    async def vision_engine(self) -> Any:
        """The engine with its vision model, None where pictures are for the CPU. Opens nothing."""
        return self._engine if self._has_vision else None

    def fail(self, error: TandemError) -> None:
        """The device failed at work: from now on the cloud writes and the CPU looks."""
        if self._engine is not None and error is not self.absent:
            self._give_up(self.absent or error)

    async def classify(self, pixels: Any) -> tuple[Any, str]:
        """``(logits float32 [classes], "device" | "cpu")`` of ``uint8 [224, 224, 3]``, on whichever there is."""
        if self._has_vision:
            try:
                return await self._engine.classify(pixels), "device"
            except BadArgument:
                raise
            except Exception as error:
                if self._closed:
                    raise
                log.exception("the vision model failed on the device; the CPU takes over")
                lost = DeviceLost(f"The device failed at work ({error}).", cause=f"{type(error).__name__}: {error}")
                self.fail(error if isinstance(error, TandemError) else lost)
        stored = await self._vision_model()
        if self._cpu is None:
            self._cpu = await self.services.cpu_vision(stored)
        return self._cpu.classify(pixels), "cpu"

    async def classes(self) -> list[str]:
        """The names of the vision model's classes. Raises: BadModel, BadWeights where there is no list of them."""
        if self._classes is None:
            stored = await self._vision_model()
            names = await stored.sidecar("classes")
            if isinstance(names, dict):
                names = [names[str(index)] for index in range(len(names))]
            if not isinstance(names, list):
                raise BadModel(f"The vision model {stored.name} has no list of classes; build the site again.")
            self._classes = [str(name) for name in names]
        return self._classes

    def status(self) -> dict[str, Any]:
        """``Client.status`` but for the source."""
        probe = self._probe
        return {
            "tier": getattr(probe, "tier", None) or ("unsupported" if self.absent else None),
            "adapter": getattr(probe, "adapter", None) or None,
            "software": bool(getattr(probe, "software", False)),
            "reason": self._reason(),
            "pool": None if self._engine is None else self._engine.pool_status(),
        }

    async def close(self) -> None:
        """Gives the GPU back; also the one that an opening still under way is about to get."""
        self._closed = True
        self._give_up(NoDevice("The client is closed."))
        if self._closing:
            await asyncio.wait(self._closing)

    def _reason(self) -> str:
        if self.absent is not None:
            return self.absent.message
        if self._engine is None:
            return "The cloud is asked first, as the mode says; the device is made ready when the cloud fails."
        kind = "a software adapter, as asked" if self._probe.software else "this device's GPU"
        return f"The model runs on {kind} ({self._probe.adapter})."

    async def _open(self) -> None:
        self._probe = await self.services.probe(self.options.adapter)
        if not self._probe.usable:
            said = self._probe.reason.rstrip(".")
            raise NoDevice(f"The device is not used: {said}.", tier=self._probe.tier, adapter=self._probe.adapter)
        trouble: TandemError | None = None
        language = None
        try:
            language = await self.services.ensure_model(self.model_url(self.options.model), self._progress)
        except (BadModel, BadWeights) as error:
            if self.options.mode == "only_on_device":
                raise
            trouble = error  # the GPU can still look at pictures
        vision = None
        if self.options.vision is not None:
            try:
                vision = await self._vision_model()
            except TandemError as error:
                log.warning("no vision model for now: %s", error.message)  # describe tries again, and says it
        if language is not None or vision is not None:
            try:
                self._engine = await self._create(language, vision)
            except (BadModel, BadWeights) as error:
                if language is None or vision is None or self.options.mode == "only_on_device":
                    raise
                # A file that is none was found out before the GPU was asked for anything, so it is still to be had.
                trouble = error
                try:
                    self._engine = await self._create(None, vision)
                except TandemError:
                    raise error from None
            self._has_vision = vision is not None
            self._watcher = asyncio.ensure_future(self._watch(self._engine))
        if trouble is not None:
            self.absent = trouble
        self.on_change()

    async def _create(self, language: Any, vision: Any) -> Any:
        wishes = {"budget": self.options.pool_mib * MIB, "language": language, "vision": vision}
        try:
            engine = await self.services.create_engine(adapter=self._probe, progress=self._progress, **wishes)
        except BadWeights as error:
            if not error.details.get("repack"):
                raise
            # What an earlier visit had packed was damaged, and is deleted: made anew, on an adapter not yet used.
            log.warning("the stored weights are made again: %s", error.message)
            self._probe = await self.services.probe(self.options.adapter)
            engine = await self.services.create_engine(adapter=self._probe, progress=self._progress, **wishes)
        if self._closed:
            await _close(engine)
            raise NoDevice("The client is closed.")
        return engine

    async def _vision_model(self) -> Any:
        if self._vision is None:
            url = self.model_url(str(self.options.vision))
            self._vision = await self.services.ensure_model(url, self._progress)
        return self._vision

    async def _watch(self, engine: Any) -> None:
        await engine.lost.wait()
        if engine is self._engine:
            self.fail(DeviceLost("The GPU was lost: the browser or its driver took it away."))

    def _give_up(self, reason: TandemError) -> None:
        self.absent = reason
        engine, self._engine = self._engine, None
        self._has_vision = False
        if engine is not None:
            if self._watcher is not None:
                self._watcher.cancel()
            task = asyncio.ensure_future(_close(engine))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self.on_change()


async def _close(engine: Any) -> None:
    try:
        await engine.close()
    except Exception:
        log.exception("closing the engine failed")
