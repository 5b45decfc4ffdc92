"""What an error says of the device: nothing, that a new engine may do better, or what kind of failure it counts as."""

from __future__ import annotations

from pyapp.errors import (
    BadArgument,
    BadImage,
    BadWeights,
    Busy,
    Closed,
    ContextFull,
    DeviceLost,
    OutOfMemory,
    TandemError,
)
from pyapp.routing.breaker import KINDS, Kind

HARMLESS = (BadArgument, BadImage, ContextFull, Closed, Busy)
"""Errors of one call, which say nothing against the device: the request was wrong, or waited too long for its turn."""

OF_THE_SERVER = ("network", "http", "html", "manifest", "changed")
"""Reasons of ``BadWeights`` that lie with the network or the server: this machine was not yet asked for anything."""


def is_curable(error: TandemError) -> bool:
    """Whether a new engine may do better than the one that failed at work with ``error``.

    A lost GPU does, and so do weights that were damaged where they are kept, which are made again, and memory that ran
    out: a new engine takes a smaller pool where it finds less. A GPU that computes rubbish goes on doing so, and a
    fault of our own repeats itself. An exception of the browser that nobody foresaw mostly comes of a GPU that is going
    away.
    """
    if is_for_good(error):
        return False
    if isinstance(error, OutOfMemory):
        return True
    if isinstance(error, DeviceLost):
        return str(error.details.get("cause", "JsException")).startswith("JsException")
    return isinstance(error, BadWeights) and bool(error.details.get("repack"))


def is_for_good(error: TandemError) -> bool:
    """Whether the device had better be left alone for the rest of the visit, even where it has worked before."""
    return error.details.get("kind") == "wrong_result"


def kind_of(error: TandemError) -> Kind | None:
    """What the breaker counts ``error`` as: what it says itself (``details["kind"]``), else by its type.

    None for what it does not count: errors of the request, of the network or of the model, and an adapter that is not
    there, which is found out at once on every visit.
    """
    said = error.details.get("kind")
    if said in KINDS:
        return said  # type: ignore[no-any-return]
    if isinstance(error, DeviceLost):
        return "device_lost"
    if isinstance(error, OutOfMemory):
        return "out_of_memory"
    if isinstance(error, BadWeights) and error.details.get("reason") not in OF_THE_SERVER:
        return "bad_weights"
    return None
