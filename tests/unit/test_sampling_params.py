"""Sampling parameters and their bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pyapp.errors import BadArgument
from pyapp.text.sampling import SamplingParams


def test_defaults_are_valid() -> None:
    assert SamplingParams().validated() == SamplingParams(256, 0.0, 0, 1.0, 0)


def test_numbers_from_javascript_become_int_and_float() -> None:
    checked = SamplingParams(max_tokens=5.0, temperature=1, top_k=40.0, top_p=1, seed=7.0).validated()  # type: ignore[arg-type]
    assert checked == SamplingParams(5, 1.0, 40, 1.0, 7)
    kinds = [
        type(value) for value in (checked.max_tokens, checked.temperature, checked.top_k, checked.top_p, checked.seed)
    ]
    assert kinds == [int, float, int, float, int]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_tokens", [1, 100_000], [0, -1, 1.5]),
        ("temperature", [0, 2], [-0.1, 2.1]),
        ("top_k", [0, 1, 100_000], [-1, 0.5]),
        ("top_p", [1e-6, 1], [0, -0.5, 1.01]),
        ("seed", [0, 2**32 - 1], [-1, 2**32, 0.5]),
    ],
)
def test_bounds(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(SamplingParams(**{name: value}).validated(), name) == value
    for value in [*bad, math.nan, math.inf, "1", None, True, [1]]:
        with pytest.raises(BadArgument, match=name):
            SamplingParams(**{name: value}).validated()
