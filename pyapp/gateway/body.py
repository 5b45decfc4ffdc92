"""Reading a request's body within bounds."""

from __future__ import annotations

import anyio
from starlette.requests import Request

from ..errors import BadArgument


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """At most ``most`` bytes that arrive within ``seconds``. Raises ``BadArgument`` (413, 408)."""
    too_big = BadArgument(f"The body is larger than {most} bytes; send a shorter conversation.", status=413)
    length = request.headers.get("content-length", "")
    # Servers check the header; one of 20 digits and more is beyond ``most``, and beyond what ``int`` is to read.
    if length.isascii() and length.isdigit() and (len(length) > 19 or int(length) > most):
        raise too_big
    body = bytearray()
    try:
        with anyio.fail_after(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_big
    except TimeoutError:
        raise BadArgument(f"The body did not arrive within {seconds:g} seconds.", status=408) from None
    return bytes(body)
