"""Kernel formats: how a matrix of weights lies in GPU memory, and the exact way there from every ggml type.

A packed matrix has ``n`` rows and ``k`` columns and two byte sections, ``quants`` and ``scales``; in both, rows
follow each other. Blocks are 32 columns wide. Everything is little endian.

    format  quants, bytes a block              scales, bytes a block               holds exactly
    s4      16: byte j has element j in its    2: float16 scale                    Q4_0
            low nibble, j + 16 in its high
    q4      the same                           4: float16 scale, float16 min       Q4_0 Q4_1
    g4      the same                           8: float32 scale, float32 min       Q4_K
    q8      32 signed bytes                    2: float16 scale                    Q8_0
    g8      32 signed bytes                    16: float32 scale, float32 min,     Q2_K Q3_K Q5_0 Q5_1 Q5_K Q6_K
                                               for each half of 16                 IQ4_NL IQ4_XS
    f16     row-major values, no scales                                            F16
    bf16    row-major values, no scales                                            BF16
    f32     row-major values, no scales                                            F32

``value = scale * q + min`` in float32, ``q`` unsigned in s4, q4 and g4, signed in q8 and g8. Where no min is stored, it
is -8 * scale in s4 and zero in q8. Sections are padded to whole words of 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..errors import BadModel
from .quants import Affine, Floats, decompose, dequantise, quant_type
from .source import Bytes

FORMATS = ("s4", "q4", "g4", "q8", "g8", "f16", "bf16", "f32")
PLAIN = {"f16": 2, "bf16": 2, "f32": 4}
"""Formats without blocks, and the bytes of a value."""
BLOCK = 32
_QUANTS = {"s4": 16, "q4": 16, "g4": 16, "q8": 32, "g8": 32}
_SCALES = {"s4": 2, "q4": 4, "g4": 8, "q8": 2, "g8": 16}
_OWN_FORMAT = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "Q4_0": "s4", "Q4_1": "q4", "Q4_K": "g4", "Q8_0": "q8",
    "Q2_K": "g8", "Q3_K": "g8", "Q5_0": "g8", "Q5_1": "g8", "Q5_K": "g8", "Q6_K": "g8", "IQ4_NL": "g8", "IQ4_XS": "g8",
}  # fmt: skip
_INTO = {
    "s4": {"s4", "q4", "g4", "g8"}, "q4": {"q4", "g4", "g8"}, "g4": {"g4", "g8"}, "q8": {"q8", "g8"}, "g8": {"g8"},
}  # fmt: skip
_SCALE_ONLY = {"s4": -8.0, "q8": 0.0}
"""Formats that store no min, and how many times the scale it is."""
_HALF_MAX = 65504.0


def kernel_format(type: str) -> str:
    """The smallest format that holds ``type`` exactly. Raises BadModel for a type that cannot be read."""
    quant_type(type)
    return _OWN_FORMAT[type]


def promote(formats: Iterable[str]) -> str:
    """The smallest format that holds matrices of all these formats exactly."""
    wanted = set(formats)
    for candidate in ("s4", "q4", "g4", "q8", "g8"):
        if all(candidate in _INTO.get(each, ()) for each in wanted):
            return candidate
    return wanted.pop() if len(wanted) == 1 else "f32"


def row_sizes(fmt: str, k: int) -> tuple[int, int]:
    """Bytes of one row of ``k`` columns in the quants and in the scales section."""
    if fmt in PLAIN:
        return PLAIN[fmt] * k, 0
    if k % BLOCK:
        raise BadModel(f"Rows of {k} weights cannot be packed as {fmt}; their length must be a multiple of {BLOCK}.")
    return k // BLOCK * _QUANTS[fmt], k // BLOCK * _SCALES[fmt]


def section_sizes(fmt: str, n: int, k: int) -> tuple[int, int]:
    """Bytes of the quants and of the scales section of an ``[n, k]`` matrix."""
    quants, scales = row_sizes(fmt, k)
    return -(-n * quants // 4) * 4, -(-n * scales // 4) * 4


def pack_rows(type: str, data: Bytes, n: int, k: int, fmt: str) -> tuple[Bytes, Bytes]:
    """Brings ``n`` rows of ``k`` weights, as they are in the file, into a kernel format.

    Returns:
        The quants and the scales of these rows, uint8, without the padding at a section's end.

    Raises:
        BadModel: rows that do not fit their type, or that ``fmt`` cannot hold exactly.
    """
    data = np.ascontiguousarray(data).reshape(-1)
    kind, (quants, scales) = quant_type(type), row_sizes(fmt, k)
    if k % kind.values or n * (k // kind.values) * kind.nbytes != data.size:
        raise BadModel(f"{data.size} bytes of {type} are not {n} rows of {k} weights.", bytes=int(data.size))
    packed = _pack(type, data, n * k, fmt)
    if packed is None:
        raise BadModel(f"Weights of type {type} cannot be packed as {fmt} without loss.", type=type, format=fmt)
    return packed[0].reshape(n * quants), packed[1].reshape(n * scales)


def unpack(fmt: str, quants: Bytes, scales: Bytes, n: int, k: int) -> Floats:
    """The values of a packed matrix, ``[n, k]`` float32: what a kernel must see. Slow; the tests' oracle."""
    size, scale_size = (each * n for each in row_sizes(fmt, k))
    quants, scales = np.ascontiguousarray(quants[:size]), np.ascontiguousarray(scales[:scale_size])
    if fmt in PLAIN:
        return dequantise(fmt.upper(), quants, n * k).reshape(n, k)
    if _QUANTS[fmt] == BLOCK // 2:
        q: npt.NDArray[np.float32] = np.hstack([quants.reshape(-1, 16) & 15, quants.reshape(-1, 16) >> 4]).astype("f4")
    else:
        q = quants.view(np.int8).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        if fmt in _SCALE_ONLY:
            scale = scales.view("<f2").astype(np.float32).reshape(-1, 1)
            values = (q.reshape(len(scale), -1) + np.float32(_SCALE_ONLY[fmt])) * scale
        else:
            factors = scales.view("<f2" if fmt == "q4" else "<f4").astype(np.float32).reshape(-1, 2)
            values = q.reshape(len(factors), -1) * factors[:, :1] + factors[:, 1:]
    return values.reshape(n, k)


