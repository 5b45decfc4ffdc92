"""A classifier's logits → what the photo shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import BadModel


def labels(logits: ArrayLike, classes: Sequence[str], k: int = 5) -> list[dict[str, Any]]:
    """The ``k`` most probable classes, ``[{"index": int, "name": str, "p": float}, …]``, descending.

    logits: [classes]; p: softmax over all of them, in float64. Equal ones come in the order of their index.
    Raises BadModel when logits and class names differ in number, or a logit is no finite number.
    """
    values = np.asarray(logits, np.float64).reshape(-1)
    if len(values) != len(classes):
        raise BadModel(
            f"The vision model gave {len(values)} values for {len(classes)} class names: its file and its list of "
            "classes do not belong together.",
            values=len(values),
            classes=len(classes),
        )
    broken = int(np.count_nonzero(~np.isfinite(values)))
    if broken:
        raise BadModel(
            f"{broken} of the vision model's {len(values)} values are no finite numbers: its weights or this GPU's "
            "results are wrong; reload the page to try again.",
            broken=broken,
        )
    exponentials = np.exp(values - values.max())
    probabilities = exponentials / exponentials.sum()
    best = np.argsort(-values, kind="stable")[:k]
    return [{"index": int(i), "name": str(classes[i]), "p": float(probabilities[i])} for i in best]
