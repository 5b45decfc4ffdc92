"""Which kernel multiplies a weight matrix, and in what shape.

A product of one token (``matvec.wgsl``) and of a chunk (``matmul.wgsl``) are kernels of their own, with the inputs in
workgroup memory. An emulated device, where barriers are dear, and products of one token on a device without subgroups
have ``linear.wgsl``, which needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

from ..gpu.limits import DeviceLimits
from ..weights.formats import row_sizes
from .graph import Graph, Op, Tensor

WORKGROUP = 64
CHUNK_TILE = {"ROWS": 2, "TOKENS": 8, "TILE_N": 64, "TILE_M": 32, "WG": 128}
"""A workgroup of ``matmul.wgsl``: rows and tokens an invocation, and in all."""
NARROW_TILE = {"ROWS": 2, "TOKENS": 4, "TILE_N": 32, "TILE_M": 16, "WG": 64}
"""The same for weights of fewer rows than ``NARROW``: more workgroups, which keep a large GPU busy. Its TILE_M divides
that of ``CHUNK_TILE``, by which prompts are cut."""
NARROW = 2048
SIMPLE_TILE = 4
"""Tokens an invocation of ``linear.wgsl``, for a chunk."""
MOST_LOADS = 64
"""Words of weights that an invocation of ``matvec.wgsl`` may have on their way at once: they take registers."""
MOST_FILL = 8
"""vec4 of inputs that it may have on their way at once."""
BLOCK_BYTES = 9 * 16 + 2 * 4
"""Bytes of workgroup memory that it takes for a block of inputs, as floats; as digits it takes less."""
LANES, ROWS, WORKGROUPS = (4, 8, 16, 32), (1, 2, 4, 8), (64, 128, 256)
"""What there is to choose from for ``matvec.wgsl``."""
PAIRED = ("silu_mul", "rope_cache")
"""Epilogues whose rows go in pairs."""
DIGIT_FORMATS, DIGIT_ROWS = ("s4", "q4"), 8192
"""Weights that are multiplied in whole numbers where a device does that well: from so many rows on it is worth what
turning the inputs into digits takes (``docs/performance.md``)."""
VOCABULARY_ROWS = 32768
"""From so many rows on a product takes several waves of workgroups even on a large GPU, as an H200 is. Of a smaller one
nothing was measured, and WebGPU does not say how many processors there are."""


@dataclass(frozen=True)
class VectorShape:
    """How ``matvec.wgsl`` is cut: neighbouring invocations that share rows, rows they share, invocations in all."""

    lanes: int
    rows: int
    workgroup: int


Shapes = Mapping[str, VectorShape]
"""Shapes by ``product_key``; a product that is not in it has its ``vector_shape``."""
NO_SHAPES: Shapes = {}


@dataclass(frozen=True)
class Product:
    """A kernel for a product: its file and parameters, and how many rows and tokens a workgroup makes."""

    file: str
    params: dict[str, Any]
    rows: int
    tokens: int


def product(
    limits: DeviceLimits, weight: Tensor, tokens: int, prologue: str, epilogue: str, shape: VectorShape | None = None
) -> Product:
    """The kernel for ``weight`` [N, K] times the inputs of so many tokens.

    ``shape``: of ``matvec.wgsl``, where that is the kernel and not its ``vector_shape`` is wanted.
    """
    if tokens > 1 and not limits.software:
        return _matmul(tokens, weight.shape[0])
    if not _has_matvec(limits):
        return _linear(limits, tokens, weight.shape[0])
    return _matvec(limits, weight, prologue, shape or vector_shape(limits, weight, epilogue))


def product_key(weight: Tensor, prologue: str, epilogue: str) -> str:
    """The name of a product of one token in ``Shapes``: all that its time hangs on but the device."""
    n, k = weight.shape
    return f"{weight.fmt} {n}x{k} {prologue or 'plain'} {epilogue or 'store'}"


def products_of(graph: Graph) -> dict[str, list[Op]]:
    """The products of a step's (fused) graph by ``product_key``, in its order."""
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.kind == "linear":
            weight = graph.tensors[op.inputs["weight"]]
            key = product_key(weight, op.attrs.get("prologue", ""), op.attrs.get("epilogue", ""))
            found.setdefault(key, []).append(op)
    return found


def candidates(limits: DeviceLimits, weight: Tensor, epilogue: str) -> list[VectorShape]:
    """The shapes that ``matvec.wgsl`` may have for ``weight`` [N, K]; none where a device takes another kernel."""
    if not _has_matvec(limits):
        return []
    shapes = [VectorShape(lanes, rows, wg) for lanes in LANES for rows in ROWS for wg in WORKGROUPS]
    return [shape for shape in shapes if usable(limits, weight, epilogue, shape)]


def _has_matvec(limits: DeviceLimits) -> bool:
    return not limits.software and limits.subgroup >= 4


def usable(limits: DeviceLimits, weight: Tensor, epilogue: str, shape: VectorShape) -> bool:
    """Whether ``matvec.wgsl`` can have the shape for ``weight`` [N, K] on a device that runs it."""
    n = weight.shape[0]
    kernel = _matvec(limits, weight, "", shape)
    return (
        shape.lanes <= limits.subgroup
        and shape.workgroup <= limits.max_invocations
        and (shape.rows % 2 == 0 or epilogue not in PAIRED)
        and _tile_bytes(kernel.params["TILE"], shape.workgroup) <= limits.max_workgroup_storage
        and ceil(n / kernel.rows) <= limits.max_workgroups
    )


