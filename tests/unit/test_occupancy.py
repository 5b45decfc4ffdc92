"""The interval map against an array with an owner for each byte."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyapp.gpu.occupancy import Occupancy, Owner

SIZE = 24
OWNERS = [Owner("a", "0"), Owner("a", "1"), Owner("b", "0")]
RANGES = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "clear", "missing"]), RANGES, st.sampled_from(OWNERS)), max_size=30)


@given(STEPS)
def test_it_knows_the_owner_of_every_byte(steps: list[tuple[str, list[int], Owner]]) -> None:
    held, bytes_of = Occupancy(), [None] * SIZE
    for step, (start, end), owner in steps:
        before = list(bytes_of)
        if step == "missing":
            parts = held.missing(start, end, owner)
            assert [at for low, high in parts for at in range(low, high)] == [
                at for at in range(start, end) if bytes_of[at] != owner
            ]
        elif step == "clear":
            taken = held.clear(start, end)
            seen = {at: whose for low, high, whose in taken for at in range(low, high)}
            assert seen == {at: before[at] for at in range(start, end) if before[at] is not None}
            bytes_of[start:end] = [None] * (end - start)
        elif start < end:
            held.put(start, end, owner)
            bytes_of[start:end] = [owner] * (end - start)  # type: ignore[list-item]
        spans = held.spans()
        assert [at for low, high, _ in spans for at in range(low, high)] == [
            at for at in range(SIZE) if bytes_of[at] is not None
        ]
        assert all(whose == bytes_of[at] for low, high, whose in spans for at in range(low, high))
        # As few spans as there can be, in order.
        assert all(a[1] < b[0] or (a[1] == b[0] and a[2] != b[2]) for a, b in pairwise(spans))
        assert held.used == sum(owner is not None for owner in bytes_of)
        for each in OWNERS:
            assert held.held_by(each) == bytes_of.count(each)  # type: ignore[arg-type]
