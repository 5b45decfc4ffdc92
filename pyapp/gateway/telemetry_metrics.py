"""What pages report of their texts, counted: as Prometheus metrics, and added up for people.

The figures come from browsers: they tell how it goes, and are no bill.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from ..routing.telemetry import SIDES, Record
from .prices import Prices

WHOLE = ("stop", "length")
NOT_WANTED = ("abort", "closed")
"""Outcomes that say nothing of availability: somebody left."""

_TAKEOVER = (0.02, 0.05, 0.08, 0.12, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_FIRST = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class TelemetryMetrics:
    """One per gateway, in the ``registry`` of its metrics. ``site`` is a configured name, or "" where there is none."""

    def __init__(self, registry: CollectorRegistry, prices: Prices, clock: Callable[[], float] = time.time) -> None:
        self._prices = prices
        self._since = datetime.fromtimestamp(clock(), UTC)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tandem_client_{name}", text, [*labels, "site"], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"tandem_client_{name}", text, [*labels, "site"], buckets=buckets, registry=registry)

        self._texts = counter(
            "texts", 'Texts by how they ended and who wrote them ("device", "cloud", "both", "none").',
            "mode", "served", "outcome",
        )  # fmt: skip
        self._tiers = counter("tiers", 'Texts by the tier of the GPU; "" where it was not looked at.', "tier")
        self._tokens = counter("tokens", "Tokens of answers by the side that wrote them.", "side")
        self._prompts = counter("prompt_tokens", "Tokens of prompts by who wrote the text.", "served")
        self._fallbacks = counter("fallbacks", "One side taking over from the other.", "reason", "from", "to")
        self._saved = counter("cloud_cost_saved", "Cloud cost of what the device wrote.", "currency")
        self._takeover = histogram(
            "takeover_seconds", "From the fault to the follower's first character.", _TAKEOVER, "to", "mid_text"
        )
        self._first = histogram("first_text_seconds", "From the request to the first character.", _FIRST, "served")

    def count(self, record: Record, site: str) -> None:
        """One checked record."""
        served = "both" if len(set(record["sides"])) == len(SIDES) else next(iter(record["sides"]), "none")
        self._texts.labels(record["mode"], served, record["outcome"], site).inc()
        self._tiers.labels(record["tier"] or "", site).inc()
        self._tokens.labels("device", site).inc(record["device_tokens"])
        self._tokens.labels("cloud", site).inc(record["cloud_tokens"])
        self._prompts.labels(served, site).inc(record["prompt_tokens"])
        self._saved.labels(self._prices.currency, site).inc(self._prices.saved(record))
        if record["first_ms"] is not None:
            self._first.labels(served, site).observe(record["first_ms"] / 1000)
        for fallback in record["fallbacks"]:
            self._fallbacks.labels(fallback["reason"], fallback["from"], fallback["to"], site).inc()
            if fallback["takeover_ms"] is not None:
                mid_text = "true" if fallback["mid_text"] else "false"
                self._takeover.labels(fallback["to"], mid_text, site).observe(fallback["takeover_ms"] / 1000)

    def summary(self) -> dict[str, Any]:
        """All of it added up since this process began; shares from 0 to 1, None where there is nothing to divide."""
        outcomes, served = _by(self._texts, "outcome"), _by(self._texts, "served")
        tokens, texts = _by(self._tokens, "side"), sum(outcomes.values())
        wanted = texts - sum(outcomes[name] for name in NOT_WANTED)
        return {
            "since": self._since.isoformat(timespec="seconds"),
            "texts": int(texts),
            "outcomes": _whole_numbers(outcomes),
            "availability": _share(sum(outcomes[name] for name in WHOLE), wanted),
            "served": _whole_numbers(served),
            "tokens": _whole_numbers(tokens),
            "device_share": {
                "texts": _share(served["device"], texts - served["none"]),
                "tokens": _share(tokens["device"], sum(tokens.values())),
            },
            "tiers": _whole_numbers(_by(self._tiers, "tier")),
            "fallbacks": _whole_numbers(_by(self._fallbacks, "reason")),
            "takeover_ms": _percentiles(self._takeover, {"mid_text": "true"}),
            "first_ms": _percentiles(self._first, {}),
            "saved": {
                "amount": round(sum(_by(self._saved, "currency").values()), 6),
                "currency": self._prices.currency,
            },
        }


def _samples(metric: MetricWrapperBase, suffix: str) -> Iterable[Any]:
    for family in metric.collect():
        yield from (sample for sample in family.samples if sample.name.endswith(suffix))


def _by(metric: MetricWrapperBase, label: str) -> Tally[str]:
    """A counter's values added up by one of its labels."""
    found: Tally[str] = Tally()
    for sample in _samples(metric, "_total"):
        found[sample.labels[label]] += sample.value
    return found


def _whole_numbers(found: Tally[str]) -> dict[str, int]:
    return {name: int(value) for name, value in sorted(found.items()) if value}


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _percentiles(histogram: MetricWrapperBase, labels: dict[str, str]) -> dict[str, float | int | None]:
    """ms, interpolated within buckets as PromQL's ``histogram_quantile`` does."""
    below: dict[float, float] = {}
    for sample in _samples(histogram, "_bucket"):
        if labels.items() <= sample.labels.items():
            limit = float(sample.labels["le"])
            below[limit] = below.get(limit, 0.0) + sample.value
    count = max(below.values(), default=0.0)
    found = {name: _quantile(sorted(below.items()), share * count) if count else None for name, share in
             _PERCENTILES.items()}  # fmt: skip
    return {"count": int(count), **found}


def _quantile(below: list[tuple[float, float]], rank: float) -> float:
    """ms of the ``rank``-th value; ``below``: (limit in s, values up to it), ascending. The last limit that is a number
    where the value lies beyond it."""
    lower, before = 0.0, 0.0
    for limit, so_far in below:
        if so_far >= rank:
            if limit == float("inf"):
                break
            lower += (limit - lower) * (rank - before) / (so_far - before)
            break
        lower, before = limit, so_far
    return round(lower * 1000, 1)
