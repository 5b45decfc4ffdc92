"""The gateway's figures in Prometheus' text format. They know outcomes, seconds and tokens, never text or addresses."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

_FIRST_TEXT = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_WHOLE = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """One per gateway, in a registry of its own. ``site`` is a configured name, or "" where there is none."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "tandem_gateway_calls",
            "Calls of the cloud stream by how they ended.",
            ["outcome", "site"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "tandem_gateway_tokens",
            "Tokens of answers that ended, as the upstream counted.",
            ["kind", "site"],
            registry=self.registry,
        )
        self._first = Histogram(
            "tandem_gateway_first_text_seconds",
            "From the request to the answer's first text.",
            buckets=_FIRST_TEXT,
            registry=self.registry,
        )
        self._whole = Histogram(
            "tandem_gateway_call_seconds",
            "From the request to its end, of calls that had text.",
            buckets=_WHOLE,
            registry=self.registry,
        )
        self._retries = Counter(
            "tandem_gateway_upstream_retries",
            "Tries at the upstream that another one followed.",
            ["reason"],
            registry=self.registry,
        )
        self.streams = Gauge("tandem_gateway_streams", "Calls in progress.", registry=self.registry)
        upstream = Gauge(
            "tandem_gateway_upstream_ready", "1 where an answer can start at once.", registry=self.registry
        )
        upstream.set_function(lambda: float(ready()))

    def retried(self, reason: str) -> None:
        self._retries.labels(reason).inc()

    def ended(self, outcome: str, site: str, first: float | None, seconds: float, tokens: tuple[int, int]) -> None:
        """One call: seconds to its first text (None: it had none) and in all; tokens of prompt and answer."""
        self._calls.labels(outcome, site).inc()
        if first is not None:
            self._first.observe(first)
            self._whole.observe(seconds)
        for kind, count in zip(("prompt", "completion"), tokens, strict=True):
            self._tokens.labels(kind, site).inc(count)

    def page(self, accept: str) -> Response:
        encode, media_type = choose_encoder(accept)
        return Response(encode(self.registry), headers={"content-type": media_type, "cache-control": "no-store"})
