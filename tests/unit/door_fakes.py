"""Fakes of everything a client is wired to, for the door's tests: no GPU, no network, no files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from pyapp.door.services import NotesInMemory, Progress, Services
from pyapp.door.tabs import NoTabs, TabLock
from pyapp.errors import DeviceLost, TandemError
from pyapp.routing.router import End, Part, Piece, Turn
from pyapp.routing.sentinel import MachineState


class FakeTokenizer:
    """One token a byte, so that every count in a test can be done by hand."""

    vocab_size = 256
    eos_ids = frozenset({0})

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Any) -> str:
        return bytes(ids).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


class FakeChat:
    def render(self, messages: list[dict[str, str]], generation_prompt: bool = True) -> str:
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + ("[assistant]" if generation_prompt else "")


class FakeGeneration:
    """What ``Engine.generate`` returns: ids, ``at_once`` of them a read-back, then a finish reason. What comes before
    ``fail_at`` and ``hold_at`` has come back. Fails with ``error``, which is a loss of the GPU where it is a
    ``DeviceLost``."""

    def __init__(self, engine: FakeEngine, prompt: list[int], limit: int, step: int) -> None:
        self._engine = engine
        self._limit = limit
        said = bytes(prompt).rsplit(b"[assistant]", 1)[1]
        assert step == len(said), "a token is drawn by its number in the answer"
        self._ids = list(engine.answer.encode())[len(said) :]
        self._done = len(said)
        self._made = 0
        self.finish_reason = "stop"
        self.closed = False

    def __aiter__(self) -> FakeGeneration:
        return self

    async def __anext__(self) -> list[int]:
        engine = self._engine
        await asyncio.sleep(0)
        if engine.fail_at is not None and self._done + self._made >= engine.fail_at:
            if isinstance(engine.error, DeviceLost):
                engine.lost.set()
            raise engine.error
        if engine.hold_at is not None and self._made >= engine.hold_at:
            await asyncio.Event().wait()
        if self._made >= self._limit:
            self.finish_reason = "length"
            raise StopAsyncIteration
        if self._made >= len(self._ids):
            raise StopAsyncIteration
        ends = [self._made + engine.at_once, self._limit]
        if engine.fail_at is not None:
            ends.append(engine.fail_at - self._done)
        if engine.hold_at is not None:
            ends.append(engine.hold_at)
        fresh = self._ids[self._made : min(ends)]
        self._made += len(fresh)
        return fresh

    async def aclose(self) -> None:
        self.closed = True


class FakeEngine:
    def __init__(self, answer: str = "Hello", context: int = 2048) -> None:
        self.tokenizer = FakeTokenizer()
        self.chat = FakeChat()
        self.answer = answer
        self.context = context
        self.at_once = 1
        self.fail_at: int | None = None
        self.hold_at: int | None = None
        self.error: Exception = RuntimeError("boom")
        self.vision: Any = "a vision model"
        self.vision_error: Exception | None = None
        self.lost = asyncio.Event()
        self.room = 1.0
        self.pulse = 0
        self.decisions: list[dict[str, Any]] = []
        self.closed = False
        self.close_seconds = 0.0
        self.prompts: list[str] = []
        self.limits: list[int] = []
        self.ids: list[list[int]] = []
        self.steps: list[int] = []
        self.generations: list[FakeGeneration] = []

    def generate(self, ids: list[int], params: Any, *, step: int = 0) -> FakeGeneration:
        self.prompts.append(self.tokenizer.decode(ids))
        self.ids.append(list(ids))
        self.steps.append(step)
        self.limits.append(params.max_tokens)
        self.generations.append(FakeGeneration(self, ids, params.max_tokens, step))
        return self.generations[-1]

    async def classify(self, pixels: Any) -> Any:
        if self.vision_error is not None:
            raise self.vision_error
        return np.linspace(0, 9, 10, dtype=np.float32)

    async def vision_times(self, pixels: Any, count: int) -> list[float]:
        return [0.002] * count

    async def logits(self, ids: list[int]) -> Any:
        return np.arange(256, dtype=np.float32)

    async def nll(self, ids: list[int]) -> Any:
        return np.ones(len(ids) - 1, dtype=np.float32)

    async def greedy(self, ids: list[int], n: int) -> list[int]:
        return list(range(n))

    def memory(self) -> dict[str, Any]:
        return {"asked": 1, "live": 1, "peak": 1, "slabs": [], "tenants": {}, "objects": {}}

    def plan(self, which: str) -> dict[str, Any]:
        return {"rows": [], "activations": {"peak": 0, "sum": 0}, "dispatchesPerLayer": 5}

    def pool_status(self) -> dict[str, Any]:
        return {"budget": 900 << 20, "used": 1, "tenants": [{"name": "fake", "bytes": 1, "resident": 1}]}

    async def close(self) -> None:
        if self.close_seconds:
            await asyncio.sleep(self.close_seconds)
        self.closed = True


@dataclass
class FakeCloud:
    """A cloud side that says ``pieces`` (those after what was shown), or fails at the start or after ``fail_after``."""

    pieces: list[str] = field(default_factory=lambda: ["Hel", "lo"])
    error: TandemError | None = None
    fail_after: int | None = None
    hold_after: int | None = None
    requests: list[tuple[Turn, str, int]] = field(default_factory=list)
    ended: int = 0

    async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        self.requests.append((turn, shown, left))
        try:
            rest = "".join(self.pieces)[len(shown) :] if shown else None
            pieces = self.pieces if rest is None else [rest]
            for number, piece in enumerate(pieces):
                await asyncio.sleep(0)
                if self.error is not None and number >= (self.fail_after or 0):
                    raise self.error
                if self.hold_after is not None and number >= self.hold_after:
                    await asyncio.Event().wait()
                yield Piece(piece, 1)
            if self.error is not None:
                raise self.error
            yield End("stop", 11, len(pieces))
        finally:
            self.ended += 1


def _already() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class World:
    """A set of services, and what was asked of them."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    later: list[FakeEngine | Exception] = field(default_factory=list)
    """What comes of making another engine, in this order; then engines like the first. Each takes ``seconds``."""
    seconds: float = 0.02
    made: list[FakeEngine] = field(default_factory=list)
    wishes: dict[str, Any] = field(default_factory=dict)
    """What the last engine was asked for with."""
    now: float = 0.0
    """The clock, which stands still unless a test moves it."""
    wall: float = 1_800_000_000.0
    """The clock on the wall, which stands still too."""
    notes: NotesInMemory = field(default_factory=NotesInMemory)
    """What a world's visits leave for the next one."""
    browser: str = "Fake 1"
    memory_gib: float | None = None
    arrival: asyncio.Event = field(default_factory=_already)
    """Models are here once it is set."""
    broken_off: int = 0
    """Downloads that were."""
    machine: list[Callable[[MachineState], None]] = field(default_factory=list)
    """Who watches how the machine is doing."""
    tab_lock: Callable[[Callable[[str], None]], TabLock] = NoTabs
    clock: Callable[[], float] | None = None
    """In the place of the one that stands still."""
    cloud: FakeCloud = field(default_factory=FakeCloud)
    tier: str = "high"
    adapter: str = "Fake GPU"
    model_errors: dict[str, Exception] = field(default_factory=dict)
    engine_error: Exception | None = None
    language_error: Exception | None = None
    asked: list[str] = field(default_factory=list)
    picture: Callable[[Any], Any] = lambda image: (np.zeros((30, 20, 3), np.uint8), 20, 30)

    def services(self) -> Services:
        async def probe(adapter: str, weights: int | None) -> Any:
            self.asked.append(f"probe {adapter}")
            if self.tier == "unsupported":
                return SimpleNamespace(
                    tier=self.tier, adapter="", software=False, usable=False, reason="no WebGPU here"
                )
            software = adapter == "software"
            return SimpleNamespace(tier=self.tier, adapter=self.adapter, software=software, usable=True, reason="")

        async def ensure_model(url: str, progress: Progress) -> Any:
            self.asked.append(url)
            progress("weights", 5, 10)
            if not self.arrival.is_set():
                try:
                    await self.arrival.wait()
                except asyncio.CancelledError:
                    self.broken_off += 1
                    raise
            name = url.split("/")[-2]
            if name in self.model_errors:
                raise self.model_errors[name]

            async def sidecar(field: str) -> list[str]:
                return [f"class {i}" for i in range(10)]

            return SimpleNamespace(name=name, sidecar=sidecar)

        async def create_engine(**wishes: Any) -> Any:
            self.asked.append(f"engine {wishes['budget']}")
            if self.engine_error is not None:
                raise self.engine_error
            if self.language_error is not None and wishes["language"] is not None:
                raise self.language_error
            self.wishes = wishes
            engine = self.engine
            if self.made:
                await asyncio.sleep(self.seconds)
                first = self.made[0]
                following = self.later.pop(0) if self.later else FakeEngine(first.answer, first.context)
                if isinstance(following, Exception):
                    raise following
                engine = following
            self.made.append(engine)
            return engine

        async def decode_image(image: Any) -> Any:
            return self.picture(image)

        async def fetch_json(url: str) -> Any:
            kinds = {"smollm2-135m": "language", "efficientnet-lite0": "vision"}
            return {"models": [{"name": name, "kind": kind} for name, kind in kinds.items()]}

        async def cpu_vision(stored: Any) -> Any:
            return SimpleNamespace(classify=lambda pixels: np.linspace(9, 0, 10, dtype=np.float32))

        return Services(
            probe=probe,
            ensure_model=ensure_model,
            create_engine=create_engine,
            cloud_side=lambda url, shop: self.cloud,
            decode_image=decode_image,
            cpu_vision=cpu_vision,
            fetch_json=fetch_json,
            tab_lock=self.tab_lock,
            clock=self.clock or (lambda: self.now),
            wall_clock=lambda: self.wall,
            notes=self.notes,
            memory_gib=lambda: self.memory_gib,
            watch_machine=self._watch_machine,
            browser=self.browser,
        )

    def _watch_machine(self, hear: Callable[[MachineState], None]) -> Callable[[], None]:
        self.machine.append(hear)
        return lambda: self.machine.remove(hear)
