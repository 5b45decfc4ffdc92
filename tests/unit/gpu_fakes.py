"""A device without a GPU: it counts buffers, keeps their bytes, and fails on demand, as WebGPU would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from pyapp.errors import DeviceLost, OutOfMemory
from pyapp.gpu.limits import DeviceLimits


class FakeProxy:
    """What Pyodide's ``create_proxy`` makes of a function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def destroy(self) -> None: ...


class FakeBuffer:
    def __init__(self, device: FakeDevice, size: int) -> None:
        self.device, self.size, self.destroyed = device, size, False
        self.bytes = np.zeros(size if device.keep_bytes else 0, np.uint8)

    def destroy(self) -> None:
        assert not self.destroyed, "a buffer was destroyed twice"
        self.destroyed = True
        self.device.live -= self.size


class FakeQueries:
    def __init__(self, count: int) -> None:
        self.count, self.destroyed = count, False

    def destroy(self) -> None:
        assert not self.destroyed, "a query set was destroyed twice"
        self.destroyed = True


class FakeDevice:
    """What ``Pool`` and ``Residency`` use of a ``Device``.

    ``memory``: bytes that the GPU has; a buffer beyond them is reported when the scope closes, as WebGPU does. The list
    ``created`` has every buffer there ever was, ``live`` counts the bytes of those not destroyed, ``written`` uploads.
    """

    def __init__(self, *, max_buffer: int = 1 << 40, memory: int = 1 << 50, keep_bytes: bool = False) -> None:
        self.limits = DeviceLimits(max_buffer=max_buffer)
        self.memory = memory
        self.keep_bytes = keep_bytes
        self.created: list[FakeBuffer] = []
        self.live = 0
        self.written = 0
        self.lost = False
        self.before_scope_closes: Any = None
        self.handle = SimpleNamespace(createBuffer=self._create, createQuerySet=self._create_queries)
        self.probe = SimpleNamespace(features=frozenset[str]())
        self.queries: list[FakeQueries] = []
        self.queue = SimpleNamespace(writeBuffer=self._write)

    def _create(self, size: int, usage: int, label: str) -> FakeBuffer:
        assert size % 4 == 0
        buffer = FakeBuffer(self, size)
        self.created.append(buffer)
        self.live += size
        return buffer

    def _create_queries(self, type: str, count: int) -> FakeQueries:
        assert type == "timestamp"
        self.queries.append(FakeQueries(count))
        return self.queries[-1]

    def _write(self, buffer: FakeBuffer, offset: int, data: Any, first: int = 0, count: int | None = None) -> None:
        assert first + (count or 0) <= len(data)
        data = data[first : None if count is None else first + count]
        assert not buffer.destroyed
        assert offset % 4 == 0
        assert len(data) % 4 == 0
        assert offset + len(data) <= buffer.size
        self.written += len(data)
        if self.keep_bytes:
            buffer.bytes[offset : offset + len(data)] = data

    def write(self, buffer: FakeBuffer, offset: int, array: np.ndarray) -> None:
        self._write(buffer, offset, array.reshape(-1).view(np.uint8))

    def check(self) -> None:
        if self.lost:
            raise DeviceLost("The GPU device was lost (a test).")

    @asynccontextmanager
    async def guarded(self, doing: str) -> AsyncIterator[None]:
        self.check()
        yield
        if self.before_scope_closes:
            await self.before_scope_closes()
        if self.live > self.memory:
            raise OutOfMemory(f"The GPU ran out of memory while {doing}.")


def fake_device(**options: Any) -> Any:
    """Typed as anything, since it stands in for ``Device``."""
    return FakeDevice(**options)
