"""The sentinel at the door: it is shown each turn before a side is chosen, and how fast the device wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyapp.door.options import ClientOptions
from pyapp.door.services import Services
from pyapp.errors import OutOfMemory, TandemError
from pyapp.routing.router import Begin, End, Note, Part, Piece, Source, Turn
from pyapp.routing.sentinel import SMALL_GIB, Ahead, Sentinel

CODE = "pressure"
"""Of the status event that says why a turn goes to the cloud."""


class Pressure:
    """``writer`` gives the engine that would write the next text, None where there is none at the moment."""

    def __init__(self, options: ClientOptions, services: Services, writer: Callable[[], Any]) -> None:
        memory = services.memory_gib()
        small = memory is not None and memory < SMALL_GIB
        self._sentinel = Sentinel(options.context_pressure, small, services.clock)
        self._clock = services.clock
        self._writer = writer
        self._room: float | None = None
        """The share of its weights that the engine had room for."""
        self._first: float | None = None
        """When the first piece of the device's text came; None before it, and once the text was interrupted."""
        self._latest = 0.0
        self._tokens = 0
        """After the first piece."""

    def weigh(self, turn: Turn) -> Note | None:
        """What to tell the user where the turn had better go to the cloud, None where the device may have it."""
        engine = self._writer()
        if engine is None:
            return None
        if engine.room != self._room:
            self._room = engine.room
            self._sentinel.renew()
        try:
            tokens = len(engine.tokenizer.encode(engine.chat.render(turn.messages, generation_prompt=True)))
        except TandemError:
            return None  # the device says so better
        pressure = self._sentinel.weigh(Ahead(turn.messages, tokens, turn.sampling.max_tokens, engine.context))
        return None if pressure is None else Note(CODE, pressure.message)

    def heard(self, source: Source, part: Part) -> None:
        """Takes notice of each part of each answer."""
        match part:
            case Note(code=OutOfMemory.code):
                self._sentinel.ran_out()
            case Begin() if source == "device":
                self._first, self._tokens = None, 0
            case Piece(tokens=tokens) if source == "device":
                self._latest = self._clock()
                if self._first is None:
                    self._first = self._latest
                else:
                    self._tokens += tokens
            case Note():
                self._first, self._tokens = None, 0  # it waited for something: the rest is measured alone
            case End() if source == "device" and self._first is not None:
                self._sentinel.wrote(self._tokens, self._latest - self._first)
                self._first = None
