"""Where bytes come from: the one protocol that readers and packers know."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import BadModel

Bytes = npt.NDArray[np.uint8]


class Source(Protocol):
    """A file whose ranges can be read, wherever it lives: memory, OPFS, or chunks still to be downloaded."""

    size: int

    async def read(self, offset: int, length: int) -> Bytes:
        """``length`` bytes from ``offset`` as a ``uint8`` array.

        Raises:
            BadModel: the range reaches past the end.
            BadWeights: the bytes cannot be had, or are not the promised ones.
        """
        ...


class BytesSource:
    """A ``Source`` over bytes that are already in memory. Reads are views, not copies."""

    def __init__(self, data: bytes | bytearray | memoryview | Bytes) -> None:
        self._data: Bytes = data.reshape(-1) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        self.size = int(self._data.size)

    async def read(self, offset: int, length: int) -> Bytes:
        check_range(offset, length, self.size)
        return self._data[offset : offset + length]


def check_range(offset: int, length: int, size: int) -> None:
    """Raises BadModel unless ``offset`` and ``length`` (bytes) lie inside a file of ``size`` bytes."""
    if offset < 0 or length < 0 or offset + length > size:
        raise BadModel(
            f"Bytes {offset} to {offset + length} were asked of a file of {size} bytes; it is cut short or damaged.",
            offset=offset,
            length=length,
            size=size,
        )
