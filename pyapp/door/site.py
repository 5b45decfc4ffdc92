"""The models that the site has: their names, their files in the store, and the vision model where there is no GPU."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urljoin

from pyapp.door.options import ClientOptions, Spell, is_url
from pyapp.door.services import Progress, Services, SiteError
from pyapp.errors import BadArgument, BadModel
from pyapp.routing.access_token import Shop
from pyapp.weights.store import STAGE, STORED_STAGE

log = logging.getLogger(__name__)


class Site:
    """The chosen models at ``base``, the site's address."""

    def __init__(self, options: ClientOptions, services: Services, base: str, progress: Progress) -> None:
        self._options = options
        self._services = services
        self._base = base if base.endswith("/") else base + "/"
        self._progress = progress
        self._stored_vision: Any = None
        self._cpu: Any = None
        self._classes: list[str] | None = None
        self._coming: dict[str, tuple[str, int, int]] = {}
        """Of each model: its stage, the bytes here, and in all."""
        self.language_bytes: int | None = None
        """Of the language model, where the site's list says it."""

    async def check_names(self, spell: Spell) -> None:
        """Raises: BadArgument for a model that this site does not have, with the names of those it has."""
        names = {"model": self._options.model, "vision": self._options.vision}
        wanted = {argument: name for argument, name in names.items() if name is not None and not is_url(name)}
        if not wanted:
            return
        try:
            listed = (await self._services.fetch_json(f"{self._base}models/index.json"))["models"]
            here = {(entry["name"], entry["kind"]): entry.get("bytes") for entry in listed}
        except (SiteError, KeyError, TypeError) as error:
            log.warning("the site's list of models cannot be read: %s", error)
            return  # whether the model is there shows when it is fetched
        self.language_bytes = here.get((self._options.model, "language"))
        for argument, name in wanted.items():
            kind = "vision" if argument == "vision" else "language"
            if (name, kind) not in here:
                there = [other for other, its_kind in here if its_kind == kind]
                raise BadArgument(
                    f"{spell(argument)} must be one of {', '.join(there) or 'none'} on this site; it was {name!r}.",
                    argument=argument,
                    allowed=there,
                )

    async def language(self) -> Any:
        """The language model in the store. Raises: BadModel, BadWeights."""
        return await self._ensure(self._url(self._options.model))

    async def vision(self, *, fresh: bool) -> Any:
        """The vision model in the store; ``fresh``: opened again, for an engine closes what it was given.

        Raises: BadModel, BadWeights.
        """
        if fresh or self._stored_vision is None:
            self._stored_vision = await self._ensure(self._url(str(self._options.vision)))
        return self._stored_vision

    async def classify_on_cpu(self, pixels: Any) -> Any:
        """Logits float32 [classes] of ``uint8 [224, 224, 3]``, without a GPU. Raises: BadModel, BadWeights."""
        if self._cpu is None:
            self._cpu = await self._services.cpu_vision(await self.vision(fresh=False))
        return self._cpu.classify(pixels)

    async def classes(self) -> list[str]:
        """The names of the vision model's classes. Raises: BadModel, BadWeights where there is no list of them."""
        if self._classes is None:
            stored = await self.vision(fresh=False)
            names = await stored.sidecar("classes")
            if isinstance(names, dict):
                names = [names[str(index)] for index in range(len(names))]
            if not isinstance(names, list):
                raise BadModel(f"The vision model {stored.name} has no list of classes; build the site again.")
            self._classes = [str(name) for name in names]
        return self._classes

    def address(self, url: str) -> str:
        """An address as the site means it: a relative one goes from ``base``."""
        return urljoin(self._base, url)

    def shop(self) -> Shop | None:
        """For whom the cloud is asked; None where no site key was given. Without an ancestor the page is our own."""
        if self._options.site is None:
            return None
        return Shop(self._options.site, self._options.ancestor or self.address("/").rstrip("/"))

    async def _ensure(self, url: str) -> Any:
        """The model at ``url`` in the store. Two may be on their way at once: what is told are their bytes together,
        as a download while one of them is downloaded."""

        def report(stage: str, loaded: int, total: int | None) -> None:
            if stage in (STAGE, STORED_STAGE) and total is not None:
                self._coming[url] = (stage, loaded, total)
                if any(each == STAGE and here < of for each, here, of in self._coming.values()):
                    stage = STAGE
                loaded = sum(here for _, here, _ in self._coming.values())
                total = sum(of for _, _, of in self._coming.values())
            self._progress(stage, loaded, total)

        try:
            return await self._services.ensure_model(url, report)
        except BaseException:
            self._coming.pop(url, None)  # it comes no longer, which the other one's reports should not say
            raise

    def _url(self, model: str) -> str:
        return self.address(model if is_url(model) else f"models/{model}/manifest.json")
