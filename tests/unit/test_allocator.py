"""The free list against a model that knows every byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from pyapp.gpu.allocator import ALIGNMENT, FreeList, aligned

UNIT = ALIGNMENT


class AllocatorMachine(RuleBasedStateMachine):
    """Each unit of 256 bytes is owned by the range that holds it, or free (-1)."""

    taken: Bundle[int] = Bundle("taken")

    @initialize(units=st.integers(0, 40))
    def start(self, units: int) -> None:
        self.free = FreeList(units * UNIT)
        self.owner = np.full(units, -1)

    def gaps(self) -> list[tuple[int, int]]:
        """(first unit, units) of each run of free units."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.owner < 0, [0]]).astype(int)))
        return [(int(a), int(b - a)) for a, b in edges.reshape(-1, 2)]

    @rule(target=taken, nbytes=st.integers(0, 12 * UNIT))
    def take(self, nbytes: int) -> Any:
        units = max(1, -(-nbytes // UNIT))
        fitting = [first for first, size in self.gaps() if size >= units]
        offset = self.free.take(nbytes)
        if offset is None:
            assert fitting == []
            return multiple()
        assert offset == fitting[0] * UNIT  # the lowest gap
        assert (self.owner[fitting[0] : fitting[0] + units] == -1).all()
        self.owner[fitting[0] : fitting[0] + units] = fitting[0]
        return offset

    @rule(offset=consumes(taken))
    def give_back(self, offset: int) -> None:
        mine = self.owner == offset // UNIT
        assert self.free.give_back(offset) == mine.sum() * UNIT
        self.owner[mine] = -1

    @rule(offset=st.integers(-1, 41 * UNIT))
    def give_back_what_is_not_taken(self, offset: int) -> None:
        if offset % UNIT or offset // UNIT not in self.owner:
            with pytest.raises(KeyError):
                self.free.give_back(offset)

    @invariant()
    def figures_agree(self) -> None:
        if hasattr(self, "free"):
            assert self.free.used == (self.owner >= 0).sum() * UNIT
            assert self.free.largest == max((size for _, size in self.gaps()), default=0) * UNIT


TestAllocator = AllocatorMachine.TestCase


def test_sizes_are_rounded_up_to_what_a_binding_needs() -> None:
    assert [aligned(n) for n in (0, 1, 255, 256, 257)] == [0, 256, 256, 256, 512]
    free = FreeList(1024)
    assert (free.take(0), free.take(257), free.take(1), free.take(1)) == (0, 256, 768, None)


def test_everything_given_back_is_one_gap_again() -> None:
    free = FreeList(40 * UNIT)
    offsets = [free.take(UNIT * size) for size in (3, 1, 8, 2, 5)]
    for index in (3, 1, 4, 0, 2):
        offset = offsets[index]
        assert offset is not None
        free.give_back(offset)
    assert free.take(40 * UNIT) == 0
