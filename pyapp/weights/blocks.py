"""The blocks that weights move in: a layer each; what is larger is cut at its tensors, and large tensors by rows.

The blob of a layout stays as it is: a block only names ranges of it. A block of whole tensors is one range. One of some
rows of a matrix is two, its quants and its scales; blocks that follow each other then continue each other's ranges,
so that a whole matrix is bound at once wherever its blocks lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from .packing import Entry, PackedBlock, PackedTensor, PackLayout, row_sizes

BLOCK_BYTES = 4 << 20
"""The most bytes of a block that can be cut: two of them are the room that streaming needs."""
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Block:
    """``extents``: (offset, bytes) in the blob, multiples of 256. ``rows``: (first, count) of each tensor in it."""

    name: str
    extents: tuple[tuple[int, int], ...]
    rows: Mapping[str, tuple[int, int]]

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.extents)


def row_step(fmt: str, k: int) -> int:
    """Rows must be cut at multiples of this: the offsets of both sections, and of float32 results, stay multiples of
    256 bytes."""
    quants, scales = row_sizes(fmt, k)
    return 256 // gcd(256, FLOAT_BYTES, quants, scales or 256)


def blocks_of(layout: PackLayout, most: int = BLOCK_BYTES, *, by_rows: bool = True) -> tuple[Block, ...]:
    """The blocks of a layout, in its order, of at most ``most`` bytes where rows allow.

    ``by_rows`` False leaves the layout's own groups whole: for models whose kernels need all rows of a weight.
    """
    out: list[Block] = []
    for group in layout.blocks:
        if group.nbytes <= most or not by_rows:
            whole = {recipe.name: (0, recipe.n) for recipe in group.recipes}
            out.append(Block(group.name, ((group.offset, group.nbytes),), whole))
            continue
        parts = list(_parts(group, most))
        names = [group.name] if len(parts) == 1 else [f"{group.name}.{number}" for number in range(len(parts))]
        out += [Block(name, extents, rows) for name, (extents, rows) in zip(names, parts, strict=True)]
    return tuple(out)


Part = tuple[tuple[tuple[int, int], ...], dict[str, tuple[int, int]]]


def _parts(group: PackedBlock, most: int) -> Iterator[Part]:
    """A group's tensors, as many to a part as fit; one that does not fit alone in parts of its own."""
    start = end = group.offset
    rows: dict[str, tuple[int, int]] = {}
    for recipe in group.recipes:
        entry = group.entries[recipe.name]
        after = _end(entry)
        if rows and after - start > most:
            yield ((start, end - start),), rows
            start, rows = end, {}
        if after - start > most:
            yield from _rows_of(recipe, entry, most)
            start = end = after
            continue
        rows[recipe.name] = (0, recipe.n)
        end = after
    if rows:
        yield ((start, end - start),), rows


def _rows_of(recipe: PackedTensor, entry: Entry, most: int) -> Iterator[Part]:
    quants, scales = row_sizes(recipe.fmt, recipe.k)
    step = row_step(recipe.fmt, recipe.k)
    count = max(step, most // (quants + scales) // step * step)
    for first in range(0, recipe.n, count):
        last = first + count >= recipe.n
        extents = []
        for begin, row, stop in (
            (entry.quants_offset, quants, entry.scales_offset),
            (entry.scales_offset, scales, _end(entry)),
        ):
            if row:
                at = begin + first * row
                extents.append((at, (stop if last else begin + (first + count) * row) - at))
        yield tuple(extents), {recipe.name: (first, min(count, recipe.n - first))}


def _end(entry: Entry) -> int:
    return entry.scales_offset + -(-entry.scales_bytes // 256) * 256
