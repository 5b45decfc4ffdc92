"""When what of the start began and ended, on the clock that the page shares: ms since 1970, with fractions.

    with stage("plans", "language head", "device"):
        ...

keeps the time of a stage, and what it cannot begin without. Stages that run at the same time overlap. It costs two
looks at the clock and is always on; ``web/timeline.js`` is its other half, and turns both into the rows of the bench.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

MOST_KEPT = 256
"""Stages, for a page whose GPU is lost and made ready again all day."""


class Stage(NamedTuple):
    """``begin`` and ``end`` in ms since 1970; ``needs``: the stages that must have ended before this one begins."""

    name: str
    begin: float
    end: float
    needs: tuple[str, ...]


_stages: deque[Stage] = deque(maxlen=MOST_KEPT)
_offset: float | None = None
"""Found at the first look: this module may come out of a snapshot of Python's memory, made on another machine."""


def now() -> float:
    """Ms since 1970, by a clock that never goes back."""
    global _offset
    if _offset is None:
        _offset = (time.time() - time.perf_counter()) * 1000
    return time.perf_counter() * 1000 + _offset


def take_over(stages: Iterable[Mapping[str, Any]], now_ms: float) -> None:
    """Goes on after ``stages``, {stage, from, to, needs}, of a clock by which it is ``now_ms``."""
    global _offset
    _offset = now_ms - time.perf_counter() * 1000
    _stages.extend(Stage(each["stage"], each["from"], each["to"], tuple(each["needs"])) for each in stages)


@contextmanager
def stage(name: str, *needs: str) -> Iterator[None]:
    """Keeps the time of what is done inside, also where it fails."""
    begin = now()
    try:
        yield
    finally:
        _stages.append(Stage(name, begin, now(), needs))


def stages() -> list[dict[str, Any]]:
    """The last stages that have ended, as ``take_over`` takes them."""
    return [{"stage": s.name, "from": s.begin, "to": s.end, "needs": list(s.needs)} for s in _stages]
