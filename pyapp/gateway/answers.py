"""What the gateway's small addresses have in common: one request, one answer, and refusals as HTTP statuses."""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import BadArgument, CloudUnavailable, TandemError
from .refusal import refusal


class PostEndpoint(ABC):
    """The ASGI application of an address that takes POST."""

    @abstractmethod
    async def answer(self, request: Request) -> Response:
        """What a POST comes to. Raises ``TandemError`` for a refusal."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            require_post(request)
            response = await self.answer(request)
        except TandemError as error:
            response = refusal(error)
        except ClientDisconnect:
            return
        await response(scope, receive, send)


def require_post(request: Request) -> None:
    """Raises ``BadArgument`` (405) for another method."""
    if request.method != "POST":
        raise BadArgument("This address takes POST only.", status=405)


def for_the_operator(
    key: str, answer: Callable[[Request], Response]
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """A route's ``answer`` for whoever brings ``key`` as a bearer token, 401 for others."""

    async def get(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            return refusal(CloudUnavailable("The metrics need TANDEM_METRICS_KEY as a bearer token.", status=401))
        return answer(request)

    return get
