"""The language server behind the gateway, external or embedded: one request to it, its answer as wire events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from ..errors import CloudUnavailable, TandemError
from ..routing.sse import SSEDecoder
from ..routing.wire import DONE, MEDIA_TYPE, CloudEvent, SurrogateJoiner, Text, Usage
from .continuation import TRAILING
from .embedded import EmbeddedServer
from .openai import parse_chunk, request_body, upstream_error
from .retry import STATUSES, MayPass, Retries
from .settings import Settings
from .validation import CloudRequest

log = logging.getLogger("tandem.gateway")

_MAX_ERROR_BODY = 65536
_DRAIN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes."""

    url: str
    key: str | None
    model: str | None
    continuation: str


class Upstream:
    """One per gateway: holds the connection pool, and the embedded server where there is no external one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        external = bool(settings.upstream_url)
        self.embedded = None if external or settings.embedded == "off" else EmbeddedServer(settings)
        self.kind = "external" if external else "embedded" if self.embedded else "none"
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=settings.connect_seconds, write=settings.body_seconds),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=external,  # a proxy of the environment is for hosts outside, never for the loopback
        )

    @property
    def ready(self) -> bool:
        """Whether an answer can start at once, as far as can be told without asking."""
        return self.kind == "external" or (self.embedded is not None and self.embedded.ready)

    def start(self) -> None:
        if self.embedded and self._settings.embedded == "startup":
            self.embedded.start()

    async def close(self) -> None:
        await self._client.aclose()
        if self.embedded:
            await self.embedded.close()

    async def target(self) -> Target:
        """Where to send a request; waits for the embedded server. Raises ``CloudUnavailable`` where there is none."""
        if url := self._settings.completions_url:
            settings = self._settings
            return Target(url, settings.upstream_key, settings.upstream_model, settings.upstream_continuation)
        if self.embedded is None:
            raise CloudUnavailable("The gateway has no upstream: set TANDEM_UPSTREAM_URL.", status=503)
        address = await self.embedded.address()
        return Target(f"{address.url}/v1/chat/completions", address.key, None, TRAILING)

    async def stream(self, request: CloudRequest, retried: Callable[[str], None]) -> AsyncGenerator[CloudEvent, None]:
        """Texts, then one ``Usage``. Raises errors whose ``details["status"]`` fits an answer not yet begun.

        What fails before the upstream's answer begins is tried again as ``Settings`` say, nothing after that is;
        ``retried`` hears the reason of each try that another follows.
        Closing the generator, or cancelling it, closes the connection, which stops the upstream's work.
        """
        retries = Retries(self._settings.upstream_tries, self._settings.retry_wait_seconds)
        response = await retries.run(lambda: self._open(request), retried)
        try:
            media_type = response.headers.get("content-type", "").split(";")[0].strip().lower()
            if media_type != MEDIA_TYPE:
                raise CloudUnavailable(
                    f"The cloud model's server answered with {media_type or 'no content type'} instead of an event "
                    "stream; the operator has to check TANDEM_UPSTREAM_URL.",
                    status=502,
                )
            answer = _Answer(request)
            async with aclosing(self._payloads(response, answer)) as payloads:
                async for data in payloads:
                    for event in answer.take(data):
                        yield event
            yield answer.end()
        except httpx.HTTPError as error:
            log.warning("upstream broke off: %s: %s", type(error).__name__, error)
            raise CloudUnavailable(
                "The connection to the cloud model's server broke in the middle of its answer; try again.", status=502
            ) from None
        finally:
            await response.aclose()

    async def _open(self, request: CloudRequest) -> httpx.Response:
        """One try: the upstream's response with status 200, its body unread. Raises ``MayPass`` or ``TandemError``."""
        # Asked anew for each try: an embedded server that died comes back at another address.
        target = await self.target()
        headers = {"content-type": "application/json", "accept": MEDIA_TYPE, "accept-encoding": "identity"}
        if target.key:
            headers["authorization"] = f"Bearer {target.key}"
        body = request_body(request, target.model, target.continuation)
        try:
            outgoing = self._client.build_request("POST", target.url, content=body, headers=headers)
            response = await self._client.send(outgoing, stream=True)
        except httpx.TimeoutException:
            error = CloudUnavailable("The cloud model's server does not take the connection.", status=504)
            raise MayPass(error, "connect_timeout") from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as wrong:
            log.warning("upstream address: %s: %s", type(wrong).__name__, wrong)
            raise _unreachable() from None
        except httpx.HTTPError as broken:
            log.warning("upstream unreachable: %s: %s", type(broken).__name__, broken)
            raise MayPass(_unreachable(), "connection") from None
        if response.status_code == 200:
            return response
        try:
            refusal = await _refusal(response)
        finally:
            await response.aclose()
        if response.status_code in STATUSES:
            raise MayPass(refusal, str(response.status_code))
        raise refusal

    async def _payloads(self, response: httpx.Response, answer: _Answer) -> AsyncGenerator[str, None]:
        decoder = SSEDecoder(self._settings.max_event_bytes, final_event=True)
        chunks = response.aiter_raw()
        async for chunk in chunks:
            for event in decoder.decode(chunk):
                if event.data.strip() == DONE:
                    await _drain(chunks)
                    return
                yield event.data
            decoder.check()
        for event in decoder.flush():
            if event.data.strip() == DONE:
                return
            yield event.data
        # Some servers end without the mark; the text is whole all the same if a finish reason came.
        if not answer.finish_reason:
            raise CloudUnavailable("The cloud model's server cut its answer off before the end; try again.", status=502)


class _Answer:
    """What has come so far of one answer."""

    def __init__(self, request: CloudRequest) -> None:
        self.finish_reason: str | None = None
        self._request = request
        self._usage: tuple[int, int] | None = None
        self._pieces = 0
        self._joiner = SurrogateJoiner()

    def take(self, data: str) -> list[CloudEvent]:
        chunk = parse_chunk(data)
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self._usage = chunk.usage or self._usage
        if not chunk.text:
            return []
        self._pieces += 1
        text = self._joiner.push(chunk.text)
        return [Text(text)] if text else []

    def end(self) -> CloudEvent:
        if self._usage:
            return Usage(*self._usage, finish_reason=self.finish_reason)
        # Servers send a piece a token as a rule.
        return Usage(self._request.estimated_prompt_tokens, self._pieces, self.finish_reason, estimated=True)


def _unreachable() -> CloudUnavailable:
    return CloudUnavailable("The cloud model's server cannot be reached; try again later.", status=502)


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Reads what follows the end mark, normally nothing, so that the connection can serve the next request."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in chunks:
                pass
    except (TimeoutError, httpx.HTTPError):
        pass


async def _refusal(response: httpx.Response) -> TandemError:
    body = bytearray()
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MAX_ERROR_BODY:
                break
    except httpx.HTTPError:
        pass  # the status alone tells enough
    payload: Any = None
    with suppress(ValueError, RecursionError):
        payload = json.loads(bytes(body))
    error = payload.get("error") if isinstance(payload, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    log.warning("upstream refused: status=%d type=%s", response.status_code, str(kind)[:100])
    return upstream_error(payload, response.status_code, response.headers)
