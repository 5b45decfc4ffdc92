"""What a client is wired to: the rest of ``pyapp`` in a browser, fakes in tests."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pyapp.door.tabs import NoTabs, TabLock
from pyapp.routing.access_token import Shop
from pyapp.routing.router import Side
from pyapp.routing.sentinel import MachineState

Progress = Callable[[str, int, "int | None"], None]
"""``progress(stage, loaded, total)``: bytes, or steps where the stage has no bytes; ``total`` None where unknown."""


class Notes(Protocol):
    """Small JSON values by name, for the next visit as far as storage allows; see ``pyapp.weights.notes``."""

    async def load(self, name: str) -> Any: ...

    async def save(self, name: str, value: Any) -> None: ...


class NotesInMemory:
    """Notes of a client that is not to leave any."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def load(self, name: str) -> Any:
        return self.values.get(name)

    async def save(self, name: str, value: Any) -> None:
        self.values[name] = value


class Reporter(Protocol):
    """Takes telemetry to one address; see ``pyapp.routing.gateways``."""

    async def post(self, text: str) -> None:
        """Sends JSON; goes on when the page is left meanwhile. Raises where it does not arrive."""
        ...

    def close(self) -> None:
        """The client is closed: what is posted from now on has time for one request only."""
        ...


class NoReporter:
    """Of clients that are not to send any."""

    async def post(self, text: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Services:
    """The client's dependencies, as the calls it makes."""

    probe: Callable[[str, int | None], Awaitable[Any]]
    """``probe(adapter, weights)`` -> ``gpu.probe.Probe``; bytes of the language model, None where unknown."""
    ensure_model: Callable[[str, Progress], Awaitable[Any]]
    """``ensure_model(url, progress)`` -> ``weights.store.StoredModel``."""
    create_engine: Callable[..., Awaitable[Any]]
    """``create_engine(adapter=, budget=, language=, vision=, progress=, limits=, stream_below=, verdicts=,
    shapes=)`` -> ``engine.Engine``; budget in bytes."""
    cloud_side: Callable[[str, Shop | None], Side]
    """``cloud_side(url, shop)``; ``shop`` is None where no site key was given."""
    decode_image: Callable[[Any], Awaitable[tuple[Any, int, int]]]
    """``decode_image(blob)`` -> (uint8 [height, width, 3], width and height of the picture itself)."""
    cpu_vision: Callable[[Any], Awaitable[Any]]
    """``cpu_vision(stored)`` -> an object with ``classify(uint8 [224, 224, 3]) -> float32 [classes]``."""
    fetch_json: Callable[[str], Awaitable[Any]]
    base: str = "/"
    """The address of the site that the client runs on."""
    tab_lock: Callable[[Callable[[str], None]], TabLock] = NoTabs
    """``tab_lock(hear)`` -> the lock that the tabs of the site share; ``hear`` gets what they say."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that never go back."""
    wall_clock: Callable[[], float] = time.time
    """Seconds that mean the same on the next visit."""
    notes: Notes = field(default_factory=NotesInMemory)
    browser: str = ""
    """The browser and its version, as it names itself."""
    memory_gib: Callable[[], float | None] = lambda: None
    """GiB of memory that this machine has, as far as the browser tells; None where it does not."""
    watch_machine: Callable[[Callable[[MachineState], None]], Callable[[], None]] = lambda hear: lambda: None
    """``watch_machine(hear)`` -> a call that ends it: ``hear`` gets the machine's state at each change, as far as the
    browser tells. Never raises."""
    reporter: Callable[[str, Shop | None], Reporter] = lambda url, shop: NoReporter()
    """``reporter(url, shop)``, as ``cloud_side``: what takes telemetry there."""


class SiteError(Exception):
    """A small file of the site is missing; who asked for it decides what that means."""


def browser_services(ahead: Callable[[str], Any] | None = None) -> Services:
    """The real things; only in Pyodide.

    ``ahead(url)``: the promise of a Response that was asked for before Python could, undefined where there is none.
    """
    import js

    from pyapp.door.browser_pressure import watch_machine
    from pyapp.door.browser_tabs import BrowserTabLock
    from pyapp.engine.cpu_vision import CpuVision
    from pyapp.engine.engine import Engine
    from pyapp.gpu.probe import probe
    from pyapp.routing.fetch_transport import FetchTransport
    from pyapp.routing.gateways import Gateways
    from pyapp.vision.decode import decode_image
    from pyapp.weights.notes import Notes
    from pyapp.weights.store import ensure_model

    async def decode(image: Any) -> tuple[Any, int, int]:
        return await decode_image(_as_blob(image))

    async def create_engine(**wishes: Any) -> Engine:
        return await Engine.create(**wishes)

    gateways = Gateways(FetchTransport(), FetchTransport(keepalive=True))
    return Services(
        probe=probe,
        ensure_model=ensure_model,
        create_engine=create_engine,
        cloud_side=gateways.cloud_side,
        decode_image=decode,
        cpu_vision=CpuVision.create,
        fetch_json=partial(fetch_json, ahead=ahead),
        # A worker made from a blob, as PyScript's are, resolves no relative address; but it knows the origin it is of.
        base=f"{js.location.origin}/",
        tab_lock=BrowserTabLock,
        notes=Notes(),
        browser=str(js.navigator.userAgent),
        memory_gib=_memory_gib,
        watch_machine=watch_machine,
        reporter=gateways.reporter,
    )


def _memory_gib() -> float | None:
    import js

    told = getattr(js.navigator, "deviceMemory", None)  # Chromium's only
    return float(told) if told else None


def _as_blob(image: Any) -> Any:
    """A JavaScript Blob of a file's bytes; anything else as it is."""
    if not isinstance(image, bytes | bytearray | memoryview):
        return image
    import js
    from pyodide.ffi import to_js

    return js.Blob.new(to_js([to_js(memoryview(image))]))


async def fetch_json(url: str, *, ahead: Callable[[str], Any] | None = None) -> Any:
    """The JSON document at ``url``. Raises: ``SiteError`` when it is not there or is no JSON."""
    import json

    import js

    try:
        response = await ((ahead and ahead(url)) or js.fetch(url))
        if not response.ok:
            raise SiteError(f"{url} answered with HTTP {response.status}.")
        return json.loads(str(await response.text()))
    except SiteError:
        raise
    except Exception as error:
        raise SiteError(f"{url} cannot be read ({type(error).__name__}: {error}).") from error
