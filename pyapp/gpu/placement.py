"""Where each block of a model's weights has its home in the slabs. Pure arithmetic, no GPU.

Homes are fixed for good, so bind groups are too, and no gap can ever be too small. One model's homes grow from the low
end of the slabs and another's from the high end: where both together are larger than the slabs, their last blocks
overlap, and only the bytes that overlap ever move. A model that is larger than its room keeps its first blocks in homes
of their own (pinned: LRU over a loop of layers never hits); the others take turns in a window of two slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from ..errors import OutOfMemory

SLOTS = 2
"""Blocks of a streamed model that the window holds: one is read by the GPU while the next one is written."""


class Block(Protocol):
    """Ranges of a blob that move as one. Offsets and sizes are multiples of 256 bytes."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def extents(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def rows(self) -> Mapping[str, tuple[int, int]]:
        """(first, count) of the rows of each tensor in it."""
        ...


@dataclass(frozen=True)
class Home:
    """Bytes [blob, blob + nbytes) of the blob lie at ``offset`` of the weights slab number ``slab``."""

    slab: int
    offset: int
    blob: int
    nbytes: int


@dataclass(frozen=True)
class Placement:
    """The homes of each block's extents; ``streamed``: the blocks whose homes are slots of the window."""

    homes: tuple[tuple[Home, ...], ...]
    streamed: frozenset[int]

    def pieces(self, blocks: Sequence[Block]) -> dict[str, tuple[tuple[int, int], ...]]:
        """By tensor: (first row, rows) of the runs of its rows that lie together, in order."""
        runs: dict[str, list[tuple[int, int]]] = {}
        for index, block in enumerate(blocks):
            for tensor, (first, count) in block.rows.items():
                mine = runs.setdefault(tensor, [])
                if mine and sum(mine[-1]) == first and self._continues(index):
                    mine[-1] = (mine[-1][0], mine[-1][1] + count)
                else:
                    mine.append((first, count))
        return {tensor: tuple(mine) for tensor, mine in runs.items()}

    def _continues(self, block: int) -> bool:
        """Whether a block's homes begin where those of the block before end: the two can be bound as one."""
        before, after = self.homes[block - 1], self.homes[block]
        return (
            not {block - 1, block} & self.streamed
            and len(before) == len(after)
            and all(
                (a.slab, a.offset + a.nbytes, a.blob + a.nbytes) == (b.slab, b.offset, b.blob)
                for a, b in zip(before, after, strict=True)
            )
        )


class _Cursor:
    """Hands out consecutive places, from the low end of the first slab up; no place straddles two slabs."""

    def __init__(self, slabs: Sequence[int]) -> None:
        self._slabs = slabs
        self._slab = 0
        self._at = 0

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """(slab, offset), or None when the slabs have no room left."""
        while self._slab < len(self._slabs):
            if self._at + nbytes <= self._slabs[self._slab]:
                self._at += nbytes
                return self._slab, self._at - nbytes
            self._slab, self._at = self._slab + 1, 0
        return None


class _DownwardCursor:
    """The same from the high end of the last slab down."""

    def __init__(self, slabs: Sequence[int]) -> None:
        self._slabs = slabs
        self._up = _Cursor(slabs[::-1])

    def take(self, nbytes: int) -> tuple[int, int] | None:
        mirrored = self._up.take(nbytes)
        if mirrored is None:
            return None
        slab = len(self._slabs) - 1 - mirrored[0]
        return slab, self._slabs[slab] - mirrored[1] - nbytes


def place(
    blocks: Sequence[Block], slabs: Sequence[int], *, room: int | None = None, least: int = 0, downward: bool = False
) -> Placement:
    """Homes for ``blocks`` in slabs of the given sizes (bytes).

    Args:
        room: bytes that the homes may take together; all of the slabs where it is None.
        least: how many of the first blocks must be pinned (they are read all over a step).
        downward: from the high end, each block whole; else from the low end, each extent after the one before.

    Raises ``OutOfMemory`` where not even ``least`` blocks and a window fit.
    """
    room = min(sum(slabs), sum(slabs) if room is None else room)
    sizes = [block.nbytes for block in blocks]
    before = list(accumulate(sizes, initial=0))
    largest = list(accumulate(reversed(sizes), max, initial=0))[::-1]
    need = 0
    for pinned in range(len(blocks), least - 1, -1):
        slots = [largest[pinned]] * min(SLOTS, len(blocks) - pinned)
        need = before[pinned] + sum(slots)
        homes = _homes(blocks, pinned, slots, slabs, downward) if need <= room else None
        if homes is not None:
            return Placement(homes, frozenset(range(pinned, len(blocks))))
    raise OutOfMemory(
        f"The model streams its weights in {need} bytes at least, and it has room for {room}; "
        "give the pool more MiB or choose a smaller model.",
        need=need,
        room=room,
    )


def _homes(
    blocks: Sequence[Block], pinned: int, slots: Sequence[int], slabs: Sequence[int], downward: bool
) -> tuple[tuple[Home, ...], ...] | None:
    """The homes with the first ``pinned`` blocks pinned and a window of ``slots``, or None where they do not fit."""
    cursor = _DownwardCursor(slabs) if downward else _Cursor(slabs)
    places: list[tuple[int, int, int]] = []  # blob, slab, offset
    ranges = (
        [block.extents for block in blocks[:pinned]]
        if downward
        else [(extent,) for extent in sorted(extent for block in blocks[:pinned] for extent in block.extents)]
    )
    for extents in ranges:
        found = cursor.take(sum(nbytes for _, nbytes in extents))
        if found is None:
            return None
        places += _within(extents, *found)
    windows = []
    for size in slots:
        found = cursor.take(size)
        if found is None:
            return None
        windows.append(found)
    for number, block in enumerate(blocks[pinned:]):
        places += _within(block.extents, *windows[number % len(windows)])
    at = {blob: (slab, offset) for blob, slab, offset in places}
    return tuple(tuple(Home(*at[blob], blob, nbytes) for blob, nbytes in block.extents) for block in blocks)


def _within(extents: Sequence[tuple[int, int]], slab: int, offset: int) -> list[tuple[int, int, int]]:
    """One extent after the other from ``offset`` on."""
    out = []
    for blob, nbytes in extents:
        out.append((blob, slab, offset))
        offset += nbytes
    return out