def _pack(type: str, data: Bytes, values: int, fmt: str) -> tuple[Bytes, Bytes] | None:
    """None where ``fmt`` cannot hold ``type``."""
    if fmt in PLAIN:
        if fmt == _OWN_FORMAT[type]:
            return data, np.zeros(0, np.uint8)
        return (dequantise(type, data, values).view(np.uint8), np.zeros(0, np.uint8)) if fmt == "f32" else None
    if fmt not in _INTO.get(_OWN_FORMAT[type], ()):
        return None
    blocks = data.reshape(-1, quant_type(type).nbytes)
    if fmt == "q4":
        return _q4_from_q4_1(blocks) if type == "Q4_1" else _q4_from_q4_0(blocks)
    if fmt in _SCALE_ONLY:
        # The file's own order and scales, only apart from each other; so are those of q4 from Q4_1.
        return blocks[:, 2:].copy(), blocks[:, :2].copy()
    parts = decompose(type, blocks)
    if fmt == "g4":
        parts = _as_unsigned(parts)
        return _fold_nibbles(parts.q), _wide_scales(parts, 32)
    return np.ascontiguousarray(parts.q).view(np.uint8), _wide_scales(parts, 16)


def _q4_from_q4_1(blocks: Bytes) -> tuple[Bytes, Bytes]:
    return blocks[:, 4:].copy(), blocks[:, :4].copy()


def _q4_from_q4_0(blocks: Bytes) -> tuple[Bytes, Bytes] | None:
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    least = scale * np.float32(-8)
    if (np.abs(least) > _HALF_MAX).any():
        return None  # no trained model has such a scale; g4 would hold it
    return blocks[:, 2:].copy(), np.hstack([scale, least]).astype("<f2").view(np.uint8)


def _as_unsigned(parts: Affine) -> Affine:
    """Four-bit blocks with ``q`` from 0 to 15: Q4_0 has -8 to 7 and no min."""
    if parts.min is not None:
        return parts
    return Affine((parts.q + np.int8(8)).view(np.uint8), parts.scale, parts.scale * np.float32(-8))


def _fold_nibbles(q: Bytes) -> Bytes:
    halves = q.reshape(-1, 2, BLOCK // 2)
    return halves[:, 0] | (halves[:, 1] << np.uint8(4))


def _wide_scales(parts: Affine, group: int) -> Bytes:
    """Float32 pairs (scale, min) for each ``group`` weights."""
    blocks, groups = parts.scale.shape
    repeat = parts.q.shape[1] // groups // group
    pairs = np.zeros((blocks, groups, repeat, 2), np.float32)
    pairs[..., 0] = parts.scale[:, :, None]
    if parts.min is not None:
        pairs[..., 1] = parts.min[:, :, None]
    return pairs.view(np.uint8)
