"""The token that a gateway with shops asks for: fetched when it is first needed, kept until shortly before its end.

``web/access-token.js`` has the same rules, for browsers where Python cannot run.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from ..errors import CloudUnavailable
from .refusal import read_json, refusal
from .transport import Reply, Transport

_HEADERS = {"content-type": "application/json", "accept": "application/json"}
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what may stand behind "Bearer" (RFC 6750, section 2.1)
_LONGEST = 4096  # characters
_EARLY_SECONDS = 15.0
_EARLY_SHARE = 0.2
"""A token is given up that much of its time before its end, ``_EARLY_SECONDS`` at most: a request needs time too."""


@dataclass(frozen=True, slots=True)
class Shop:
    """For whom the cloud is asked: the merchant's public site ``key``, and the origin of the page around
    (``ancestor``, such as ``https://shop.example``)."""

    key: str
    ancestor: str


class TokenSource:
    """Tokens for ``shop`` from ``token``, the address beside ``url``, which is the stream's or telemetry's.

    Callers at the same time share one request and what comes of it, so that nobody waits behind another's. Cancelling
    them does not end it.
    """

    def __init__(
        self,
        url: str,
        shop: Shop,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = 10.0,
    ) -> None:
        """``seconds`` bounds one request."""
        self.url = urljoin(url, "token")
        self._shop = shop
        self._transport = transport
        self._clock = clock
        self._seconds = seconds
        self._asking: asyncio.Task[str] | None = None
        self._token: str | None = None
        self._until = 0.0
        self._closed = False

    @property
    def at_hand(self) -> str | None:
        """A token that is good for a while yet and need not be asked for."""
        return self._token if self._clock() < self._until else None

    async def token(self) -> str:
        """A token that is good for a while yet: the one at hand, or a new one.

        Raises ``CloudUnavailable`` with the gateway's own sentence where there is one: for a key that is not known and
        for an origin that is not the shop's too, since the caller of a text can do nothing about either, and a device
        that can write is to do so. ``details["kind"]`` is "no_token", "timeout", "network" or "closed".
        """
        if (token := self.at_hand) is not None:
            return token
        if self._asking is None:
            if self._closed:
                raise CloudUnavailable("No access token is asked for any more: the client is closed.", kind="closed")
            self._asking = asyncio.ensure_future(self._ask(self._clock()))
        return await asyncio.shield(self._asking)

    def refused(self, token: str) -> None:
        """Forgets ``token``, which the gateway did not take; a newer one is kept."""
        if token == self._token:
            self._token = None

    def close(self) -> None:
        """Asks no more: whoever still wants a token gets the one at hand, or the one that is on its way, or none."""
        self._closed = True

    async def _ask(self, asked: float) -> str:
        try:
            self._token, seconds = await self._fetch()
        finally:
            self._asking = None
        self._until = asked + seconds - min(_EARLY_SECONDS, seconds * _EARLY_SHARE)
        return self._token

    async def _fetch(self) -> tuple[str, float]:
        body = json.dumps({"site": self._shop.key, "ancestor": self._shop.ancestor}).encode()
        try:
            async with asyncio.timeout(self._seconds):
                reply = await self._transport.post(self.url, body, _HEADERS)
                try:
                    return await self._read(reply)
                finally:
                    await reply.close()
        except TimeoutError:
            raise CloudUnavailable(
                f"The cloud gateway gave no access token within {self._seconds:g} seconds; try again.",
                kind="timeout",
                seconds=self._seconds,
            ) from None

    async def _read(self, reply: Reply) -> tuple[str, float]:
        if reply.status == 404:
            raise CloudUnavailable(
                f"There are no access tokens at {self.url}: leave the site key out where the gateway has no sites, or "
                "check the cloud's address.",
                kind="no_token",
                status=404,
            )
        if reply.status != 200:
            error = await refusal(reply)
            raise CloudUnavailable(error.message, **{**error.details, "kind": "no_token"})
        payload = await read_json(reply)
        given: Mapping[str, Any] = payload if isinstance(payload, dict) else {}
        token, seconds = given.get("token"), given.get("expires_in")
        whole = isinstance(token, str) and len(token) <= _LONGEST and _TOKEN.fullmatch(token)
        if not whole or isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise CloudUnavailable(
                f"The address {self.url} answered with something that is no access token; check that it is a Tandem "
                "gateway's.",
                kind="no_token",
                status=200,
            )
        return str(token), float(seconds)


class ShopTransport:
    """``Transport`` to a gateway with shops: each request carries the shop's token.

    A token that is refused (401) is replaced and the request sent once more, which is safe because nothing of an answer
    has come by then. Nothing else is tried again: that is the gateway's business.
    """

    def __init__(self, transport: Transport, tokens: TokenSource) -> None:
        self._transport = transport
        self._tokens = tokens

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """See ``Transport.post``. Raises also what ``TokenSource.token`` raises."""
        token = await self._tokens.token()
        reply = await self._send(url, body, headers, token)
        if reply.status != 401:
            return reply
        await reply.close()
        self._tokens.refused(token)
        return await self._send(url, body, headers, await self._tokens.token())

    async def _send(self, url: str, body: bytes, headers: Mapping[str, str], token: str) -> Reply:
        return await self._transport.post(url, body, {**headers, "authorization": f"Bearer {token}"})
