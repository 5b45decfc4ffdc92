"""Who holds which bytes of a slab: an interval map, exact to the byte. No GPU in here."""

from __future__ import annotations

from bisect import bisect_right
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
        for begin, stop, held in self._overlapping(start, end):
            if held == owner:
                if at < begin:
                    out.append((at, begin))
                at = max(at, stop)
        if at < end:
            out.append((at, end))
        return out

    def clear(self, start: int, end: int) -> list[Span]:
        """Nobody holds [start, end) afterwards; returns what was taken from whom."""
        if start >= end:
            return []
        taken = [(max(begin, start), min(stop, end), held) for begin, stop, held in self._overlapping(start, end)]
        kept: list[Span] = []
        for begin, stop, held in self._spans:
            beside = ((begin, min(stop, start)), (max(begin, end), stop))
            kept += [(low, high, held) for low, high in beside if low < high]
        self._spans = kept
        return taken

    def put(self, start: int, end: int, owner: Owner) -> None:
        """``owner`` holds [start, end) afterwards, whoever held parts of it before."""
        self.clear(start, end)
        self._spans.append((start, end, owner))
        self._spans.sort(key=lambda span: span[0])
        merged: list[Span] = []
        for span in self._spans:
            if merged and merged[-1][1] == span[0] and merged[-1][2] == span[2]:
                merged[-1] = (merged[-1][0], span[1], span[2])
            else:
                merged.append(span)
        self._spans = merged

    def _overlapping(self, start: int, end: int) -> list[Span]:
        first = max(0, bisect_right(self._spans, start, key=lambda span: span[0]) - 1)
        out = []
        for span in self._spans[first:]:
            if span[0] >= end:
                break
            if span[1] > start:
                out.append(span)
        return out
