"""The lock between tabs, as the browser has it: ``tabs.mjs`` as a ``TabLock``. Only in Pyodide."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from pyodide.ffi import create_proxy


class BrowserTabLock:
    """See ``pyapp.door.tabs.TabLock``."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._proxy = create_proxy(hear)
        self._lock: Any = importlib.import_module("tandem_tabs").TabLock.new(self._proxy)

    async def acquire(self, *, wait: bool) -> bool:
        try:
            # "refused": this browser has no locks here, so there is nobody to take turns with.
            return str(await self._lock.acquire(wait)) in ("held", "refused")
        except asyncio.CancelledError:
            self._lock.leave()
            raise

    def release(self) -> None:
        self._lock.leave()

    async def wanted(self) -> bool:
        return bool(await self._lock.wanted())

    def say(self, line: str) -> None:
        self._lock.say(line)

    def close(self) -> None:
        self._lock.close()
        self._proxy.destroy()
