"""How the machine is doing, as the browser tells it by the Compute Pressure API (Chromium has it). Only in Pyodide."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, get_args

import js
from pyodide.ffi import create_proxy

from pyapp.routing.sentinel import MachineState

log = logging.getLogger(__name__)

SAMPLE_MS = 1000


def watch_machine(hear: Callable[[MachineState], None]) -> Callable[[], None]:
    """See ``Services.watch_machine``. Browsers without the API, and frames that may not use it, tell nothing."""
    observer_class = getattr(js, "PressureObserver", None)
    if observer_class is None:
        return lambda: None

    def changed(records: Any, *_: Any) -> None:
        state = str(records[len(records) - 1].state)
        if state in get_args(MachineState):
            hear(state)  # type: ignore[arg-type]

    proxy = create_proxy(changed)
    try:
        observer = observer_class.new(proxy)
    except Exception as error:
        log.info("the browser does not tell how the machine is doing: %s", error)
        proxy.destroy()
        return lambda: None
    watching = asyncio.ensure_future(_observe(observer))

    def end() -> None:
        watching.cancel()
        observer.disconnect()
        proxy.destroy()

    return end


async def _observe(observer: Any) -> None:
    try:
        await observer.observe("cpu", sampleInterval=SAMPLE_MS)
    except Exception as error:  # NotAllowedError in a frame of another site, NotSupportedError on some systems
        log.info("the browser does not tell how the machine is doing: %s", error)