def lanes_for(limits: DeviceLimits, wanted: int = 16) -> int:
    """Neighbouring invocations that share rows: a power of two within the smallest subgroup."""
    return max(1, min(wanted, limits.subgroup))


def token_tile(limits: DeviceLimits) -> int:
    """Tokens that the kernels of a chunk take together on a device, or a multiple of those."""
    return SIMPLE_TILE if limits.software else CHUNK_TILE["TILE_M"]


def simple_shape(limits: DeviceLimits, tokens: int, rows: int) -> tuple[int, int]:
    """(lanes that share rows, rows a lane) for ``linear.wgsl``. Emulated lanes may idle, loads cost; so does compiling
    for an emulated device, more for more rows, which few rows are not worth."""
    if tokens > 1:
        return 1, 4
    return lanes_for(limits, 4), 8 if rows >= 2048 else 4


def inputs_of(limits: DeviceLimits, weight: Tensor) -> Literal["floats", "digits"]:
    """What ``matvec.wgsl`` turns the inputs into for ``weight`` [N, K]: the name of its tile."""
    return "digits" if limits.packed_dot and weight.fmt in DIGIT_FORMATS and weight.shape[0] >= DIGIT_ROWS else "floats"


def vector_shape(limits: DeviceLimits, weight: Tensor, epilogue: str) -> VectorShape:
    """The shape that a product of ``weight`` [N, K] has unless it is told another.

    Few rows want many invocations each, and many of them to bring the inputs; the vocabulary's many rows want the
    inputs read less often. What may have its inputs first takes as many rows an invocation as that wants. As it was
    fastest within a step on an H200 (``docs/performance.md``).
    """
    rows = weight.shape[0]
    if rows >= VOCABULARY_ROWS:
        return VectorShape(lanes_for(limits, 8 if inputs_of(limits, weight) == "digits" else 4), 4, 128)
    if rows >= 8192:
        four = VectorShape(lanes_for(limits, 16), 4, 128)
        return four if _matvec(limits, weight, "", four).params["INPUTS_FIRST"] else replace(four, rows=2)
    if rows > 2048:
        return VectorShape(lanes_for(limits, 32), 2, 128)
    return VectorShape(lanes_for(limits, 32), 2 if rows >= 896 or epilogue in PAIRED else 1, 256)


def _linear(limits: DeviceLimits, tokens: int, n: int) -> Product:
    lanes, rows = simple_shape(limits, tokens, n)
    tile = SIMPLE_TILE if tokens > 1 else 1
    params = {"LANES": lanes, "LOG_LANES": lanes.bit_length() - 1, "ROWS": rows, "WG": WORKGROUP, "TOKENS": tile}
    return Product("linear", params, WORKGROUP // lanes * rows, tile)


def _matvec(limits: DeviceLimits, weight: Tensor, prologue: str, shape: VectorShape) -> Product:
    n, k = weight.shape
    lanes, rows, workgroup = shape.lanes, shape.rows, shape.workgroup
    blocks = k // 32
    trips = ceil(blocks / lanes)
    words = ceil(sum(row_sizes(weight.fmt, k)) / blocks / 4)
    room = limits.max_workgroup_storage // 2  # so that two workgroups fit where a processor has no more than that
    most = (room - _tile_bytes(0, workgroup)) // BLOCK_BYTES
    ahead = blocks <= most and trips * rows * words <= MOST_LOADS
    stage, tile = trips, blocks
    if not ahead:
        stage = max(1, MOST_LOADS // (2 * rows * words))
    if blocks > most:
        stage = max(1, min(stage, most // lanes))
        tile = max(1, most // (lanes * stage)) * lanes * stage
    fill = min(MOST_FILL, ceil(tile * 8 / workgroup))
    inputs = inputs_of(limits, weight)
    # The inputs are asked for before the weights where all workgroups fit a large GPU at once, which takes 4 rows an
    # invocation: what counts then is the way from the launch over the inputs and the barrier to the products, and
    # inputs behind all weights would wait for them. What takes several waves of workgroups streams better with its
    # weights first, and so do floats. The inputs must be one round of loads, and no parts of attention to be merged.
    first = inputs == "digits" and n < VOCABULARY_ROWS and rows >= 4 and ahead
    first = first and tile * 8 <= workgroup * fill and prologue != "attention_merge"
    params = {
        "LANES": lanes, "LOG_LANES": lanes.bit_length() - 1, "ROWS": rows, "WG": workgroup,
        "TILE": tile, "TILED": tile < blocks, "STAGE": stage, "AHEAD": ahead, "FILL": fill,
        "INPUTS": inputs, "INPUTS_FIRST": first,
    }  # fmt: skip
    return Product("matvec", params, workgroup // lanes * rows, 1)


def _tile_bytes(blocks: int, workgroup: int) -> int:
    """Bytes of workgroup memory that ``matvec.wgsl`` takes for so many blocks of inputs."""
    return (blocks + 1) * BLOCK_BYTES + workgroup * 4


def _matmul(tokens: int, n: int) -> Product:
    tile = NARROW_TILE if n < NARROW else CHUNK_TILE
    return Product("matmul", {**tile, "CHUNK": tokens}, tile["TILE_N"], tile["TILE_M"])
