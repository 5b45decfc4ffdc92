"""The cloud as a side of the router: the turn as one request to the gateway, its events as parts."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pyapp.errors import CloudUnavailable
from pyapp.routing.cloud import CloudStream
from pyapp.routing.joiner import Joiner
from pyapp.routing.router import End, Part, Piece, Reason, Turn
from pyapp.routing.wire import Text, Usage


@dataclass(frozen=True)
class CloudSide:
    """Answers with the gateway's stream."""

    cloud: CloudStream

    async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        """See ``Side.stream``. Until the gateway has counted, a piece of text counts as one token.

        What the cloud repeats of ``shown`` is left out, of the text and of its tokens: these were counted for the side
        that wrote them first. What the cloud made in all, and bills, is in the gateway's own figures.
        """
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
        # When the stream breaks, what the joiner holds back goes with it: whoever is next goes on from what is shown.
        joiner = Joiner(shown)
        pieces = characters = waiting = 0
        usage = None
        try:
            async with aclosing(self.cloud.stream(request)) as received:
                async for event in received:
                    if isinstance(event, Text):
                        pieces, waiting, characters = pieces + 1, waiting + 1, characters + len(event.text)
                        if text := joiner.push(event.text):
                            yield Piece(text, max(1, _fresh(waiting, joiner.repeated, characters)))
                            waiting = 0
                    elif isinstance(event, Usage):
                        usage = event
        except CloudUnavailable:
            # Figures with a reason come last: all of the text is there, and only its end mark is not.
            if usage is None or usage.finish_reason is None:
                raise
        if text := joiner.flush():
            yield Piece(text, max(1, _fresh(waiting, joiner.repeated, characters)))
        made = usage.completion_tokens if usage else pieces
        new = _fresh(made, joiner.repeated, characters)
        yield End(_reason(usage, made, left), usage.prompt_tokens if usage else None, new)


def _fresh(tokens: int, repeated: int, characters: int) -> int:
    """Of so many tokens those that are new, by the share of characters. A half is rounded as in JavaScript."""
    return tokens - math.floor(tokens * repeated / max(1, characters) + 0.5)


def _reason(usage: Usage | None, tokens: int, left: int) -> Reason:
    """Why the text ended; a gateway that does not say has stopped for length when it used up all it was given."""
    if usage is not None and usage.finish_reason in ("stop", "length"):
        return "length" if usage.finish_reason == "length" else "stop"
    return "length" if tokens >= left else "stop"
