"""The block formats of ggml, and their exact values.

Every format here is *affine* in groups: ``value = scale * q + min`` with small integers ``q`` and one ``scale`` and
``min`` for each group of a block. ``decompose`` brings a block into that form and loses nothing; ``dequantise``
multiplies it out in float32, and ``packing`` stores the same parts for the kernels. Layouts after ``ggml-common.h`` and
``dequantize_row_*`` in ``ggml-quants.c`` (https://github.com/ggml-org/ggml).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import BadModel
from .source import Bytes

Floats = npt.NDArray[np.float32]


class GGMLType(NamedTuple):
    """An element type: how many values a block has, and how many bytes."""

    name: str
    values: int
    nbytes: int


GGML_TYPES: dict[int, GGMLType] = {
    number: GGMLType(name, values, nbytes)
    for number, name, values, nbytes in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
    )
}  # fmt: skip
"""Element types by their number in a file: enough to know how many bytes a tensor takes."""

_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_IQ4_TABLE = np.resize(_IQ4_VALUES, 256).tobytes()


@dataclass(frozen=True)
class Affine:
    """Blocks taken apart: ``value = scale * q + min`` in float32.

    Attributes:
        q: ``[blocks, values]`` int8 or uint8.
        scale: ``[blocks, groups]`` float32.
        min: the same, or None where it is zero throughout.
    """

    q: npt.NDArray[Any]
    scale: Floats
    min: Floats | None

    def multiply_out(self) -> Floats:
        """The values, ``[blocks, values]`` float32."""
        blocks, groups = self.scale.shape
        width = self.q.shape[1]
        values: Floats = self.q.astype(np.float32).reshape(blocks, groups, width // groups)
        with np.errstate(invalid="ignore", over="ignore"):  # a stranger's scales may be infinite or no numbers
            values *= self.scale[:, :, None]
            if self.min is not None:
                values += self.min[:, :, None]
        return values.reshape(blocks, width)


def dequantise(type: str, data: Bytes, n_values: int) -> Floats:
    """The values of ``data``, bit for bit those of ggml's reference functions.

    Args:
        type: one of ``QUANT_TYPES``.
        data: whole blocks, uint8.
        n_values: how many values they hold.

    Returns:
        ``[n_values]`` float32.

    Raises:
        BadModel: an unknown type, or a length that does not fit.
    """
    layout = quant_type(type)
    data = np.ascontiguousarray(data).reshape(-1)
    if n_values % layout.values or n_values // layout.values * layout.nbytes != data.size:
        raise BadModel(f"{data.size} bytes of {type} do not hold {n_values} values.", bytes=int(data.size), type=type)
    if type == "F32":
        return data.view("<f4").astype(np.float32)
    if type == "F16":
        return data.view("<f2").astype(np.float32)
    if type == "BF16":
        return bf16_to_f32(data.view("<u2"))
    return decompose(type, data.reshape(-1, layout.nbytes)).multiply_out().reshape(-1)


def decompose(type: str, blocks: Bytes) -> Affine:
    """Takes ``blocks`` (``[blocks, bytes of one]`` uint8) of a block type apart."""
    return _DECOMPOSE[type](blocks)


def quant_type(type: str) -> GGMLType:
    """Raises BadModel for a type that cannot be dequantised."""
    if type not in QUANT_TYPES:
        raise BadModel(f"Weights of type {type!r:.40} cannot be read; {', '.join(QUANT_TYPES)} can.", type=type)
    return QUANT_TYPES[type]


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> Floats:
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte ``at`` of each block, ``[blocks, 1]`` float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Runs of ``run`` bytes: first the low nibbles of a run, then the high ones."""
    blocks, width = packed.shape
    split = np.empty((blocks, width // run, 2, run), np.uint8)
    packed = packed.reshape(blocks, width // run, run)
    np.bitwise_and(packed, 15, out=split[:, :, 0])
    np.right_shift(packed, 4, out=split[:, :, 1])
    return split.reshape(blocks, 2 * width)


def _bits(packed: Bytes, run: int, shifts: tuple[int, ...], mask: int) -> Bytes:
    """Runs of ``run`` bytes: the bits at the first shift of a whole run, then those at the second…"""
    blocks, width = packed.shape
    split = packed.reshape(blocks, width // run, 1, run) >> np.array(shifts, np.uint8)[:, None]
    return (split & np.uint8(mask)).reshape(blocks, width * len(shifts))


def _q4_0(blocks: Bytes) -> Affine:
    return Affine(_nibbles(blocks[:, 2:], 16).view(np.int8) - np.int8(8), _half(blocks, 0), None)


def _q4_1(blocks: Bytes) -> Affine:
    return Affine(_nibbles(blocks[:, 4:], 16), _half(blocks, 0), _half(blocks, 2))


def _fifth_bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: Bytes) -> Affine:
    q = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return Affine(q.view(np.int8) - np.int8(16), _half(blocks, 0), None)


def _q5_1(blocks: Bytes) -> Affine:
    q = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return Affine(q, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Affine:
    return Affine(blocks[:, 2:].view(np.int8), _half(blocks, 0), None)


def _q2_k(blocks: Bytes) -> Affine:
    scales = blocks[:, :16]
    scale = _half(blocks, 80) * (scales & np.uint8(15)).astype(np.float32)
    least = _half(blocks, 82) * (scales >> np.uint8(4)).astype(np.float32)
    return Affine(_bits(blocks[:, 16:80], 32, (0, 2, 4, 6), 3), scale, -least)


def _q3_k(blocks: Bytes) -> Affine:
    low = _nibbles(blocks[:, 96:104], 8)
    high = _bits(blocks[:, 104:108], 4, (0, 2, 4, 6), 3)
    scale = ((low | (high << np.uint8(4))).view(np.int8) - np.int8(32)).astype(np.float32)
    q = _bits(blocks[:, 32:96], 32, (0, 2, 4, 6), 3)
    # A high bit that is set means no offset; a clear one takes 4 away.
    q |= _bits(blocks[:, :32], 32, tuple(range(8)), 1) << np.uint8(2)
    return Affine(q.view(np.int8) - np.int8(4), _half(blocks, 108) * scale, None)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scale and (positive) min of the eight groups of Q4_K and Q5_K: 6 bits each in bytes 4 to 16."""
    low, middle, top = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = np.concatenate([low & 63, (top & 15) | ((low >> 2) & 48)], axis=1)
    least = np.concatenate([middle & 63, (top >> 4) | ((middle >> 2) & 48)], axis=1)
    return _half(blocks, 0) * scale.astype(np.float32), _half(blocks, 2) * least.astype(np.float32)


def _q4_k(blocks: Bytes) -> Affine:
    scale, least = _k_scales(blocks)
    return Affine(_nibbles(blocks[:, 16:], 32), scale, -least)


def _q5_k(blocks: Bytes) -> Affine:
    scale, least = _k_scales(blocks)
    q = _nibbles(blocks[:, 48:], 32) | (_bits(blocks[:, 16:48], 32, tuple(range(8)), 1) << np.uint8(4))
    return Affine(q, scale, -least)


def _q6_k(blocks: Bytes) -> Affine:
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    q = _nibbles(blocks[:, :128], 64) | (_bits(blocks[:, 128:192], 32, (0, 2, 4, 6), 3) << np.uint8(4))
    return Affine(q.view(np.int8) - np.int8(32), scale, None)


def _iq4_values(packed: Bytes) -> npt.NDArray[np.int8]:
    # bytes.translate looks up four times as fast as an index array (measured in Pyodide).
    codes = _nibbles(packed, 16)
    return np.frombuffer(codes.tobytes().translate(_IQ4_TABLE), np.int8).reshape(codes.shape)


def _iq4_nl(blocks: Bytes) -> Affine:
    return Affine(_iq4_values(blocks[:, 2:]), _half(blocks, 0), None)


def _iq4_xs(blocks: Bytes) -> Affine:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(len(blocks), 8)
    scale = ((low | ((high & 3).astype(np.uint8) << 4)).view(np.int8) - np.int8(32)).astype(np.float32)
    return Affine(_iq4_values(blocks[:, 8:]), _half(blocks, 0) * scale, None)


_DECOMPOSE: dict[str, Callable[[Bytes], Affine]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k, "Q3_K": _q3_k,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
}  # fmt: skip

QUANT_TYPES: dict[str, GGMLType] = {
    kind.name: kind for kind in GGML_TYPES.values() if kind.name in _DECOMPOSE or kind.name in ("F32", "F16", "BF16")
}
"""The types whose values can be had, with the values and bytes of a block."""
