"""How the device stands, in words: why it cannot write, or what it writes with."""

from __future__ import annotations

from typing import Any

from pyapp.errors import DeviceLost, TandemError


def in_words(absent: TandemError | None, engine: Any, probe: Any, why_cloud: str | None) -> str:
    """The ``reason`` of the client's status. ``absent``: why no text can come from the device; ``why_cloud``: why the
    cloud is asked first although one could."""
    if absent is not None:
        return absent.message
    if engine is None:
        return "The cloud is asked first, as the mode says; the device is made ready when the cloud fails."
    kind = "a software adapter, as asked" if probe.software else "this device's GPU"
    return why_cloud or f"The model runs on {kind} ({probe.adapter})."


def lost(reason: TandemError, *, rebuilding: bool, refusal: str | None) -> DeviceLost:
    """``reason`` for which it was lost, and what comes of that. ``refusal``: why no rebuild may begin now."""
    said = reason.message.rstrip(".")
    if rebuilding:
        return DeviceLost(f"{said}; the device is being made ready again.")
    rest = f"the device is not made ready again now: {refusal}" if refusal else "the next text makes it ready again"
    return DeviceLost(f"{said}; {rest}.", **reason.details)


def taken_away() -> DeviceLost:
    return DeviceLost("The GPU was lost: the browser or its driver took it away.")
