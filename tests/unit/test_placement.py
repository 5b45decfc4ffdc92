"""Homes in the slabs: nothing pinned lies over anything of its own model, and the first blocks are pinned."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.errors import OutOfMemory
from pyapp.gpu.placement import SLOTS, Placement, place
from pyapp.weights.blocks import Block

UNIT = 256


def whole(units: list[int]) -> list[Block]:
    """Blocks of one extent each."""
    blocks, at = [], 0
    for number, unit in enumerate(units):
        blocks.append(Block(str(number), ((at, unit * UNIT),), {f"w{number}": (0, 1)}))
        at += unit * UNIT
    return blocks


def cut(quants: list[int], scales: list[int]) -> list[Block]:
    """Blocks of one matrix's rows, 64 in each: first all the quants, then all the scales."""
    blocks, at, scales_at = [], 0, sum(quants) * UNIT
    for number, (q, s) in enumerate(zip(quants, scales, strict=True)):
        blocks.append(Block(str(number), ((at, q * UNIT), (scales_at, s * UNIT)), {"matrix": (64 * number, 64)}))
        at += q * UNIT
        scales_at += s * UNIT
    return blocks


def spans(placement: Placement, blocks: list[Block]) -> dict[int, list[tuple[int, int, int]]]:
    return {
        index: [(home.slab, home.offset, home.offset + home.nbytes) for home in placement.homes[index]]
        for index in range(len(blocks))
    }


def test_one_model_grows_up_and_the_other_down() -> None:
    up = place(whole([3, 4]), [10 * UNIT])
    down = place(whole([3, 4]), [10 * UNIT], downward=True)
    assert [homes[0].offset // UNIT for homes in up.homes] == [0, 3]
    assert [homes[0].offset // UNIT for homes in down.homes] == [7, 3]


def test_rows_that_lie_side_by_side_are_one_piece() -> None:
    blocks = cut([4, 4, 2], [1, 1, 1])
    assert place(blocks, [20 * UNIT]).pieces(blocks) == {"matrix": ((0, 192),)}
    # The first slab ends after two blocks' quants.
    assert place(blocks, [9 * UNIT, 20 * UNIT]).pieces(blocks) == {"matrix": ((0, 128), (128, 64))}
    # The window holds one at a time.
    placement = place(blocks, [10 * UNIT])
    assert placement.streamed == {0, 1, 2}
    assert placement.pieces(blocks) == {"matrix": ((0, 64), (64, 64), (128, 64))}


def test_what_must_stay_stays_or_it_is_refused() -> None:
    blocks = whole([5, 3, 3, 3, 3])
    assert place(blocks, [11 * UNIT], least=1).streamed == {1, 2, 3, 4}
    with pytest.raises(OutOfMemory, match=f"in {11 * UNIT} bytes at least, and it has room for {10 * UNIT}"):
        place(blocks, [20 * UNIT], room=10 * UNIT, least=1)


UNITS = st.lists(st.integers(1, 9), min_size=1, max_size=12)
BLOCKS = st.one_of(
    UNITS.map(whole),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=12).map(
        lambda pairs: cut([q for q, _ in pairs], [s for _, s in pairs])
    ),
)


@given(BLOCKS, st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 3), st.booleans(), st.data())
def test_any_placement_keeps_the_rules(
    blocks: list[Block], slabs: list[int], least: int, downward: bool, data: st.DataObject
) -> None:
    sizes = [slab * UNIT for slab in slabs]
    room = data.draw(st.integers(0, sum(slabs))) * UNIT
    least = min(least, len(blocks))
    total = sum(block.nbytes for block in blocks)
    try:
        placement = place(blocks, sizes, room=room, least=least, downward=downward)
    except OutOfMemory:
        # One slab and room for everything, or for the least and the window, is never refused.
        window = sum(sorted((block.nbytes for block in blocks[least:]), reverse=True)[:1]) * SLOTS
        enough = min(total, sum(block.nbytes for block in blocks[:least]) + window)
        assert len(slabs) > 1 or min(room, sizes[0]) < enough
        return
    pinned = [index for index in range(len(blocks)) if index not in placement.streamed]
    assert pinned == list(range(len(pinned)))
    assert len(pinned) >= least
    where = spans(placement, blocks)
    for index, block in enumerate(blocks):
        assert [(home.blob, home.nbytes) for home in placement.homes[index]] == list(block.extents)
        assert all(begin >= 0 and end <= sizes[slab] for slab, begin, end in where[index])
    # A block never lies over a pinned one, nor over its neighbour in the window (with two slots: over the one after).
    for first, second in pairwise(sorted(span for index in pinned for span in where[index])):
        assert first[0] < second[0] or first[2] <= second[1]
    passing = sorted({span for index in placement.streamed for span in where[index]})
    for slab, begin, end in passing:
        for index in pinned:
            assert all(s != slab or e <= begin or b >= end for s, b, e in where[index])
    streamed = sorted(placement.streamed)
    for before, after in pairwise(streamed):
        for slab, begin, end in where[before]:
            assert all(s != slab or e <= begin or b >= end for s, b, e in where[after])
    used = sum(block.nbytes for index, block in enumerate(blocks) if index in pinned)
    assert used + min(SLOTS, len(streamed)) * max((blocks[i].nbytes for i in streamed), default=0) <= room
    # Pieces cover every row once, in order, and lie together.
    for tensor, pieces in placement.pieces(blocks).items():
        rows = [row for block in blocks for name, (first, count) in block.rows.items() if name == tensor
                for row in range(first, first + count)]  # fmt: skip
        assert [row for first, count in pieces for row in range(first, first + count)] == rows
