"""A failure before a stream begins, as the HTTP answer that tells it."""

from __future__ import annotations

from starlette.responses import JSONResponse

from ..errors import TandemError
from ..routing.wire import error_payload


def refusal(error: TandemError) -> JSONResponse:
    """The status in ``error.details["status"]`` (else 400) with ``{"error": {code, message}}``."""
    status = error.details.get("status", 400)
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    if retry_after := error.details.get("retry_after"):
        headers["retry-after"] = retry_after
    if status == 405:
        headers["allow"] = "POST"
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="tandem"'
    return JSONResponse(error_payload(error), status, headers)
