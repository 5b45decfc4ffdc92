"""The body of a telemetry request, checked: ``{"records": [...]}``, each as ``pyapp.routing.telemetry`` says."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

from ..errors import BadArgument
from ..routing.telemetry import MODES, OUTCOMES, REASONS, SIDES, TIERS, Fallback, Record

MOST_RECORDS = 100
MOST_FALLBACKS = 16
MOST_TOKENS = 1_000_000
MOST_MS = 3_600_000
OTHER = "other"
"""Stands for an outcome or a reason that this version does not know: a page may be newer, or older, than its gateway,
and the figures must not have a series for every word that somebody sends."""

_RECORD = frozenset(Record.__required_keys__)
_FALLBACK = frozenset(Fallback.__required_keys__)
_LONGEST_WORD = 32


def parse_records(body: bytes) -> list[Record]:
    """Raises ``BadArgument`` with a sentence that names the field; nothing of a body with a fault in it counts."""
    payload: Any = None
    with suppress(ValueError, RecursionError):
        payload = json.loads(body)
    if not isinstance(payload, dict) or set(payload) != {"records"} or not isinstance(payload["records"], list):
        raise BadArgument("The body must be a JSON object with records, a list, and nothing else.")
    records = payload["records"]
    if not 1 <= len(records) <= MOST_RECORDS:
        raise BadArgument(f"There are {len(records)} records; give 1 to {MOST_RECORDS}.")
    return [_record(record, f"records[{index}]") for index, record in enumerate(records)]


def _record(record: object, where: str) -> Record:
    fields = _fields(record, _RECORD, where)
    sides, fallbacks = fields["sides"], fields["fallbacks"]
    if not isinstance(sides, list) or len(sides) > len(SIDES):
        raise BadArgument(f"{where}.sides must be a list of up to {len(SIDES)} sides.")
    if not isinstance(fallbacks, list) or len(fallbacks) > MOST_FALLBACKS:
        raise BadArgument(f"{where}.fallbacks must be a list of up to {MOST_FALLBACKS}.")
    return {
        "mode": _one_of(fields, "mode", MODES, where),
        "tier": None if fields["tier"] is None else _one_of(fields, "tier", TIERS, where),
        "outcome": _word(fields, "outcome", OUTCOMES, where),
        "sides": [_one_of({"sides": side}, "sides", SIDES, where) for side in sides],
        "device_tokens": _tokens(fields, "device_tokens", where),
        "cloud_tokens": _tokens(fields, "cloud_tokens", where),
        "prompt_tokens": _tokens(fields, "prompt_tokens", where),
        "fallbacks": [_fallback(item, f"{where}.fallbacks[{index}]") for index, item in enumerate(fallbacks)],
        "first_ms": _ms_or_none(fields, "first_ms", where),
        "total_ms": _ms(fields, "total_ms", where),
    }


def _fallback(fallback: object, where: str) -> Fallback:
    fields = _fields(fallback, _FALLBACK, where)
    if not isinstance(fields["mid_text"], bool):
        raise BadArgument(f"{where}.mid_text must be true or false.")
    return {
        "reason": _word(fields, "reason", REASONS, where),
        "from": _one_of(fields, "from", SIDES, where),
        "to": _one_of(fields, "to", SIDES, where),
        "takeover_ms": _ms_or_none(fields, "takeover_ms", where),
        "mid_text": fields["mid_text"],
    }


def _fields(value: object, names: frozenset[str], where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        raise BadArgument(f"{where} must be an object with {', '.join(sorted(names))}, and nothing else.")
    return value


def _one_of(fields: dict[str, Any], name: str, allowed: tuple[str, ...], where: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or value not in allowed:
        raise BadArgument(f"{where}.{name} must be one of {', '.join(allowed)}.")
    return value


def _word(fields: dict[str, Any], name: str, known: tuple[str, ...], where: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_WORD:
        raise BadArgument(f"{where}.{name} must be a word of at most {_LONGEST_WORD} letters.")
    return value if value in known else OTHER


def _tokens(fields: dict[str, Any], name: str, where: str) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise BadArgument(f"{where}.{name} must be a whole number from 0 to {MOST_TOKENS}.")
    return value


def _ms(fields: dict[str, Any], name: str, where: str) -> float:
    value = fields[name]
    # No comparison with NaN is true.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadArgument(f"{where}.{name} must be a number of milliseconds from 0 on.")
    return float(min(value, MOST_MS))  # a tab that was frozen over night spoils nothing for the others of its batch


def _ms_or_none(fields: dict[str, Any], name: str, where: str) -> float | None:
    return None if fields[name] is None else _ms(fields, name, where)
