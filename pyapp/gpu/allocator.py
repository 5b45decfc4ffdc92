"""Regions within one slab: a free list with coalescing, first fit from the low end. No GPU in here."""

from __future__ import annotations

from bisect import insort

ALIGNMENT = 256


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to the 256 bytes that WebGPU asks of a binding's offset."""
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


class FreeList:
    """Hands out [offset, size) ranges of ``size`` bytes; freed neighbours merge. Sizes are rounded up to 256."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free: list[tuple[int, int]] = [(0, size)] if size else []
        self._taken: dict[int, int] = {}

    @property
    def used(self) -> int:
        return sum(self._taken.values())

    @property
    def largest(self) -> int:
        return max((size for _, size in self._free), default=0)

    def take(self, nbytes: int) -> int | None:
        """The offset of a new range, or None when no gap is large enough."""
        need = max(ALIGNMENT, aligned(nbytes))
        for index, (offset, size) in enumerate(self._free):
            if size >= need:
                if size == need:
                    del self._free[index]
                else:
                    self._free[index] = (offset + need, size - need)
                self._taken[offset] = need
                return offset
        return None

    def give_back(self, offset: int) -> int:
        """Frees the range that starts at ``offset``; returns its size. KeyError for one that is not taken."""
        freed = size = self._taken.pop(offset)
        insort(self._free, (offset, size))
        index = self._free.index((offset, size))
        if index + 1 < len(self._free) and offset + size == self._free[index + 1][0]:
            size += self._free.pop(index + 1)[1]
            self._free[index] = (offset, size)
        if index and sum(self._free[index - 1]) == offset:
            before, before_size = self._free[index - 1]
            self._free[index - 1 : index + 1] = [(before, before_size + size)]
        return freed
