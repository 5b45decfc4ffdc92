"""The GPU's own clock: when it began a compute pass and when it ended it (WebGPU's feature ``timestamp-query``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FEATURE = "timestamp-query"
COUNT = 2
"""A pass's beginning and its end."""
NBYTES = COUNT * 8


@dataclass(frozen=True)
class Timestamps:
    """Where a pass leaves its two timestamps: the GPUQuerySet, the buffer that it is resolved into, and the one that is
    read from. Good for one submit at a time."""

    queries: Any
    resolved: Any
    staging: Any


def seconds_between(data: bytes) -> float | None:
    """From the beginning to the end of a pass, of two uint64 in nanoseconds; None where they make no sense: some GPUs
    leave zeros, or clocks that run backwards when the GPU changes its pace.

    Browsers round them, Chromium to 0.1 ms unless a flag says otherwise, so a short pass may take no time at all.
    """
    begin, end = (int(each) for each in np.frombuffer(data, np.uint64, COUNT))
    return (end - begin) / 1e9 if 0 < begin <= end else None
