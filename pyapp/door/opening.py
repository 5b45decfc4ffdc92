"""An engine, opened: the GPU that is there, the models from the store, and what to make of a model that is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pyapp import timeline
from pyapp.door.options import ClientOptions
from pyapp.door.services import Progress, Services
from pyapp.door.site import Site
from pyapp.door.stall import Watch
from pyapp.door.verdicts import Verdicts
from pyapp.errors import BadModel, BadWeights, Closed, NoDevice, TandemError

log = logging.getLogger(__name__)

MIB = 1 << 20
CLOSE_SECONDS = 10.0
"""The next engine, and the next tab, wait for one that is closed."""
LOADING_PATIENCE = 4
"""How many times as long as a token a step of loading may take: a driver compiles a shader in one go, say."""


@dataclass(frozen=True)
class Fetched:
    """Models in the store, None where there is none; ``trouble`` is why there is no language model."""

    language: Any
    vision: Any
    trouble: TandemError | None


@dataclass(frozen=True)
class Opened:
    """``engine`` is None where there is no model for it; ``trouble`` is why it has no language model."""

    engine: Any
    has_vision: bool
    trouble: TandemError | None


class Opener:
    """Opens engines, one after another: each on an adapter of its own, since an adapter gives one device only.

    ``probe`` is what the last one found. ``check_open`` raises once the client is closed; ``admit`` hears the name of
    each adapter before anything is fetched for it, and raises where it is to be left alone (``visits``). ``verdicts``
    has what is known of the kernels.
    """

    def __init__(
        self,
        options: ClientOptions,
        services: Services,
        site: Site,
        progress: Progress,
        check_open: Callable[[], None],
        admit: Callable[[str], Awaitable[None]],
        verdicts: Verdicts,
    ) -> None:
        self._options = options
        self._services = services
        self._site = site
        self._progress = progress
        self._check_open = check_open
        self._admit = admit
        self._verdicts = verdicts
        self._language_worked = False
        self.probe: Any = None

    async def fetch(self) -> Fetched:
        """Finds the GPU and sees to it that the models for it are here: what a cut may end at any moment.

        Raises: the reason why there will be no engine. A language model that is none leaves the other one, except where
        the language model is needed (see ``_needs_language``).
        """
        with timeline.stage("adapter", "list of models"):
            await self._find()
        with timeline.stage("notes of earlier visits", "adapter"):
            await self._admit(self.probe.adapter)
        trouble: TandemError | None = None
        language = None
        try:
            with timeline.stage("language file", "notes of earlier visits"):
                language = await self._site.language()
        except (BadModel, BadWeights) as error:
            if self._needs_language:
                raise
            trouble = error  # the GPU can still look at pictures
        with timeline.stage("vision file", "language file"):
            vision = await self._vision()
        return Fetched(language, vision, trouble)

    async def open(self, models: Fetched) -> Opened:
        """An engine with the models. Raises: the reason why there is none; as above for one with pictures only."""
        language, vision, trouble = models.language, models.vision, models.trouble
        engine = None
        if language is not None or vision is not None:
            try:
                engine = await self._create(language, vision)
            except (BadModel, BadWeights) as error:
                if language is None or vision is None or self._needs_language:
                    raise
                trouble = error
                try:
                    await self._find()  # the adapter may have given its one device already
                    engine = await self._create(None, vision)
                except TandemError:
                    raise error from None
        self._language_worked = self._language_worked or trouble is None
        # The engine does without a vision model that this GPU's limits are too small for.
        return Opened(engine, vision is not None and engine is not None and engine.vision is not None, trouble)

    @property
    def _needs_language(self) -> bool:
        """With ``only_on_device``; and where the model has run before, since then it is a passing trouble."""
        return self._options.mode == "only_on_device" or self._language_worked

    async def _find(self) -> None:
        self._check_open()
        self.probe = await self._services.probe(self._options.adapter, self._site.language_bytes)
        if not self.probe.usable:
            said = self.probe.reason.rstrip(".")
            raise NoDevice(f"The device is not used: {said}.", tier=self.probe.tier, adapter=self.probe.adapter)

    async def _vision(self) -> Any:
        if self._options.vision is None:
            return None
        try:
            return await self._site.vision(fresh=True)
        except TandemError as error:
            log.warning("no vision model for now: %s", error.message)  # describe tries again, and says it
            return None

    async def _create(self, language: Any, vision: Any) -> Any:
        try:
            engine = await self._ask(language, vision)
        except BadWeights as error:
            if not error.details.get("repack"):
                raise
            # What an earlier visit had packed was damaged, and is deleted: made anew, on an adapter not yet used.
            log.warning("the stored weights are made again: %s", error.message)
            await self._find()
            engine = await self._ask(language, vision)
        try:
            self._check_open()
        except Closed:
            await close_engine(engine)
            raise
        return engine

    async def _ask(self, language: Any, vision: Any) -> Any:
        self._check_open()
        reports = 0

        def progress(stage: str, loaded: int, total: int | None = None) -> None:
            nonlocal reports
            reports += 1
            self._progress(stage, loaded, total)

        making = self._services.create_engine(
            adapter=self.probe,
            budget=self._options.pool_mib * MIB,
            language=language,
            vision=vision,
            progress=progress,
            limits=self._options.limits,
            stream_below=self._options.stream_below,
            verdicts=self._verdicts.on(self.probe.adapter),
            shapes=self._verdicts.shapes_on(self.probe.adapter) if self._options.tune else None,
        )
        # There is no engine yet that could be closed: who makes it is broken off, and gives back what it has taken.
        async with Watch(
            self._options.stall_seconds, self._services.clock, lambda: reports, give_up=lambda stall: None
        ) as watch:
            return await watch.wait(making, times=LOADING_PATIENCE)


async def close_engine(engine: Any) -> None:
    """Closes it. Never raises: an engine that cannot be closed, or not within ``CLOSE_SECONDS``, is gone already."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await engine.close()
    except Exception:
        log.exception("closing the engine failed")
