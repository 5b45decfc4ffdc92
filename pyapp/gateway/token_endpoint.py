"""``POST /api/ai/token``: ``{"site": key, "ancestor": origin}`` becomes ``{"token", "expires_in": seconds}``.

What it can promise: the widget page asks it, and browsers show that page inside the shop's own pages only
(``frame-ancestors``) and let no other origin call this address. A program that is no browser can say what it likes; for
those there are the limits.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import BadArgument
from .access import Access
from .answers import PostEndpoint
from .body import read_body

_MOST_BYTES = 4096


class TokenEndpoint(PostEndpoint):
    """The ASGI application of that one address; a token counts as one request of its client."""

    def __init__(self, access: Access, body_seconds: float) -> None:
        self._access = access
        self._body_seconds = body_seconds

    async def answer(self, request: Request) -> Response:
        # Browsers always say where a request comes from; the header cannot be set by a page.
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise BadArgument("Tokens are given to the widget's own page only.", status=403)
        ticket = self._access.admit(request.scope, request.headers, None)
        try:
            site, ancestor = _fields(await read_body(request, _MOST_BYTES, self._body_seconds))
            token, seconds = self._access.issue(site, ancestor)
        finally:
            ticket.close(0)
        return JSONResponse({"token": token, "expires_in": seconds}, headers={"cache-control": "no-store"})


def _fields(body: bytes) -> tuple[str, str]:
    payload: Any = None
    with suppress(ValueError, RecursionError):
        payload = json.loads(body.decode())
    if not isinstance(payload, dict):
        raise BadArgument("The body must be a JSON object with site and ancestor.")
    for name in ("site", "ancestor"):
        if not isinstance(payload.get(name), str):
            raise BadArgument(f"{name} must be a text.")
    return payload["site"], payload["ancestor"]
