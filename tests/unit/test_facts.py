"""Logits to labels."""

from __future__ import annotations

import numpy as np
import pytest

from pyapp.errors import BadModel
from pyapp.vision.facts import labels
from tests.unit.text_models import golden

CLASSES = golden("imagenet_classes.json")
CLASSES = CLASSES if isinstance(CLASSES, list) else next(v for v in CLASSES.values() if isinstance(v, list))
PICTURE = golden("effnet_lite0.json")["pictures"][0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_golden_top_five(dtype: type) -> None:
    found = labels(np.array(PICTURE["logits"], dtype), CLASSES)
    assert [label["index"] for label in found] == [top["class"] for top in PICTURE["top5"]]
    assert [label["name"] for label in found] == [top["name"] for top in PICTURE["top5"]]
    # The listed logits are rounded to 1e-5, the probabilities to 1e-5 or 1e-6.
    assert [label["p"] for label in found] == pytest.approx([top["p"] for top in PICTURE["top5"]], abs=2e-5)
    assert list(map(type, found[0].values())) == [int, str, float]


def test_probabilities_add_up_and_do_not_overflow() -> None:
    found = labels([1000.0, 999.0, -1e30], ["a", "b", "c"], k=9)
    assert [label["index"] for label in found] == [0, 1, 2]
    assert found[0]["p"] == pytest.approx(1 / (1 + np.exp(-1)))
    assert sum(label["p"] for label in found) == pytest.approx(1)


def test_equal_ones_come_in_order() -> None:
    assert [label["name"] for label in labels([1, 2, 2, 2], list("abcd"), k=3)] == ["b", "c", "d"]


@pytest.mark.parametrize(("logits", "words"), [([1.0], "1 values for 2"), ([1.0, np.nan], "1 of the vision model's 2")])
def test_what_is_refused(logits: list[float], words: str) -> None:
    with pytest.raises(BadModel, match=words):
        labels(logits, ["a", "b"])
