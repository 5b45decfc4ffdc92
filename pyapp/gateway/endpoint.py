"""``POST /api/ai/cloud-stream``: reads the request, asks the upstream, sends its answer on as it comes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from ..errors import CloudUnavailable, TandemError
from ..routing.wire import MEDIA_TYPE, CloudEvent, Text, Usage, encode_done, encode_event
from .access import Access
from .answers import require_post
from .body import read_body
from .deadline import Deadline
from .limits import Ticket
from .metrics import Metrics
from .refusal import refusal
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
    Who may not ask, or has asked too much, is told so before the body is read.
    """

    def __init__(self, settings: Settings, upstream: Upstream, access: Access, metrics: Metrics) -> None:
        self._settings = settings
        self._upstream = upstream
        self._access = access
        self._metrics = metrics
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _Call(next(self._numbers), send, self._metrics)
        try:
            try:
                request = await self._admitted(Request(scope, receive), call)
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
            call.close()

    async def _admitted(self, incoming: Request, call: _Call) -> CloudRequest:
        require_post(incoming)
        site = self._access.site(incoming.headers)
        call.site = site.name if site else None
        call.ticket = self._access.admit(incoming.scope, incoming.headers, site)
        body = await read_body(incoming, self._settings.max_body_bytes, self._settings.body_seconds)
        request = parse_request(body, self._settings)
        call.ticket.set_aside(request.estimated_prompt_tokens + request.max_tokens)
        call.estimated_prompt_tokens = request.estimated_prompt_tokens
        return request

    async def _answer(self, request: CloudRequest, call: _Call, scope: Scope, receive: Receive) -> None:
        try:
            with anyio.fail_after(self._settings.total_seconds):
                # First the embedded server's start, which the time for the first text does not count.
                await self._upstream.target()
                async with aclosing(self._upstream.stream(request, self._metrics.retried)) as events:
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

    async def _pass_on(self, batches: AsyncGenerator[list[CloudEvent], None], call: _Call) -> None:
        with Deadline(self._settings.first_seconds) as waiting:
            async for events in batches:
                waiting.stop()  # it is the upstream that is waited for, not the client
                await call.events(events)
                if isinstance(events[-1], Usage):
                    await call.end()  # before the connection to the upstream is read to its end
                else:
                    waiting.restart(self._settings.idle_seconds)
        if waiting.passed:
            raise CloudUnavailable(
                f"The cloud model's server sent no text for {waiting.seconds:g} seconds; try again.", status=504
            )


class _Call:
    """One call's side towards the client, and what the log says of it: figures, never text."""

    def __init__(self, number: int, send: Send, metrics: Metrics) -> None:
        metrics.streams.inc()
        self.started = False
        self.finished = False
        self.outcome = "cut"
        """How it ended; as long as nobody says so: this process was stopped, or failed, before its end."""
        self.site: str | None = None
        self.ticket: Ticket | None = None
        self.estimated_prompt_tokens = 0
        self._number = number
        self._send = send
        self._metrics = metrics
        self._closed = False
        self._began = time.monotonic()
        self._first: float | None = None
        self._status = 0
        self._characters = 0
        self._pieces = 0
        self._usage: Usage | None = None

    async def events(self, events: list[CloudEvent]) -> None:
        for event in events:
            if isinstance(event, Text):
                self._characters += len(event.text)
                self._pieces += 1
            else:
                self._usage = event
        await self._write(b"".join(map(encode_event, events)))

    async def end(self) -> None:
        self.outcome = "ok"
        self.close()  # who asks again at once has what this call did not use
        await self._write(encode_done(), last=True)

    async def fail(self, error: TandemError) -> None:
        """Ends a stream that has begun with an error event."""
        self.outcome = error.code
        self.close()
        await self._write(encode_event(error) + encode_done(), last=True)

    async def refuse(self, scope: Scope, receive: Receive, error: TandemError) -> None:
        """Answers with the HTTP status that goes with ``error``."""
        response = refusal(error)
        self._status = response.status_code
        # Whoever has no token must not look like a cloud that fails.
        self.outcome = "unauthorized" if self._status == 401 else error.code
        self.finished = True
        self.close()
        await response(scope, receive, self._send)

    def close(self) -> None:
        """Settles the call's books, whatever became of it; once only."""
        if self._closed:
            return
        self._closed = True
        self._metrics.streams.dec()
        if self.ticket:
            self.ticket.close(self._spent())
        seconds = time.monotonic() - self._began
        usage = self._usage or Usage(0, 0)
        tokens = (usage.prompt_tokens, usage.completion_tokens)
        self._metrics.ended(self.outcome, self.site or "", self._first, seconds, tokens)
        figures = {
            "call": self._number,
            "outcome": self.outcome,
            "status": self._status,
            "first_s": None if self._first is None else round(self._first, 3),
            "total_s": round(seconds, 3),
            "characters": self._characters,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "site": self.site,
        }
        text = " ".join(f"{name}={'-' if value is None else value}" for name, value in figures.items())
        log.info("cloud-stream %s", text, extra={"figures": figures})

    def _spent(self) -> int:
        """Tokens that the upstream worked off for this call, as far as is known."""
        if self._usage:
            return self._usage.prompt_tokens + self._usage.completion_tokens
        # Left or cut on the way; one that was refused before its first text cost nothing.
        return self.estimated_prompt_tokens + self._pieces if self.started or self.outcome == "client_left" else 0

    async def _write(self, body: bytes, last: bool = False) -> None:
        if not self.started:
            self.started = True
            self._status = 200
            self._first = time.monotonic() - self._began
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        self.finished = last
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
