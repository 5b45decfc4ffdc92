"""Runs in Pyodide: what ``CloudStream`` over the browser's ``fetch`` makes of an address."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from pyapp.errors import TandemError
from pyapp.routing.cloud import CloudStream
from pyapp.routing.fetch_transport import FetchTransport
from pyapp.routing.wire import Text

REQUEST = {"prompt": "Décris la tasse 🍵", "max_tokens": 8, "temperature": 0.0, "top_p": 1.0, "seed": 0}


async def answer(url: str, **seconds: float) -> dict[str, Any]:
    """The text of a stream, its usage, and the error that ended it."""
    text, usage, failure = "", None, None
    try:
        async for event in CloudStream(url, FetchTransport(), **seconds).stream(REQUEST):
            if isinstance(event, Text):
                text += event.text
            else:
                usage = [event.prompt_tokens, event.completion_tokens, event.finish_reason]
    except TandemError as error:
        failure = error.as_dict()
    return {"text": text, "usage": usage, "error": failure}


async def leave(url: str, how: str) -> str:
    """Takes one event of an endless stream and leaves, or is cancelled while waiting for what never comes."""
    stream = CloudStream(url, FetchTransport())
    if how == "leave":
        async with aclosing(stream.stream(REQUEST)) as events:
            event = await anext(events)
            assert isinstance(event, Text)
            return event.text
    task = asyncio.create_task(answer(url))
    await asyncio.sleep(0.5)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return "cancelled"
    return "not cancelled"
