"""``POST /api/ai/cloud-stream``: reads the request, asks the upstream, sends its answer on as it comes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from ..errors import BadArgument, CloudUnavailable, TandemError
from ..routing.wire import MEDIA_TYPE, CloudEvent, Text, Usage, encode_done, encode_event, error_payload
from .settings import Settings
from .upstream import Upstream
from .validation import CloudRequest, parse_request

log = logging.getLogger("tandem.gateway")

_HEADERS = [
    (b"content-type", f"{MEDIA_TYPE}; charset=utf-8".encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx in front must not hold the stream back
    (b"x-content-type-options", b"nosniff"),
]


class CloudStreamEndpoint:
    """The ASGI application of that one address.

    The head of the answer waits for the first event, so that every failure before it is an HTTP status. The client is
    watched all the while: when it leaves, everything for it is cancelled, and with that the upstream's connection.
    """

    def __init__(self, settings: Settings, upstream: Upstream) -> None:
        self._settings = settings
        self._upstream = upstream
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _Call(next(self._numbers), send)
        try:
            try:
                if scope["method"] != "POST":
                    raise BadArgument("This address takes POST only.", status=405)
                request = parse_request(await self._body(Request(scope, receive)), self._settings)
            except TandemError as error:
                await call.refuse(scope, receive, error)
                return
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    if not call.finished:  # the server reports the end of the exchange in the same way
                        call.outcome = "client_left"
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                await self._answer(request, call, scope, receive)
                tasks.cancel_scope.cancel()
        except ClientDisconnect:
            call.outcome = "client_left"
        finally:
            call.log()

    async def _body(self, request: Request) -> bytes:
        most = self._settings.max_body_bytes
        too_big = BadArgument(f"The body is larger than {most} bytes; send a shorter conversation.", status=413)
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise too_big
        body = bytearray()
        try:
            with anyio.fail_after(self._settings.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_big
        except TimeoutError:
            raise BadArgument(
                f"The body did not arrive within {self._settings.body_seconds:g} seconds.", status=408
            ) from None
        return bytes(body)

    async def _answer(self, request: CloudRequest, call: _Call, scope: Scope, receive: Receive) -> None:
        try:
            with anyio.fail_after(self._settings.total_seconds):
                target = await self._upstream.target()
                async with aclosing(self._upstream.stream(request, target)) as events:
                    await self._pass_on(events, call)
        except TimeoutError:
            error: TandemError = CloudUnavailable(
                f"The answer was not complete after {self._settings.total_seconds:g} seconds.", status=504
            )
        except TandemError as raised:
            error = raised
        else:
            return
        if not call.started:
            await call.refuse(scope, receive, error)
            return
        # A client that stopped reading must not hold the call open for its error.
        with anyio.move_on_after(5.0):
            await call.fail(error)

    async def _pass_on(self, events: AsyncGenerator[CloudEvent, None], call: _Call) -> None:
        limit = self._settings.first_seconds
        while True:
            event: CloudEvent | None = None
            with anyio.move_on_after(limit) as waiting:
                event = await anext(events, None)
            if waiting.cancelled_caught:
                raise CloudUnavailable(
                    f"The cloud model's server sent no text for {limit:g} seconds; try again.", status=504
                )
            if event is None:
                break
            await call.event(event)
            limit = self._settings.idle_seconds
        await call.end()


class _Call:
    """One call's side towards the client, and what the log says of it: figures, never text."""

    def __init__(self, number: int, send: Send) -> None:
        self.started = False
        self.finished = False
        self.outcome = "ok"
        self._number = number
        self._send = send
        self._began = time.monotonic()
        self._first: float | None = None
        self._status = 0
        self._characters = 0
        self._usage: Usage | None = None

    async def event(self, event: CloudEvent) -> None:
        if isinstance(event, Text):
            self._characters += len(event.text)
        else:
            self._usage = event
        await self._write(encode_event(event))

    async def end(self) -> None:
        await self._write(encode_done(), last=True)

    async def fail(self, error: TandemError) -> None:
        """Ends a stream that has begun with an error event."""
        self.outcome = error.code
        await self._write(encode_event(error) + encode_done(), last=True)

    async def refuse(self, scope: Scope, receive: Receive, error: TandemError) -> None:
        """Answers with the HTTP status that goes with ``error``."""
        self.outcome = error.code
        self._status = error.details.get("status", 400)
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        if retry_after := error.details.get("retry_after"):
            headers["retry-after"] = retry_after
        if self._status == 405:
            headers["allow"] = "POST"
        self.finished = True
        response = JSONResponse(error_payload(error), self._status, headers)
        await response(scope, receive, self._send)

    def log(self) -> None:
        seconds = time.monotonic() - self._began
        usage = self._usage or Usage(0, 0)
        log.info(
            "cloud-stream call=%d outcome=%s status=%d first_s=%s total_s=%.3f characters=%d prompt_tokens=%d "
            "completion_tokens=%d",
            self._number,
            self.outcome,
            self._status,
            "-" if self._first is None else f"{self._first:.3f}",
            seconds,
            self._characters,
            usage.prompt_tokens,
            usage.completion_tokens,
        )

    async def _write(self, body: bytes, last: bool = False) -> None:
        if not self.started:
            self.started = True
            self._status = 200
            self._first = time.monotonic() - self._began
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        self.finished = last
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
