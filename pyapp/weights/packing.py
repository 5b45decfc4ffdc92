"""From the tensors of a file to one blob that the kernels can read: recipes, their layout, and the packing itself.

A recipe (``PackedTensor``) says which rows of which source tensors make up a matrix of the graph, in which order and in
which kernel format (see ``formats``). Recipes are grouped into blocks, the unit of residency; ``plan_layout`` gives
every section its place in the blob, and ``pack`` fills the blob a few rows at a time, so that memory stays bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import BadModel
from .formats import (
    FORMATS,
    PLAIN,
    kernel_format,
    pack_rows,
    promote,
    row_sizes,
    section_sizes,
    unpack,
)
from .gguf import TensorInfo
from .quants import quant_type
from .source import Bytes, Source

__all__ = [
    "FORMATS", "PLAIN", "Entry", "PackLayout", "PackedBlock", "PackedTensor", "SourceRows", "kernel_format", "pack",
    "pack_rows", "plan_layout", "promote", "row_sizes", "section_sizes", "unpack",
]  # fmt: skip

ALIGNMENT = 256
PIECE_BYTES = 16 << 20
"""The most that is read, or written, at once."""
PACKING_VERSION = 1
"""Part of every fingerprint: raise it when the meaning of a packed byte changes."""


@dataclass(frozen=True)
class SourceRows:
    """All rows of one tensor of the file; with ``row_order``, row ``i`` of the result is row ``row_order[i]``."""

    tensor: str
    row_order: npt.NDArray[np.integer] | None = None


@dataclass(frozen=True)
class PackedTensor:
    """A recipe: the rows of ``sources`` one after the other, as an ``[n, k]`` matrix in the kernel format ``fmt``.

    A vector is a matrix of one row; where it has several sources, or an order, these count its single values.
    """

    name: str
    sources: tuple[SourceRows, ...]
    fmt: str
    n: int
    k: int


@dataclass(frozen=True)
class Entry:
    """Where a packed tensor lies: offsets from the blob's start, multiples of 256; bytes as in ``section_sizes``."""

    quants_offset: int
    quants_bytes: int
    scales_offset: int
    scales_bytes: int


@dataclass(frozen=True)
class PackedBlock:
    """A run of the blob that belongs together, such as a layer; ``blocks.py`` cuts it for moving."""

    name: str
    offset: int
    nbytes: int
    entries: dict[str, Entry]
    recipes: tuple[PackedTensor, ...] = field(repr=False)


@dataclass(frozen=True)
class PackLayout:
    """The blob: its blocks in order, and its bytes."""

    blocks: tuple[PackedBlock, ...]
    total: int

    @property
    def entries(self) -> dict[str, Entry]:
        """Every packed tensor's place, by name."""
        return {name: entry for block in self.blocks for name, entry in block.entries.items()}

    @property
    def fingerprint(self) -> str:
        """Two layouts with the same fingerprint make the same blob of the same file."""
        digest = hashlib.sha256(f"{PACKING_VERSION} {self.total}".encode())
        for block in self.blocks:
            digest.update(repr((block.name, block.offset, block.nbytes)).encode())
            for recipe in block.recipes:
                digest.update(repr((recipe.name, recipe.fmt, recipe.n, recipe.k, block.entries[recipe.name])).encode())
                for rows in recipe.sources:
                    order = b"" if rows.row_order is None else np.asarray(rows.row_order, "<i8").tobytes()
                    digest.update(repr((rows.tensor, len(order))).encode() + order)
        return digest.hexdigest()[:32]


class WeightFile(Protocol):
    """What ``gguf`` and ``safetensors`` readers give."""

    @property
    def tensors(self) -> dict[str, TensorInfo]: ...


class Sink(Protocol):
    """Where packed bytes go; ranges come in any order and do not overlap."""

    async def write(self, offset: int, data: Bytes) -> None: ...


Progress = Callable[[str, int, int | None], None]


def plan_layout(recipes_by_block: Mapping[str, Sequence[PackedTensor]]) -> PackLayout:
    """Gives every section of every recipe a place: blocks in the mapping's order, sections at multiples of 256 bytes.

    Raises:
        BadModel: two recipes of one name, or a shape that its format cannot have.
    """
    at = 0
    blocks: list[PackedBlock] = []
    names: set[str] = set()
    for block_name, recipes in recipes_by_block.items():
        start = at
        entries: dict[str, Entry] = {}
        for recipe in recipes:
            if recipe.name in names:
                raise BadModel(f"Two packed tensors are called {recipe.name!r}.", tensor=recipe.name)
            names.add(recipe.name)
            quants, scales = section_sizes(recipe.fmt, recipe.n, recipe.k)
            scales_at = at + _aligned(quants)
            entries[recipe.name] = Entry(at, quants, scales_at, scales)
            at = scales_at + _aligned(scales)
        blocks.append(PackedBlock(block_name, start, at - start, entries, tuple(recipes)))
    return PackLayout(tuple(blocks), at)


