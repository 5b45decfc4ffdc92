"""``POST /api/ai/telemetry``: records of texts from pages. ``SUMMARY_PATH`` (``app``) tells what they add up to.

Both are there only where the configuration file has a ``[telemetry]`` table, the summary only with a key for the
metrics. Nothing of a record is logged.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from .access import Access
from .answers import PostEndpoint
from .body import read_body
from .telemetry_metrics import TelemetryMetrics
from .telemetry_validation import parse_records

_MOST_BYTES = 65536  # as much as browsers let a request that outlives its page have


class TelemetryEndpoint(PostEndpoint):
    """The ASGI application of the address that pages report to."""

    def __init__(self, access: Access, metrics: TelemetryMetrics, body_seconds: float) -> None:
        self._access = access
        self._metrics = metrics
        self._body_seconds = body_seconds

    async def answer(self, request: Request) -> Response:
        site = self._access.site(request.headers)
        ticket = self._access.admit_report(request.scope, request.headers)
        try:
            records = parse_records(await read_body(request, _MOST_BYTES, self._body_seconds))
        finally:
            ticket.close(0)
        for record in records:
            self._metrics.count(record, site.name if site else "")
        return Response(status_code=204, headers={"cache-control": "no-store"})
