"""Two timestamps of the GPU: what they tell, and when they tell nothing; the pool makes what they are read with."""

from __future__ import annotations

import numpy as np
import pytest

from pyapp.gpu.pool import Pool
from pyapp.gpu.timestamps import FEATURE, seconds_between

from .gpu_fakes import fake_device


@pytest.mark.parametrize(
    ("begin", "end", "seconds"),
    [
        (1_000, 251_000, 250e-6),
        (1 << 63, (1 << 63) + 7, 7e-9),  # as unsigned numbers, and not by way of a float
        (5_000, 5_000, 0.0),
        (0, 0, None),
        (0, 9_000, None),
        (9_000, 0, None),
        (9_000, 8_999, None),
    ],
)
def test_a_time_or_that_there_is_none(begin: int, end: int, seconds: float | None) -> None:
    assert seconds_between(np.array([begin, end], np.uint64).tobytes()) == seconds


async def test_a_device_without_the_clock_has_nothing_to_read_it_with() -> None:
    device = fake_device()
    pool = Pool(device, 0)
    assert await pool.timestamps() is None
    assert (device.created, device.queries) == ([], [])


async def test_what_the_clock_is_read_with_is_made_once_counted_and_destroyed() -> None:
    device = fake_device()
    device.probe.features = frozenset([FEATURE])
    pool = Pool(device, 0)
    timestamps = await pool.timestamps()
    assert timestamps is not None
    assert await pool.timestamps() is timestamps
    assert (device.queries, device.queries[0].count) == ([timestamps.queries], 2)
    assert device.created == [timestamps.resolved, timestamps.staging]
    memory = pool.memory()
    assert (memory["objects"]["queries"], memory["objects"]["readback"]) == (1, 2)
    assert memory["live"] == device.live == 512
    pool.close()
    assert (device.live, device.queries[0].destroyed) == (0, True)
    assert not any(pool.memory()["objects"].values())
