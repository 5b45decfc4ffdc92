"""Binds a plan to buffers once, so that replaying it costs one call across the FFI a submit and none a dispatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .device import Device
from .ffi import js_list, translated
from .kernels import Kernels
from .plan import Binding, Plan
from .timestamps import Timestamps, seconds_between

Resolve = Callable[[Binding], tuple[Any, int, int]]
"""Where a binding's tensor lies now: (buffer, offset, bytes)."""


class Ranges:
    """Ranges (buffer, offset, bytes) that zeros are written over together, noted once. Bytes None: as many as ``clear``
    is told."""

    def __init__(self, device: Device, ranges: Sequence[tuple[Any, int, int | None]]) -> None:
        import tandem_replay

        buffers = [buffer for buffer, _, _ in ranges]
        triples = [each for index, (_, offset, size) in enumerate(ranges) for each in (index, offset, size)]
        self._device = device
        self._clear = tandem_replay.clear  # looking it up makes an object each time
        self.noted = tandem_replay.ranges(js_list(buffers), js_list(triples))

    def clear(self, nbytes: int = 0) -> None:
        """Writes the zeros, in one submit."""
        self._clear(self._device.handle, self.noted, nbytes)


class Replay:
    """A plan bound to buffers, once and for good: every tensor has a fixed home."""

    def __init__(self, device: Device, kernels: Kernels, plan: Plan, resolve: Resolve) -> None:
        import tandem_replay

        self._submit = tandem_replay.submit  # looking it up makes an object each time
        self._timed = tandem_replay.timed
        self.device = device
        self.plan = plan
        pipelines: list[Any] = []
        index: dict[Any, int] = {}
        table = np.zeros((len(plan.dispatches), 6), np.int32)
        for row, dispatch in enumerate(plan.dispatches):
            if dispatch.shader not in index:
                index[dispatch.shader] = len(pipelines)
                pipelines.append(kernels.pipeline(dispatch))
            x, y, z = dispatch.workgroups
            table[row] = (index[dispatch.shader], row, x, y, z, y // plan.full_tiles if dispatch.per_tile else 0)
        groups = tandem_replay.bindGroups(device.handle, *_bindings(plan, kernels, resolve))
        rows = js_list(table.reshape(-1).tolist())
        self._recorded = tandem_replay.record(device.handle, js_list(pipelines), groups, rows)
        self._spans: dict[tuple[tuple[int, int], ...], Any] = {}

    def submit(
        self, spans: tuple[tuple[int, int], ...], *, tiles: int = 1, repeat: int = 1,
        copy: tuple[Any, int, int] | None = None, staging: Any = None, work: float = 0.0,
        clear: Ranges | None = None,
    ) -> Any:  # fmt: skip
        """Submits ``spans`` of the plan ([from, to) rows), ``repeat`` times over, then a copy of ``copy`` (buffer,
        offset, bytes) to ``staging``, then zeros over ``clear``. Returns a JavaScript promise of the copied bytes, or
        None without a copy.

        ``work``: how much that is, in units of the caller's; above 0 it is measured (``pace``).
        """
        buffer, offset, size = copy or (None, 0, 0)
        edges = self._edges(spans)
        if clear is None:
            return self._submit(self._recorded, edges, tiles, repeat, buffer, offset, size, staging, work)
        return self._submit(self._recorded, edges, tiles, repeat, buffer, offset, size, staging, work, clear.noted)

    async def timed(
        self, spans: tuple[tuple[int, int], ...], timestamps: Timestamps, *, tiles: int = 1, repeat: int = 1
    ) -> float | None:
        """Submits ``spans`` as ``submit`` does and waits for their end; the seconds that the GPU took by its own clock,
        None where that makes no sense. Raises ``DeviceLost``, ``OutOfMemory``."""
        promise = self._timed(
            self._recorded, self._edges(spans), tiles, repeat,
            timestamps.queries, timestamps.resolved, timestamps.staging,
        )  # fmt: skip
        return seconds_between(await arrived(self.device, promise, "reading the GPU's clock"))

    def _edges(self, spans: tuple[tuple[int, int], ...]) -> Any:
        if spans not in self._spans:
            from pyodide.ffi import to_js

            self._spans[spans] = to_js([edge for span in spans for edge in span])
        return self._spans[spans]

    @property
    def pace(self) -> float:
        """Seconds that a unit of work took when a submit was last measured; 0 where none has been."""
        return float(self._recorded.pace)


def _bindings(plan: Plan, kernels: Kernels, resolve: Resolve) -> tuple[Any, Any, Any]:
    """What ``bindGroups`` takes: made there, since a descriptor that crosses the FFI costs more than its bind group."""
    layouts: dict[int, tuple[int, Any]] = {}
    buffers: dict[int, tuple[int, Any]] = {}
    numbers: list[int] = []

    def number(known: dict[int, tuple[int, Any]], each: Any) -> int:
        return known.setdefault(id(each), (len(known), each))[0]

    for dispatch in plan.dispatches:
        numbers += (number(layouts, kernels.layout(dispatch)[0]), len(dispatch.bindings))
        for binding in dispatch.bindings:
            buffer, offset, size = resolve(binding)
            numbers += (binding.slot, number(buffers, buffer), offset, size)
    return (*(js_list([each for _, each in known.values()]) for known in (layouts, buffers)), js_list(numbers))


async def arrived(device: Device, promise: Any, doing: str) -> bytes:
    """The bytes that a submit copied out; ``promise`` is what it returned. Raises ``DeviceLost``, ``OutOfMemory``.

    A task that is cancelled still waits for them: until then the staging buffer cannot be used again.
    """
    copying = await device.settled(promise)
    if copying.cancelled():
        device.check()
    try:
        data = copying.result()
    except Exception as error:
        device.check()
        raise translated(error, doing) from None
    device.check()
    return bytes(data.to_bytes())


def hasten(device: Device, promise: Any) -> None:
    """Has the end of a submit of a few milliseconds heard of when it comes: of one that somebody waits for, with no
    other behind it. ``promise`` is what it returned."""
    import tandem_replay

    if not device.limits.software:  # which has no time to spare for being asked
        tandem_replay.hasten(device.handle, promise)


def read_back(device: Device, place: tuple[Any, int, int], staging: Any) -> Any:
    """Copies (buffer, offset, bytes) out, in queue order; returns the promise of them, for ``arrived``."""
    import tandem_replay

    return tandem_replay.readBack(device.handle, *place, staging)
