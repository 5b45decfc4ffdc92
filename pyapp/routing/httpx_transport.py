"""The network under CPython: httpx. For tests and for programs that use ``pyapp.client`` outside a browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import httpx

from ..errors import CloudUnavailable


class HttpxTransport:
    """``Transport`` over one ``httpx.AsyncClient``: the given one, else its own, which ``aclose`` closes."""

    def __init__(self, client: httpx.AsyncClient | None = None, connect_seconds: float = 10.0) -> None:
        self._own = client is None
        self._client = client or httpx.AsyncClient(timeout=httpx.Timeout(None, connect=connect_seconds))

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> HttpxReply:
        request = self._client.build_request("POST", url, content=body, headers=dict(headers))
        try:
            response = await self._client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _network_error(error) from None
        return HttpxReply(response)

    async def aclose(self) -> None:
        if self._own:
            await self._client.aclose()


class HttpxReply:
    """``Reply`` over an ``httpx.Response``."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers  # its names are compared without case
        self._response = response

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self._response.aiter_bytes():
                yield chunk
        except httpx.HTTPError as error:
            raise _network_error(error) from None

    async def close(self) -> None:
        await self._response.aclose()


def _network_error(error: Exception) -> CloudUnavailable:
    return CloudUnavailable(
        f"The cloud gateway cannot be reached, or the connection broke ({type(error).__name__}: {error}); check the "
        "network and that the server runs.",
        kind="network",
    )
