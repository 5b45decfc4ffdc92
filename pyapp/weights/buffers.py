"""Bytes that need not be Python's: in the browser the store moves JavaScript arrays that never enter the wasm heap.

A buffer is opaque to everything but the ``Buffers`` that made it. Under CPython it is a ``uint8`` array, in the browser
a ``Uint8Array`` (see ``browser``).
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np

from .source import Bytes

Buffer = Any


class Buffers(Protocol):
    """What can be done with buffers of one kind."""

    def allocate(self, nbytes: int) -> Buffer:
        """``nbytes`` zeros. Raises OutOfMemory."""
        ...

    def size(self, buffer: Buffer) -> int: ...

    def view(self, buffer: Buffer, start: int, end: int) -> Buffer:
        """The bytes from ``start`` to ``end``, sharing memory."""
        ...

    def copy(self, target: Buffer, at: int, buffer: Buffer) -> None:
        """Writes all of ``buffer`` into ``target`` from ``at``."""
        ...

    def copy_out(self, buffer: Buffer, out: Bytes) -> None:
        """Writes all of ``buffer`` into a NumPy array of the same length."""
        ...

    def from_numpy(self, data: Bytes) -> Buffer:
        """A copy of ``data``."""
        ...

    async def sha256(self, buffer: Buffer) -> str:
        """Lower-case hexadecimal."""
        ...

    async def sha256_each(self, buffer: Buffer, nbytes: int) -> list[str]:
        """The same of each ``nbytes`` of ``buffer``, the last ones may be fewer."""
        ...


class NumpyBuffers:
    """Buffers that are NumPy arrays."""

    def allocate(self, nbytes: int) -> Bytes:
        return np.zeros(nbytes, np.uint8)

    def size(self, buffer: Bytes) -> int:
        return int(buffer.size)

    def view(self, buffer: Bytes, start: int, end: int) -> Bytes:
        return buffer[start:end]

    def copy(self, target: Bytes, at: int, buffer: Bytes) -> None:
        target[at : at + buffer.size] = buffer

    def copy_out(self, buffer: Bytes, out: Bytes) -> None:
        out[:] = buffer

    def from_numpy(self, data: Bytes) -> Bytes:
        return np.array(data, np.uint8)

    async def sha256(self, buffer: Bytes) -> str:
        return hashlib.sha256(buffer.tobytes()).hexdigest()

    async def sha256_each(self, buffer: Bytes, nbytes: int) -> list[str]:
        return [await self.sha256(buffer[at : at + nbytes]) for at in range(0, buffer.size, nbytes)]


def to_numpy(buffers: Buffers, buffer: Buffer) -> Bytes:
    """A copy of ``buffer`` as a ``uint8`` array."""
    out = np.empty(buffers.size(buffer), np.uint8)
    buffers.copy_out(buffer, out)
    return out
