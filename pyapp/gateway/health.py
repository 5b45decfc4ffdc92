"""``GET /api/ai/health``: whether a load balancer should send requests here."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

import pyapp

from .upstream import Upstream


class HealthEndpoint:
    """200 where this process can do its part, 503 while its embedded server is not ready or where it has no upstream.

    An external upstream that fails does not count: all replicas share it, and taken out together they would leave the
    load balancer to answer, without the error that tells the page to go on with the device.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def get(self, request: Request) -> JSONResponse:
        ready = self._upstream.ready
        body = {
            "status": "ok" if ready else "unavailable",
            "upstream": self._upstream.kind,
            "ready": ready,
            "version": pyapp.__version__,
        }
        return JSONResponse(body, 200 if ready else 503, {"cache-control": "no-store"})
