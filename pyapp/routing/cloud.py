"""The cloud side of a call: one POST to the gateway, its event stream as ``Text`` and ``Usage``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from ..errors import CloudUnavailable, TandemError
from .refusal import refusal
from .sse import SSEDecoder
from .transport import Reply, Transport
from .wire import DONE, MEDIA_TYPE, CloudEvent, SurrogateJoiner, Text, parse_event


class CloudStream:
    """Calls the gateway at ``url`` through ``transport`` (``FetchTransport`` in a browser, ``HttpxTransport`` else; a
    ``ShopTransport`` around either where there is a site key).

    ``first_seconds`` bounds the wait for the first event, ``idle_seconds`` each wait after it. Both are longer than the
    gateway's own, which gives the better reason.
    """

    def __init__(self, url: str, transport: Transport, first_seconds: float = 75.0, idle_seconds: float = 45.0) -> None:
        self.url = url
        self._transport = transport
        self._first_seconds = first_seconds
        self._idle_seconds = idle_seconds

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[CloudEvent, None]:
        """Yields the answer to ``request`` (the wire's ``{messages | prompt, max_tokens, temperature, top_p, seed}``).

        Raises ``BadArgument`` or ``ContextFull`` when the gateway says so, and ``CloudUnavailable`` for every other
        failure. ``details`` then holds ``kind`` (network, http, no_token, not_a_stream, in_band, bad_event, endless,
        cut, timeout), ``characters`` (how much text was yielded before), and ``status`` and ``retry_after`` (the
        header's text) where there was an HTTP refusal. Leaving the loop (close it with ``aclose``) or cancelling the
        task aborts the exchange.
        """
        characters = 0
        events = self._events(request)
        try:
            limit = self._first_seconds
            while True:
                try:
                    async with asyncio.timeout(limit):
                        event = await anext(events, None)
                except TimeoutError:
                    raise CloudUnavailable(
                        f"The cloud sent nothing for {limit:g} seconds; try again.", kind="timeout", seconds=limit
                    ) from None
                if event is None:
                    return
                if isinstance(event, Text):
                    characters += len(event.text)
                yield event
                limit = self._idle_seconds
        except TandemError as error:
            error.details["characters"] = characters
            raise
        finally:
            await events.aclose()

    async def _events(self, request: Mapping[str, Any]) -> AsyncGenerator[CloudEvent, None]:
        headers = {"content-type": "application/json", "accept": MEDIA_TYPE}
        body = json.dumps(dict(request)).encode()
        reply = await self._transport.post(self.url, body, headers)
        try:
            if reply.status != 200:
                raise await refusal(reply)
            media_type = _media_type(reply)
            if media_type != MEDIA_TYPE:
                raise CloudUnavailable(
                    f"The address {self.url} answered with {media_type or 'no content type'} instead of an event "
                    "stream; check that it is a Tandem gateway's.",
                    kind="not_a_stream",
                    content_type=media_type,
                )
            async with aclosing(_read(reply)) as events:
                async for event in events:
                    yield event
        finally:
            await reply.close()


async def _read(reply: Reply) -> AsyncGenerator[CloudEvent, None]:
    decoder = SSEDecoder(final_event=True)
    joiner = SurrogateJoiner()

    def text_of(event: CloudEvent | None) -> CloudEvent | None:
        if not isinstance(event, Text):
            return event
        mended = joiner.push(event.text)
        return Text(mended) if mended else None

    async with aclosing(reply.chunks()) as chunks:
        async for chunk in chunks:
            for message in decoder.decode(chunk):
                if message.data.strip() == DONE:
                    if rest := joiner.flush():
                        yield Text(rest)
                    return
                if (event := text_of(parse_event(message.data))) is not None:
                    yield event
            decoder.check()
    # The end came without a blank line: still whole if the last line is the end mark.
    if [message.data.strip() for message in decoder.flush()] == [DONE]:
        if rest := joiner.flush():
            yield Text(rest)
        return
    raise CloudUnavailable("The cloud's answer was cut off before its end; try again.", kind="cut")


def _media_type(reply: Reply) -> str:
    return (reply.headers.get("content-type") or "").split(";")[0].strip().lower()
