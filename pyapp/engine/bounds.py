"""How much of a plan goes into one submit: at most so much GPU work that no driver's watchdog takes it for a hang.

A dispatch's work is counted in units of its operations, a byte as many as a GPU does while it fetches one. How long a
unit takes is measured as submits come back; before anything is known a small part goes first.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from ..gpu.plan import Dispatch, Plan

Spans = tuple[tuple[int, int], ...]
MOST_SECONDS = 0.1
"""GPU work of a submit, as measured so far. Watchdogs act after some 2 s; an abort waits for what is under way."""
FIRST_SHARE = 1 / 8
"""Of the whole plan, while nothing is known."""
LEAST_SHARE = 1 / 16
"""Of the whole plan: less than that says more of the way to the GPU and back than of its pace."""
OPERATIONS_A_BYTE = 10
"""What a GPU computes in the time that it takes to read a byte, within a factor of a few for all of them."""


def work_of(dispatch: Dispatch) -> float:
    """Units of work of a dispatch at its full size."""
    return max(1.0, dispatch.flops, OPERATIONS_A_BYTE * dispatch.bytes)


class Bounds:
    """The work of one plan's rows, and how much of it a submit may have. Spans are [from, to) rows."""

    def __init__(self, plan: Plan) -> None:
        # Work before each row: of rows that do not hang on a chunk's tiles, and of those that do.
        self._fixed = [0.0, *accumulate(0.0 if d.per_tile else work_of(d) for d in plan.dispatches)]
        self._tiled = [0.0, *accumulate(work_of(d) / plan.full_tiles if d.per_tile else 0.0 for d in plan.dispatches)]
        self._whole = self._fixed[-1] + self._tiled[-1] * plan.full_tiles

    def _before(self, row: int, tiles: int) -> float:
        return self._fixed[row] + tiles * self._tiled[row]

    def work(self, spans: Spans, tiles: int) -> float:
        """Units of work of rows of the plan, for a chunk of so many tiles."""
        return sum(self._before(end, tiles) - self._before(begin, tiles) for begin, end in spans)

    def most(self, pace: float) -> float:
        """Units that a submit may have. ``pace``: seconds a unit as last measured, 0 where nothing has been."""
        return MOST_SECONDS / pace if pace else FIRST_SHARE * self._whole

    def telling(self, work: float, most: float) -> float:
        """``work`` where a submit of so much should be measured, else 0: too little of the plan says nothing, unless it
        is about as much as a submit may have."""
        return work if work >= min(LEAST_SHARE * self._whole, most / 2) else 0.0

    def cut(self, spans: Spans, tiles: int, most: float) -> tuple[Spans, Spans]:
        """(what a submit of ``most`` units takes, what is left): whole rows, one at least."""
        taken: list[tuple[int, int]] = []
        for number, (begin, end) in enumerate(spans):
            start = self._before(begin, tiles)
            upto = bisect_right(range(end + 1), start + most, begin, key=lambda row: self._before(row, tiles)) - 1
            upto = max(upto, begin if taken else begin + 1)
            if upto < end:
                head = [(begin, upto)] if upto > begin else []
                return (*taken, *head), ((upto, end), *spans[number + 1 :])
            taken.append((begin, end))
            most -= self._before(end, tiles) - start
        return tuple(taken), ()