async def pack(
    file: WeightFile, source: Source, layout: PackLayout, sink: Sink, progress: Progress | None = None
) -> None:
    """Fills ``sink`` with the blob of ``layout``.

    Reads and writes at most ``PIECE_BYTES`` at a time, and reports ``progress("pack", bytes done, layout.total)``.

    Raises:
        BadModel: a tensor is missing, has another shape than its recipe, or does not fit its format.
    """
    _check(file, layout)
    done = 0
    for block in layout.blocks:
        for recipe in block.recipes:
            entry = block.entries[recipe.name]
            async for first, quants, scales in _pieces(file, source, recipe):
                quants_row, scales_row = row_sizes(recipe.fmt, _row_shape(file, recipe)[1])
                await sink.write(entry.quants_offset + first * quants_row, quants)
                if scales.size:
                    await sink.write(entry.scales_offset + first * scales_row, scales)
                done += quants.size + scales.size
                if progress is not None:
                    progress("pack", done, layout.total)
    if progress is not None:
        progress("pack", layout.total, layout.total)


async def _pieces(file: WeightFile, source: Source, recipe: PackedTensor) -> AsyncIterator[tuple[int, Bytes, Bytes]]:
    """Yields (number of the first row, quants, scales) for runs of the recipe's rows."""
    _, k = _row_shape(file, recipe)
    at = 0
    for rows in recipe.sources:
        info = file.tensors[rows.tensor]
        row_bytes = info.nbytes // (info.values // k)
        # A row may grow eightfold on its way to float32.
        step = max(1, PIECE_BYTES // max(row_bytes, sum(row_sizes(recipe.fmt, k))))
        count = info.values // k
        for start in range(0, count, step):
            stop = min(start + step, count)
            if rows.row_order is None:
                data = await source.read(info.offset + start * row_bytes, (stop - start) * row_bytes)
            else:
                order = np.asarray(rows.row_order[start:stop], np.int64)
                data = await _gather(source, info.offset, row_bytes, order, step)
            quants, scales = pack_rows(info.type, data, stop - start, k, recipe.fmt)
            yield at + start, quants, scales
        at += count


async def _gather(source: Source, offset: int, row_bytes: int, order: npt.NDArray[np.int64], most: int) -> Bytes:
    """The rows ``order``, read in as few spans of at most ``most`` rows as their places allow."""
    out = np.empty((len(order), row_bytes), np.uint8)
    ranked = np.argsort(order, kind="stable")
    ordered = order[ranked]
    for first, last in _spans(ordered, most):
        low, high = int(ordered[first]), int(ordered[last - 1]) + 1
        span = await source.read(offset + low * row_bytes, (high - low) * row_bytes)
        out[ranked[first:last]] = span.reshape(-1, row_bytes)[ordered[first:last] - low]
    return out


def _spans(ordered: npt.NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(ordered):
        last = int(np.searchsorted(ordered, ordered[first] + most))
        yield first, last
        first = last


def _row_shape(file: WeightFile, recipe: PackedTensor) -> tuple[int, int]:
    """A vector made of vectors is handled as a column: the bytes are the same, and its values become rows."""
    vectors = all(len(file.tensors[part.tensor].shape) == 1 for part in recipe.sources)
    if recipe.n == 1 and vectors and recipe.fmt in PLAIN:
        return recipe.k, 1
    return recipe.n, recipe.k


def _check_names(file: WeightFile, recipe: PackedTensor) -> None:
    for part in recipe.sources:
        if part.tensor not in file.tensors:
            raise BadModel(f"The model file has no tensor {part.tensor!r}.", tensor=part.tensor)


def _check(file: WeightFile, layout: PackLayout) -> None:
    for block in layout.blocks:
        for recipe in block.recipes:
            _check_names(file, recipe)
            n, k = _row_shape(file, recipe)
            rows = 0
            for part in recipe.sources:
                info = file.tensors[part.tensor]
                if k % quant_type(info.type).values or info.values % k:
                    raise BadModel(
                        f"Tensor {part.tensor!r} is {list(info.shape)} of {info.type}; rows of {k} were expected.",
                        tensor=part.tensor,
                    )
                rows += _check_order(part, info.values // k)
            if rows != n:
                names = ", ".join(part.tensor for part in recipe.sources)
                raise BadModel(f"{names} have {rows} rows of {k} weights; the model's shape needs {n}.", rows=rows, n=n)


def _check_order(part: SourceRows, count: int) -> int:
    if part.row_order is not None:
        order = np.asarray(part.row_order)
        if order.shape != (count,) or (np.bincount(order[(order >= 0) & (order < count)], minlength=count) != 1).any():
            raise BadModel(f"The row order for {part.tensor!r} is no permutation of its {count} rows.")
    return count


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
