"""The cloud as a side of the router: the turn as one request to the gateway, its events as parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pyapp.routing.cloud import CloudStream
from pyapp.routing.router import End, Part, Piece, Reason, Turn
from pyapp.routing.wire import Text, Usage


@dataclass(frozen=True)
class CloudSide:
    """Answers with the gateway's stream."""

    cloud: CloudStream

    async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        """See ``Side.stream``. Until the gateway has counted, a piece of text counts as one token."""
        messages: list[dict[str, str]] = list(turn.messages)
        if shown:
            messages.append({"role": "assistant", "content": shown})
        request: dict[str, Any] = {
            "messages": messages,
            "max_tokens": left,
            "temperature": turn.sampling.temperature,
            "top_p": turn.sampling.top_p,
            "seed": turn.sampling.seed,
        }
        pieces, usage = 0, None
        async with aclosing(self.cloud.stream(request)) as received:
            async for event in received:
                if isinstance(event, Text):
                    pieces += 1
                    yield Piece(event.text, 1)
                elif isinstance(event, Usage):
                    usage = event
        tokens = usage.completion_tokens if usage else pieces
        yield End(_reason(usage, tokens, left), usage.prompt_tokens if usage else None, tokens)


def _reason(usage: Usage | None, tokens: int, left: int) -> Reason:
    """Why the text ended; a gateway that does not say has stopped for length when it used up all it was given."""
    if usage is not None and usage.finish_reason in ("stop", "length"):
        return "length" if usage.finish_reason == "length" else "stop"
    return "length" if tokens >= left else "stop"
