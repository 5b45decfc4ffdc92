"""The GPUDevice and what must be true of every call on it: errors are caught where they arise, loss is noticed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import DeviceLost, NoDevice, OutOfMemory
from .ffi import js_object
from .limits import DeviceLimits
from .probe import Probe

WANTED_FEATURES = ("subgroups", "timestamp-query")
MOST_SAID = 300
"""Characters of what a driver says."""
MOST_ERRORS = 20


def one_line(said: object) -> str:
    """What a driver said, for the middle of a sentence: without line ends, and not for ever."""
    text = " ".join(str(said).split()).rstrip(".")
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]}…"


class Device:
    """One GPUDevice. ``lost`` is set once, with ``lost_reason``; after ``close`` a loss is our own doing and no loss.

    Only modules of ``gpu/`` use ``handle``.
    """

    def __init__(self, handle: Any, probe: Probe) -> None:
        self.handle = handle
        self.queue = handle.queue
        self.probe = probe
        self.limits: DeviceLimits = probe.device_limits()
        self.lost = asyncio.Event()
        self.lost_reason = ""
        self.closed = False
        self.finished = 0
        """How many waits for the GPU have come to their end: stands still while it hangs."""
        self._waits: set[asyncio.Future[Any]] = set()
        self._promised: dict[int, asyncio.Future[Any]] = {}
        """What JavaScript is to tell, by the number that it tells it with."""
        self._promises = 0
        self.errors: list[str] = []
        """Messages of errors that no scope caught (the first few): empty in a sound run, and the tests say so."""
        self._watch = asyncio.ensure_future(self._watch_loss())
        from pyodide.ffi import create_proxy

        self._on_error = create_proxy(self._note_error)
        self._on_told = create_proxy(self._told)
        handle.addEventListener("uncapturederror", self._on_error)

    @classmethod
    async def open(cls, probe: Probe, limits: Mapping[str, int] | None = None) -> Device:
        """Requests the device with ``Probe.wanted_limits``. Raises ``NoDevice`` when the browser refuses.

        ``limits``: lower limits on buffers to keep to (bytes). The browser grants no less than the defaults
        of WebGPU, so keeping to them is up to who reads ``Device.limits``.
        """
        if not probe.usable:
            raise NoDevice(f"No GPU can be used here: {probe.reason}.", reason=probe.reason)
        descriptor = {
            "requiredFeatures": [feature for feature in WANTED_FEATURES if feature in probe.features],
            "requiredLimits": probe.wanted_limits(),
        }
        try:
            handle = await probe.handle.requestDevice(js_object(descriptor))
        except Exception as error:
            raise NoDevice(
                f"The browser refused a device on {probe.adapter} ({error}).", adapter=probe.adapter
            ) from None
        device = cls(handle, probe)
        if limits:
            device.limits = device.limits.lowered(limits)
        return device

    async def _watch_loss(self) -> None:
        info = await self.handle.lost
        if not self.closed:
            self.lost_reason = f"{info.reason}: {info.message}"
            self.lost.set()

    def _note_error(self, event: Any) -> None:
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(one_line(event.error.message))

    @cached_property
    def _js(self) -> SimpleNamespace:
        """Functions of ``replay.mjs``, looked up once: that makes an object each time."""
        import pyodide_js
        import tandem_replay

        return SimpleNamespace(tell=tandem_replay.tell, write=tandem_replay.write, module=pyodide_js._module)

    def write(self, buffer: Any, offset: int, array: np.ndarray) -> None:
        """Writes a contiguous array's bytes to a buffer, in queue order."""
        address, nbytes = array.__array_interface__["data"][0], array.nbytes
        self._js.write(self.queue, buffer, offset, self._js.module, address, nbytes)

    def check(self) -> None:
        """Raises ``DeviceLost`` once the device is gone, or has left out a call that it took for wrong: both are silent
        otherwise, and what is computed afterwards is rubbish.
        """
        if self.lost.is_set():
            raise DeviceLost(f"The GPU device was lost ({self.lost_reason}).", reason=self.lost_reason)
        if self.closed:
            raise DeviceLost("The GPU device was closed.", reason="closed")
        if self.errors:
            raise DeviceLost(f"The GPU refused a call ({self.errors[0]}).", reason="error")

    @asynccontextmanager
    async def guarded(self, doing: str) -> AsyncIterator[None]:
        """Validation and out-of-memory scopes around creations; raises what they caught, saying what was being done.

        A size over a limit shows in the validation scope, exhaustion in the other: both are pushed.
        """
        self.check()
        self.handle.pushErrorScope("out-of-memory")
        self.handle.pushErrorScope("validation")
        try:
            yield
        finally:
            # Both are popped before either is waited for: another task's scopes must not come in between.
            popped = self.handle.popErrorScope(), self.handle.popErrorScope()
            invalid, exhausted = [await promise for promise in popped]
        if exhausted or invalid:
            self.check()  # on a device that is gone every creation fails, one way or the other
        if exhausted:
            raise OutOfMemory(f"The GPU ran out of memory while {doing} ({one_line(exhausted.message)}).", doing=doing)
        if invalid:
            raise NoDevice(f"The GPU refused {doing} ({one_line(invalid.message)}).", doing=doing)

    async def settled(self, promise: Any) -> asyncio.Future[Any]:
        """``promise`` as a future that is done: cancelled where the device was closed first, as a GPU that hangs keeps
        no promise. A task that is cancelled still waits for it.
        """
        future = promise if asyncio.isfuture(promise) else self._future(promise)
        if self.closed:
            future.cancel()
        self._waits.add(future)
        try:
            await _done(future)
        except asyncio.CancelledError:
            await _done(future)
            raise
        finally:
            self._waits.discard(future)
        self.finished += 1
        return future

    def _future(self, promise: Any) -> asyncio.Future[Any]:
        """A future of what a JavaScript promise brings."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.closed:  # else there is nothing to tell by any more
            self._promises += 1
            self._promised[self._promises] = future
            self._js.tell(promise, self._on_told, self._promises)
        return future

    def _told(self, number: int, value: Any, error: str) -> None:
        future = self._promised.pop(number)
        if future.done():  # whoever waited has gone; the last one behind a closed device ends the telling
            if self.closed and not self._promised:
                asyncio.get_running_loop().call_soon(self._on_told.destroy)
        elif error:
            future.set_exception(RuntimeError(error))
        else:
            future.set_result(value)

    def submitted(self) -> Any:
        """A promise that is kept when the GPU has done all that was submitted so far, and also when it is lost."""
        return self.queue.onSubmittedWorkDone()

    async def idle(self) -> None:
        """Returns when the GPU has done all that was submitted."""
        self.check()
        await self.queue.onSubmittedWorkDone()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.handle.removeEventListener("uncapturederror", self._on_error)
            self._on_error.destroy()
            self.handle.destroy()
            for future in self._waits:
                future.cancel()
            if not self._promised:
                self._on_told.destroy()


async def _done(future: asyncio.Future[Any]) -> None:
    """Returns when ``future`` is done. Unlike awaiting it, that leaves it alone when this task is cancelled."""
    if future.done():
        return
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        future.remove_done_callback(wake)
