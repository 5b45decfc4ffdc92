"""``POST /api/ai/telemetry``: records of texts from pages; ``GET /api/ai/telemetry/summary``: what they add up to.

Both are there only where the configuration file has a ``[telemetry]`` table, the summary only with a key for the
metrics. Nothing of a record is logged.
"""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..errors import BadArgument, TandemError
from .access import Access
from .body import read_body
from .metrics import check_key
from .refusal import refusal
from .telemetry_metrics import TelemetryMetrics
from .telemetry_validation import parse_records

_MOST_BYTES = 65536  # as much as browsers let a request that outlives its page have


class TelemetryEndpoint:
    """The ASGI application of the address that pages report to."""

    def __init__(self, access: Access, metrics: TelemetryMetrics, body_seconds: float) -> None:
        self._access = access
        self._metrics = metrics
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._take(request)
        except TandemError as error:
            response = refusal(error)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _take(self, request: Request) -> Response:
        if request.method != "POST":
            raise BadArgument("This address takes POST only.", status=405)
        site = self._access.site(request.headers)
        ticket = self._access.admit_report(request.scope, request.headers)
        try:
            records = parse_records(await read_body(request, _MOST_BYTES, self._body_seconds))
        finally:
            ticket.close(0)
        for record in records:
            self._metrics.count(record, site.name if site else "")
        return Response(status_code=204, headers={"cache-control": "no-store"})


class SummaryEndpoint:
    """The figures for people, for whoever brings the metrics' ``key`` as a bearer token."""

    def __init__(self, metrics: TelemetryMetrics, key: str) -> None:
        self._metrics = metrics
        self._key = key

    async def get(self, request: Request) -> Response:
        try:
            check_key(request.headers, self._key)
        except TandemError as error:
            return refusal(error)
        return JSONResponse(self._metrics.summary(), headers={"cache-control": "no-store"})
