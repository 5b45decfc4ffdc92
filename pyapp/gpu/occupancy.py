"""Who holds which bytes of a slab: an interval map, exact to the byte. No GPU in here."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class Owner:
    """A block of a model: ``tenant`` and ``label`` are their names."""

    tenant: str
    label: str


Span = tuple[int, int, Owner]


class Occupancy:
    """Disjoint spans [start, end) with an owner each, in order; neighbours of one owner are one span."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def spans(self) -> list[Span]:
        return list(self._spans)

    @property
    def used(self) -> int:
        return sum(end - start for start, end, _ in self._spans)

    def held_by(self, owner: Owner) -> int:
        return sum(end - start for start, end, held in self._spans if held == owner)

    def missing(self, start: int, end: int, owner: Owner) -> list[tuple[int, int]]:
        """The parts of [start, end) that ``owner`` does not hold."""
        out, at = [], start
        first, last = self._overlapping(start, end)
        for begin, stop, held in self._spans[first:last]:
            if held == owner:
                if at < begin:
                    out.append((at, begin))
                at = max(at, stop)
        if at < end:
            out.append((at, end))
        return out

    def clear(self, start: int, end: int) -> list[Span]:
        """Nobody holds [start, end) afterwards; returns what was taken from whom."""
        first, last = self._overlapping(start, end)
        taken = self._spans[first:last]
        self._spans[first:last] = _beside(taken, start, end)
        return [(max(begin, start), min(stop, end), held) for begin, stop, held in taken]

    def put(self, start: int, end: int, owner: Owner) -> None:
        """``owner`` holds [start, end) afterwards, whoever held parts of it before."""
        if start >= end:
            return
        first, last = self._overlapping(start, end)
        kept = _beside(self._spans[first:last], start, end)
        before = [span for span in kept if span[0] < start]
        after = [span for span in kept if span[0] >= end]
        # Neighbours of the same owner are taken in, be they what is left of a span or whole ones.
        if not before and first and self._spans[first - 1][1] == start:
            first -= 1
            before = [self._spans[first]]
        if not after and last < len(self._spans) and self._spans[last][0] == end:
            after = [self._spans[last]]
            last += 1
        if before and before[-1][1:] == (start, owner):
            start = before.pop()[0]
        if after and (after[0][0], after[0][2]) == (end, owner):
            end = after.pop(0)[1]
        self._spans[first:last] = [*before, (start, end, owner), *after]

    def _overlapping(self, start: int, end: int) -> tuple[int, int]:
        """The range of the spans that share a byte with [start, end)."""
        if start >= end:
            return 0, 0
        first = bisect_right(self._spans, start, key=_end)
        last = bisect_left(self._spans, end, lo=first, key=_begin)
        return first, last


def _begin(span: Span) -> int:
    return span[0]


def _end(span: Span) -> int:
    return span[1]


def _beside(spans: list[Span], start: int, end: int) -> list[Span]:
    """What is left of ``spans`` before ``start`` and after ``end``."""
    low = [(begin, min(stop, start), held) for begin, stop, held in spans if begin < start]
    high = [(max(begin, end), stop, held) for begin, stop, held in spans if stop > end]
    return [*low, *high]
