"""The sentinel at the door: it is shown each turn before a side is chosen, and hears how fast the device wrote and how
the machine is doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pyapp.door.options import ClientOptions
from pyapp.door.services import Services
from pyapp.errors import OutOfMemory, TandemError
from pyapp.routing.router import Begin, End, Note, Part, Piece, Source, Turn
from pyapp.routing.sentinel import SMALL_GIB, Ahead, MachineState, Sentinel

CODE = "pressure"
"""Of the status event that says why a turn goes to the cloud."""


class PressedDevice(Protocol):
    """What is asked of ``pyapp.door.device.Device``."""

    @property
    def writer(self) -> Any:
        """The engine that would write the next text, None where there is none at the moment."""
        ...

    @property
    def emulated(self) -> bool:
        """Whether the GPU is one on the CPU, whose own work is what loads the machine."""
        ...


class Pressure:
    """``on_change`` hears of a machine whose state has changed; ``close`` ends that."""

    def __init__(
        self,
        options: ClientOptions,
        services: Services,
        device: PressedDevice,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        memory = services.memory_gib()
        small = memory is not None and memory < SMALL_GIB
        self._sentinel = Sentinel(options.context_pressure, small, services.clock)
        self._clock = services.clock
        self._device = device
        self._on_change = on_change
        self._room: float | None = None
        """The share of its weights that the engine had room for."""
        self._first: float | None = None
        """When the first piece of the device's text came; None before it, and once the text was interrupted."""
        self._latest = 0.0
        self._tokens = 0
        """After the first piece."""
        moves_turns = options.mode == "prefer_on_device" and options.cloud is not None
        self._unwatch = services.watch_machine(self._hear) if moves_turns else lambda: None

    def foresee(self) -> Note | None:
        """What ``weigh`` will say of any turn of this conversation, as far as that is known before."""
        if self._known_engine() is None:
            return None
        pressure = self._sentinel.standing()
        return None if pressure is None else Note(CODE, pressure.message)

    def changes_in(self) -> float | None:
        """Seconds until ``foresee`` may say something else although nothing happens; None: it will not."""
        return self._sentinel.changes_in()

    def weigh(self, turn: Turn) -> Note | None:
        """What to tell the user where the turn had better go to the cloud, None where the device may have it."""
        engine = self._known_engine()
        if engine is None:
            return None
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

    def close(self) -> None:
        self._unwatch()

    def _known_engine(self) -> Any:
        """The engine that would write; of one with another share of room, nothing is known yet."""
        engine = self._device.writer
        if engine is not None and engine.room != self._room:
            self._room = engine.room
            self._sentinel.renew()
        return engine

    def _hear(self, state: MachineState) -> None:
        if not self._device.emulated:
            self._sentinel.pressed(state)
            self._on_change()
