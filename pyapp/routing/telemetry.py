"""What the operator is told of one text, shared by the client that makes the record and the gateway that counts it.

    {"mode": "prefer_on_device", "tier": "high", "outcome": "stop",
     "sides": ["device", "cloud"], "device_tokens": 40, "cloud_tokens": 24, "prompt_tokens": 31,
     "fallbacks": [{"reason": "device_lost", "from": "device", "to": "cloud", "takeover_ms": 88.1, "mid_text": true}],
     "first_ms": 120.4, "total_ms": 2100.7}

Figures and words of these lists only: no prompt, no text, nothing that tells who the person is.
"""

from __future__ import annotations

from typing import TypedDict

MODES = ("prefer_on_device", "only_on_device", "prefer_in_cloud", "only_in_cloud")
TIERS = ("high", "medium", "low", "unsupported")
SIDES = ("device", "cloud")
ERRORS = (
    *("no_device", "device_lost", "out_of_memory", "bad_weights", "bad_model", "bad_image", "context_full"),
    *("cloud_unavailable", "busy", "closed", "bad_argument"),
)
"""The codes of ``pyapp.errors``."""
INTERNAL = "internal"
"""The outcome of a text that met an error which nobody foresaw."""
OUTCOMES = ("stop", "length", "abort", *ERRORS, INTERNAL)
REASONS = (*ERRORS, "stall", "wrong_result", "loading", "pressure")
"""Of a fallback: an error's code, or where that says more, the kind of failure (``routing.breaker``); "loading": the
device had no models yet; "pressure": moved before anything failed."""

Fallback = TypedDict("Fallback", {"reason": str, "from": str, "to": str, "takeover_ms": float | None, "mid_text": bool})
"""One side taking over from the other. ``takeover_ms``: from the detection of the fault to the first character of the
side that follows, None where none came. ``mid_text``: whether there was text already, so that its reader waited."""


class Record(TypedDict):
    """One text. ``sides``: those that wrote, in their order; ``tier``: of the GPU, None while it was not looked at;
    ``first_ms``: from the request to the first character, None where none came; ``total_ms``: to the end."""

    mode: str
    tier: str | None
    outcome: str
    sides: list[str]
    device_tokens: int
    cloud_tokens: int
    prompt_tokens: int
    fallbacks: list[Fallback]
    first_ms: float | None
    total_ms: float
