"""How a plan is cut into submits where some of its weights pass through the window."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyapp.engine.steps import grouped

BLOCKS = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=20)


def test_a_block_is_waited_for_only_by_what_reads_it() -> None:
    blocks = [None, None, 5, 5, None, 6, None, None, 7]
    assert grouped(((0, 9),), blocks) == [(None, ((0, 2),)), (5, ((2, 5),)), (6, ((5, 8),)), (7, ((8, 9),))]
    assert grouped(((0, 3), (7, 8)), blocks) == [(None, ((0, 2),)), (5, ((2, 3), (7, 8)))]


@given(BLOCKS, st.data())
def test_every_row_runs_once_in_order_with_its_block_in_place(blocks: list[int | None], data: st.DataObject) -> None:
    middle = data.draw(st.integers(0, len(blocks)))
    spans = tuple(span for span in ((0, middle), (min(middle + 1, len(blocks)), len(blocks))) if span[0] < span[1])
    groups = grouped(spans, blocks)
    rows = [(row, block) for block, part in groups for low, high in part for row in range(low, high)]
    assert [row for row, _ in rows] == [row for low, high in spans for row in range(low, high)]
    assert all(blocks[row] in (None, block) for row, block in rows)
    assert all(part for _, part in groups)
    assert all(a != b for (a, _), (b, _) in pairwise(groups))
