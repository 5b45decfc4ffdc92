"""A reply that is not what was asked for, as the error to tell."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

from ..errors import CloudUnavailable, TandemError
from .transport import Reply
from .wire import error_from_payload

_MOST_BYTES = 65536


async def read_json(reply: Reply) -> Any:
    """The JSON value in the reply's first 64 KiB, None where it is none or the line breaks."""
    body = bytearray()
    try:
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > _MOST_BYTES:
                    break
        return json.loads(bytes(body))
    except (CloudUnavailable, ValueError, RecursionError):
        return None


async def refusal(reply: Reply) -> TandemError:
    """What the gateway says in a reply with another status than 200; the status alone where it says nothing.

    ``details`` holds ``kind`` ("http"), ``status``, and ``retry_after`` (the header's text) where there is one.
    """
    details: dict[str, Any] = {"kind": "http", "status": reply.status}
    if retry_after := reply.headers.get("retry-after"):
        details["retry_after"] = retry_after
    payload = await read_json(reply)
    if isinstance(payload, dict) and payload.get("error"):
        return error_from_payload(payload, **details)
    return CloudUnavailable(
        f"The cloud gateway answered with HTTP {reply.status}; check its address, or try again later.", **details
    )
