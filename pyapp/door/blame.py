"""What an error at work says about the device: nothing, that a new engine may do better, or that none will."""

from __future__ import annotations

from pyapp.errors import BadArgument, BadImage, BadWeights, Busy, Closed, ContextFull, DeviceLost, TandemError

HARMLESS = (BadArgument, BadImage, ContextFull, Closed, Busy)
"""Errors of one call, which say nothing against the device: the request was wrong, or waited too long for its turn."""


def is_curable(error: TandemError) -> bool:
    """Whether a new engine may do better than the one that failed at work with ``error``.

    A lost GPU does, and so do weights that were damaged where they are kept, which are made again. Memory that ran out
    runs out again with the same budget, and a fault of our own repeats itself. An exception of the browser that nobody
    foresaw mostly comes of a GPU that is going away.
    """
    if isinstance(error, DeviceLost):
        return str(error.details.get("cause", "JsException")).startswith("JsException")
    return isinstance(error, BadWeights) and bool(error.details.get("repack"))
