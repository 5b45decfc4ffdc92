"""Model files that nobody trained: a real head, and weights that are made up when they are read. Nothing is stored.

Each tensor goes round and round one pattern of random numbers, from a place that follows from its name. The pattern's
length is a prime, larger than the number of rows of any tensor, so that no two rows are alike: a head with equal rows
would have equal logits.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any
from zlib import crc32

import numpy as np

from ..errors import BadModel
from ..weights.quants import GGML_TYPES
from ..weights.source import Bytes, check_range

PERIOD = 200_003
"""Numbers, or blocks, of a pattern."""
ALIGNMENT = 32
Q4_0_STD = 4.61
"""Standard deviation of a nibble less 8 that is any of 16 with the same chance."""
_TYPE_IDS = {kind.name: number for number, kind in GGML_TYPES.items()}
_STRING, _U32, _F64 = 8, 4, 12


@dataclass(frozen=True)
class MadeUpTensor:
    """``shape`` is row-major; ``type`` is F32 or Q4_0; values have about this mean and standard deviation (Q4_0 has a
    mean of 0)."""

    name: str
    shape: tuple[int, ...]
    type: str
    std: float
    mean: float = 0.0

    @property
    def nbytes(self) -> int:
        kind = GGML_TYPES[_TYPE_IDS[self.type]]
        return prod(self.shape) // kind.values * kind.nbytes

    def read(self, start: int, stop: int) -> Bytes:
        """Its bytes from ``start`` to ``stop``."""
        unit = GGML_TYPES[_TYPE_IDS[self.type]].nbytes
        first = crc32(self.name.encode()) % PERIOD
        low, high = start // unit, -(-stop // unit)
        if self.type == "Q4_0":
            made = _cyclic(_blocks(self.std), first + low, high - low).reshape(-1)
        else:
            values = _cyclic(_numbers(), first + low, high - low) * np.float32(self.std) + np.float32(self.mean)
            made = values.view(np.uint8)
        return made[start - low * unit : stop - low * unit]


@cache
def _numbers() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(PERIOD).astype(np.float32)


@cache
def _blocks(std: float) -> Bytes:
    """[PERIOD, 18]: a float16 scale, between a half and one and a half of what ``std`` asks for, and 32 nibbles."""
    random = np.random.default_rng(2)
    blocks = random.integers(0, 256, (PERIOD, 18), np.uint8)
    scales = random.uniform(0.5, 1.5, PERIOD) * (std / Q4_0_STD)
    blocks[:, :2] = scales.astype("<f2").view(np.uint8).reshape(PERIOD, 2)
    return blocks


def _cyclic(pattern: np.ndarray, first: int, count: int) -> np.ndarray:
    out = np.empty((count, *pattern.shape[1:]), pattern.dtype)
    at, first = 0, first % len(pattern)
    while at < count:
        taken = min(count - at, len(pattern) - first)
        out[at : at + taken] = pattern[first : first + taken]
        at, first = at + taken, 0
    return out


class MadeUpSource:
    """A ``Source``: ``head``, then each tensor at its offset (from the head's end), zeros in between."""

    def __init__(self, head: bytes, tensors: Sequence[MadeUpTensor], offsets: Sequence[int]) -> None:
        self._parts: list[tuple[int, MadeUpTensor | bytes]] = [(0, head)]
        self._parts += [(len(head) + offset, tensor) for offset, tensor in zip(offsets, tensors, strict=True)]
        self.size = len(head) + offsets[-1] + tensors[-1].nbytes

    async def read(self, offset: int, length: int) -> Bytes:
        check_range(offset, length, self.size)
        out = np.zeros(length, np.uint8)
        begin = bisect_right(self._parts, offset, key=lambda part: part[0]) - 1
        for start, part in self._parts[begin:]:
            if start >= offset + length:
                break
            nbytes = len(part) if isinstance(part, bytes) else part.nbytes
            low, high = max(offset, start), min(offset + length, start + nbytes)
            if low < high:
                made = (
                    np.frombuffer(part, np.uint8)[low - start : high - start]
                    if isinstance(part, bytes)
                    else part.read(low - start, high - start)
                )
                out[low - offset : high - offset] = made
        return out


def gguf_source(metadata: Mapping[str, str | int | float], tensors: Sequence[MadeUpTensor]) -> MadeUpSource:
    """A GGUF file, version 3, of these tensors."""
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    offsets, at = [], 0
    for tensor in tensors:
        offsets.append(at)
        dimensions = tensor.shape[::-1]
        head += _text(tensor.name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += struct.pack("<IQ", _TYPE_IDS[tensor.type], at)
        at += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    head += bytes(-len(head) % ALIGNMENT)
    return MadeUpSource(bytes(head), tensors, offsets)


def safetensors_source(tensors: Sequence[MadeUpTensor]) -> MadeUpSource:
    """A safetensors file of these tensors. Raises ``BadModel`` for a type other than F32."""
    entries: dict[str, Any] = {}
    offsets, at = [], 0
    for tensor in tensors:
        if tensor.type != "F32":
            raise BadModel(f"The tensor {tensor.name} is {tensor.type}; only F32 is made up for a safetensors file.")
        offsets.append(at)
        ends = [at, at + tensor.nbytes]
        entries[tensor.name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": ends}
        at = ends[1]
    header = json.dumps(entries, separators=(",", ":")).encode()
    return MadeUpSource(len(header).to_bytes(8, "little") + header, tensors, offsets)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: str | int | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    return struct.pack("<Id", _F64, value)
