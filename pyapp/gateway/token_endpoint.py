"""``POST /api/ai/token``: ``{"site": key, "ancestor": origin}`` becomes ``{"token", "expires_in": seconds}``.

What it can promise: the widget page asks it, and browsers show that page inside the shop's own pages only
(``frame-ancestors``) and let no other origin call this address. A program that is no browser can say what it likes; for
those there are the limits.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..errors import BadArgument, TandemError
from .access import Access
from .body import read_body
from .refusal import refusal

_MOST_BYTES = 4096


class TokenEndpoint:
    """The ASGI application of that one address; a token counts as one request of its client."""

    def __init__(self, access: Access, body_seconds: float) -> None:
        self._access = access
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response: Response
        try:
            response = await self._issue(request)
        except TandemError as error:
            response = refusal(error)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _issue(self, request: Request) -> Response:
        if request.method != "POST":
            raise BadArgument("This address takes POST only.", status=405)
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
