"""The network as a browser offers it: ``fetch``, a body reader, and an ``AbortController`` (Pyodide only)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import js
from pyodide.ffi import JsException, to_js

from ..errors import CloudUnavailable


class FetchTransport:
    """``Transport`` over ``js.fetch``; works in a window and in a worker.

    ``keepalive``: requests live on when the page is left; a browser takes 64 KiB of them at a time.
    """

    def __init__(self, *, keepalive: bool = False) -> None:
        self._keepalive = keepalive

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> FetchReply:
        controller = js.AbortController.new()
        options = to_js(
            {
                "method": "POST",
                "headers": dict(headers),
                "cache": "no-store",
                "credentials": "same-origin",
                "keepalive": self._keepalive,
                "signal": controller.signal,
            },
            dict_converter=js.Object.fromEntries,
        )
        options.body = body.decode()
        try:
            response = await js.fetch(url, options)
        except JsException as error:
            raise _network_error(error) from None
        except BaseException:
            # Cancelling the task does not stop the JavaScript side.
            controller.abort()
            raise
        return FetchReply(response, controller)


class FetchReply:
    """``Reply`` over a ``Response``."""

    def __init__(self, response: Any, controller: Any) -> None:
        self.status: int = response.status
        self.headers: dict[str, str] = {
            name: value
            for name in ("content-type", "retry-after")
            if isinstance(value := response.headers.get(name), str)
        }
        self._response = response
        self._controller = controller
        self._whole = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        if not self._response.body:
            self._whole = True
            return
        reader = self._response.body.getReader()
        while True:
            try:
                part = await reader.read()
            except JsException as error:
                raise _network_error(error) from None
            if part.done:
                self._whole = True
                return
            yield part.value.to_bytes()

    async def close(self) -> None:
        if not self._whole:
            self._controller.abort()


def _network_error(error: Any) -> CloudUnavailable:
    return CloudUnavailable(
        f"The cloud gateway cannot be reached, or the connection broke ({error.name}: {error.message}); check the "
        "network and that the server runs.",
        kind="network",
    )
