"""The device as a side of the router: messages in, pieces of text out, through tokenizer, engine and detokenizer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyapp.door.stall import Watch, patience
from pyapp.errors import Busy, ContextFull, TandemError
from pyapp.routing.router import FINAL, Begin, End, Note, Part, Piece, Reason, Turn
from pyapp.text.detokenizer import Detokenizer

WHAT = "writing a text"
FRUITLESS = 2
"""Engines in a row that fail before their first token: the next one would too, and somebody waits for an answer."""


class DeviceDoor(Protocol):
    """What this side needs of ``pyapp.door.device.Device``."""

    async def knock(self, *, patient: bool) -> TandemError | None: ...

    def using(self, what: str, *, patient: bool) -> AbstractAsyncContextManager[Any]: ...

    def watch(self, engine: Any) -> Watch: ...


@dataclass(frozen=True)
class DeviceSide:
    """Answers with the device's engine.

    ``patient``: waits for a device that is on its way, and when it is lost in the middle goes on with the next one,
    after the very tokens made so far. Otherwise the reason why there is none is raised, for another side to take over.
    """

    device: DeviceDoor
    patient: bool

    async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        """See ``Side.stream``. Raises: ContextFull when the prompt leaves no room for a single token."""
        answer: _Answer | None = None
        made = fruitless = 0
        while True:
            if self.patient and (wait := await self.device.knock(patient=True)) is not None:
                begun = shown or (answer is not None and answer.made)
                yield Note(wait.code, f"{wait.message} The text {'goes on' if begun else 'begins'} then.")
            try:
                async with self.device.using(WHAT, patient=self.patient) as engine, self.device.watch(engine) as watch:
                    if answer is None:
                        answer = _Answer.begun(engine, turn, shown, left)
                        for part in answer.opening():
                            yield part
                    async with aclosing(answer.pieces(engine, watch)) as pieces:
                        async for piece in pieces:
                            yield piece
                # Told only now: who hears it stops listening, which inside of the work would look like an abort.
                yield End(answer.reason)
                return
            except (*FINAL, Busy):
                raise
            except TandemError:
                before, made = made, 0 if answer is None else len(answer.made)
                fruitless = fruitless + 1 if made == before else 0
                if not self.patient or fruitless >= FRUITLESS:
                    raise
                # The next knock waits for the rebuild, or raises why there is none.


@dataclass
class _Answer:
    """One answer over the engines that write it. What is kept between them is token ids and half a character."""

    turn: Turn
    prompt_tokens: int
    ids: list[int]
    left: int
    context: int
    detokenizer: Detokenizer
    made: list[int] = field(default_factory=list)
    reason: Reason = "length"
    """Why it has ended, once it has."""

    @classmethod
    def begun(cls, engine: Any, turn: Turn, shown: str, left: int) -> _Answer:
        """Goes on after ``shown`` with at most ``left`` tokens. Raises: ContextFull."""
        prompt = engine.chat.render(turn.messages, generation_prompt=True)
        ids = engine.tokenizer.encode(prompt)
        prompt_tokens = len(ids)
        if shown:
            ids = engine.tokenizer.encode(prompt + shown)
        answer = cls(turn, prompt_tokens, ids, left, engine.context, Detokenizer(engine.tokenizer))
        if answer.room < 1:
            raise ContextFull(
                f"The prompt is {len(ids)} tokens long, and the context holds {engine.context} with the answer; "
                "shorten the text, or start a new conversation.",
                tokens=len(ids),
                context=engine.context,
            )
        return answer

    @property
    def room(self) -> int:
        """Tokens that the context still has room for; the last one is never fed back."""
        return self.context - len(self.ids) - len(self.made) + 1

    def opening(self) -> list[Part]:
        parts: list[Part] = [Begin(self.prompt_tokens)]
        if self.room < self.left:
            note = f"The context of {self.context} tokens has room for {self.room} more, fewer than the {self.left} "
            parts.append(Note("context_short", note + "asked for."))
        return parts

    async def pieces(self, engine: Any, watch: Watch) -> AsyncGenerator[Piece]:
        """The rest of the answer by ``engine``, a piece a read-back. Raises: DeviceLost where ``watch`` finds that it
        hangs."""
        self.context = engine.context  # another engine's may be shorter
        self.reason = "length"
        limit = min(self.left - len(self.made), self.room)
        if limit > 0:
            ids = self.ids + self.made
            params = replace(self.turn.sampling, max_tokens=limit)
            async with aclosing(engine.generate(ids, params, step=max(0, len(ids) - self.prompt_tokens))) as generated:
                times = patience(len(ids))
                while (fresh := await watch.wait(anext(generated, None), times)) is not None:
                    times = 1
                    waited = self.detokenizer.waiting
                    self.made += fresh
                    if text := self.detokenizer.push(fresh):
                        yield Piece(text, waited + len(fresh) - self.detokenizer.waiting)
                self.reason = generated.finish_reason
        waited = self.detokenizer.waiting
        rest = self.detokenizer.flush()
        if rest or waited:
            yield Piece(rest, waited)
