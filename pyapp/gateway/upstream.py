"""The language server behind the gateway, external or embedded: one request to it, its answer as wire events."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import anyio

from ..errors import CloudUnavailable, TandemError
from ..routing.sse import Event, SSEDecoder
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
_FIGURES_SECONDS = 2.0


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
        self._proxy = proxy_for(settings.completions_url) if settings.completions_url else None
        self._session: aiohttp.ClientSession | None = None

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here, as far as can be told without asking: an answer can start at once, or
        it takes a request to start the embedded server."""
        if self.embedded is None:
            return self.kind == "external"
        return self.embedded.ready or (self._settings.embedded == "first_request" and not self.embedded.begun)

    def start(self) -> None:
        if self.embedded and self._settings.embedded == "startup":
            self.embedded.start()

    async def close(self) -> None:
        if self._session:
            await self._session.close()
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

    async def stream(
        self, request: CloudRequest, retried: Callable[[str], None]
    ) -> AsyncGenerator[list[CloudEvent], None]:
        """Texts as they come, those that came together as one list; then one ``Usage``.

        Raises errors whose ``details["status"]`` fits an answer not yet begun. What fails before the upstream's answer
        begins is tried again as ``Settings`` say, nothing after that is; ``retried`` hears the reason of each try that
        another follows. Whoever goes on after the ``Usage`` keeps the connection for the next request. Closing the
        generator, or cancelling it, closes the connection, which stops the upstream's work.
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
            answer = _Answer(request, self._settings.max_event_bytes)
            while not answer.whole and (received := await _more(response, answer.finished)):
                if events := answer.take(received):
                    yield events
                answer.check()
            if not answer.whole:
                if events := answer.flush():
                    yield events
                answer.check()
            yield [answer.end()]
            if answer.whole:
                await _drain(response)
        except (aiohttp.ClientError, OSError) as error:
            log.warning("upstream broke off: %s: %s", type(error).__name__, error)
            raise CloudUnavailable(
                "The connection to the cloud model's server broke in the middle of its answer; try again.", status=502
            ) from None
        finally:
            response.close()

    async def _open(self, request: CloudRequest) -> aiohttp.ClientResponse:
        """One try: the upstream's response with status 200, its body unread. Raises ``MayPass`` or ``TandemError``."""
        # Asked anew for each try: an embedded server that died comes back at another address.
        target = await self.target()
        headers = {"content-type": "application/json", "accept": MEDIA_TYPE, "accept-encoding": "identity"}
        if target.key:
            headers["authorization"] = f"Bearer {target.key}"
        body = request_body(request, target.model, target.continuation)
        try:
            response = await self._client().post(
                target.url, data=body, headers=headers, proxy=self._proxy, allow_redirects=False
            )
        except aiohttp.ServerTimeoutError:
            error = CloudUnavailable("The cloud model's server does not take the connection.", status=504)
            raise MayPass(error, "connect_timeout") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as wrong:
            log.warning("upstream address: %s: %s", type(wrong).__name__, wrong)
            raise _unreachable() from None
        except (aiohttp.ClientError, OSError) as broken:
            log.warning("upstream unreachable: %s: %s", type(broken).__name__, broken)
            raise MayPass(_unreachable(), "connection") from None
        if response.status == 200:
            return response
        try:
            refusal = await _refusal(response)
        finally:
            response.close()
        if response.status in STATUSES:
            raise MayPass(refusal, str(response.status))
        raise refusal

    def _client(self) -> aiohttp.ClientSession:
        """The session, made when it is first needed: it belongs to the loop that it is made in."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session


class _Answer:
    """What has come so far of one answer: the bytes of its event stream in, texts out, usage at the end."""

    def __init__(self, request: CloudRequest, max_event_bytes: int) -> None:
        self.whole = False
        """Whether the end mark has come, or rubbish in its place once the text had finished."""
        self._request = request
        self._decoder = SSEDecoder(max_event_bytes, final_event=True)
        self._finish_reason: str | None = None
        self._usage: tuple[int, int] | None = None
        self._pieces = 0
        self._joiner = SurrogateJoiner()
        self._failure: TandemError | None = None

    def take(self, received: bytes) -> list[CloudEvent]:
        """The texts that ``received`` completes, up to an event that is an error, see ``check``."""
        return self._texts(self._decoder.decode(received))

    @property
    def finished(self) -> bool:
        """Whether all of the text has come: what may still follow is figures and the end mark."""
        return self._finish_reason is not None

    def check(self) -> None:
        """Raises the ``TandemError`` of what came after the texts that were given last; after all of the text none."""
        if self._failure:
            raise self._failure
        if not self.finished:
            self._decoder.check()

    def flush(self) -> list[CloudEvent]:
        """Ends a stream without the end mark. Some servers send none; the text is whole all the same if a finish reason
        came. Raises ``CloudUnavailable`` where it is not."""
        texts = self._texts(self._decoder.flush())
        if not self.whole and not self.finished and not self._failure:
            raise CloudUnavailable("The cloud model's server cut its answer off before the end; try again.", status=502)
        return texts

    def end(self) -> CloudEvent:
        if self._usage:
            return Usage(*self._usage, finish_reason=self._finish_reason)
        # Servers send a piece a token as a rule.
        return Usage(self._request.estimated_prompt_tokens, self._pieces, self._finish_reason, estimated=True)

    def _texts(self, events: list[Event]) -> list[CloudEvent]:
        texts: list[CloudEvent] = []
        for event in events:
            if event.data.strip() == DONE:
                self.whole = True
                break
            try:
                chunk = parse_chunk(event.data)
            except TandemError as error:
                if self.finished:
                    self.whole = True
                else:
                    self._failure = error
                break
            self._finish_reason = chunk.finish_reason or self._finish_reason
            self._usage = chunk.usage or self._usage
            if chunk.text:
                self._pieces += 1
                if text := self._joiner.push(chunk.text):
                    texts.append(Text(text))
        return texts


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for ``url``. Read by ourselves: what aiohttp's ``trust_env`` would also read
    is a password file, anew for every request."""
    parts = urlsplit(url)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme.lower()) or proxies.get("all")


def _unreachable() -> CloudUnavailable:
    return CloudUnavailable("The cloud model's server cannot be reached; try again later.", status=502)


async def _more(response: aiohttp.ClientResponse, finished: bool) -> bytes:
    """The next bytes, none at the end. Once the text has finished it is whole, whatever becomes of the connection, and
    its figures are not waited for as long as a text is."""
    if not finished:
        return await response.content.readany()
    with suppress(aiohttp.ClientError, OSError), anyio.move_on_after(_FIGURES_SECONDS):
        return await response.content.readany()
    return b""


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Reads what follows the end mark, normally nothing, so that the connection can serve the next request."""
    # The client has its answer by now, and everything for it ends; not this.
    with suppress(aiohttp.ClientError, OSError), anyio.move_on_after(_DRAIN_SECONDS, shield=True):
        while await response.content.readany():
            pass


async def _refusal(response: aiohttp.ClientResponse) -> TandemError:
    body = bytearray()
    with suppress(aiohttp.ClientError, OSError):  # the status alone tells enough
        while len(body) <= _MAX_ERROR_BODY and (received := await response.content.readany()):
            body += received
    payload: Any = None
    with suppress(ValueError, RecursionError):
        payload = json.loads(bytes(body))
    error = payload.get("error") if isinstance(payload, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    log.warning("upstream refused: status=%d type=%s", response.status, str(kind)[:100])
    return upstream_error(payload, response.status, response.headers)
