"""The device as a side of the router: messages in, pieces of text out, through tokenizer, engine and detokenizer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from pyapp.errors import ContextFull
from pyapp.routing.router import Begin, End, Note, Part, Piece, Turn
from pyapp.text.detokenizer import Detokenizer


@dataclass(frozen=True)
class DeviceSide:
    """Answers with an engine that holds a language model."""

    engine: Any

    async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        """See ``Side.stream``. Raises: ContextFull when the prompt leaves no room for a single token."""
        tokenizer, context = self.engine.tokenizer, self.engine.context
        prompt = self.engine.chat.render(turn.messages, generation_prompt=True)
        ids = tokenizer.encode(prompt)
        prompt_tokens = len(ids)
        if shown:
            ids = tokenizer.encode(prompt + shown)
        room = context - len(ids) + 1  # the last token is never fed back
        if room < 1:
            raise ContextFull(
                f"The prompt is {len(ids)} tokens long, and the context holds {context} with the answer; shorten the "
                "text, or start a new conversation.",
                tokens=len(ids),
                context=context,
            )
        yield Begin(prompt_tokens)
        if room < left:
            note = f"The context of {context} tokens has room for {room} more, fewer than the {left} asked for."
            yield Note("context_short", note)
        detokenizer = Detokenizer(tokenizer)
        waiting = 0  # tokens whose bytes are not yet a whole character: not shown, so not counted until they are
        async with aclosing(self.engine.generate(ids, replace(turn.sampling, max_tokens=min(left, room)))) as generated:
            async for token in generated:
                waiting += 1
                text = detokenizer.push(token)
                if text:
                    yield Piece(text, waiting)
                    waiting = 0
            rest = detokenizer.flush()
            if rest or waiting:
                yield Piece(rest, waiting)
            yield End(generated.finish_reason)
