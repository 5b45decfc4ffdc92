"""One round, photo to copy, and one switch between two models: done once, and timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..engine.engine import Engine
from ..engine.language import NAME as LANGUAGE
from ..engine.vision import NAME as VISION
from ..errors import NoDevice
from ..text.sampling import SamplingParams

NO_END: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Hosts:
    """The engine that each model runs in: one and the same where they share a pool, else one each."""

    language: Engine
    vision: Engine

    @property
    def engines(self) -> Mapping[str, Engine]:
        return {LANGUAGE: self.language, VISION: self.vision}

    def _each(self) -> list[Engine]:
        return [self.language] if self.language is self.vision else [self.language, self.vision]

    @property
    def peak(self) -> int:
        """The most bytes of GPU memory that there were."""
        return sum(engine.pool.peak for engine in self._each())

    @property
    def moved(self) -> int:
        """Bytes that went from the store to the GPU so far."""
        return sum(engine.residency.moved_bytes for engine in self._each())

    def errors(self) -> list[str]:
        return [message for engine in self._each() for message in engine.device.errors]

    async def close(self) -> None:
        for engine in self._each():
            await engine.close()


@dataclass(frozen=True)
class Switch:
    """``seconds`` from asking for a model's turn until its weights are on the GPU, and the ``moved`` bytes."""

    seconds: float
    moved: int


@dataclass(frozen=True)
class Round:
    """One photo and one text. ``first``: seconds from asking for the text to its first read-back, one token, the switch
    and the wait for its end included; ``rate``: tokens a second of all that came after that read-back."""

    to_vision: Switch
    to_language: Switch
    picture: float
    first: float
    rate: float
    moved: int
    ids: list[int] = field(repr=False)
    logits: np.ndarray = field(repr=False)


async def switch(hosts: Hosts, model: str) -> Switch:
    """Gives ``model`` its turn, on a GPU that has nothing else to do."""
    engine = hosts.engines[model]
    await engine.device.idle()
    before, start = hosts.moved, time.perf_counter()
    async with engine.leases.lease(model, holder="the bench of sharing"):
        await engine.device.idle()
        return Switch(time.perf_counter() - start, hosts.moved - before)


async def full_load(hosts: Hosts, model: str) -> Switch:
    """A switch to ``model`` when nothing of it is on the GPU: how fast the way from the store to the pool is."""
    hosts.engines[model].residency.evict()
    return await switch(hosts, model)


async def photo_to_copy(hosts: Hosts, picture: np.ndarray, ids: list[int], tokens: int) -> Round:
    """Looks at ``picture`` (uint8 [224, 224, 3]), then writes ``tokens`` greedy ids after ``ids``."""
    before = hosts.moved
    to_vision = await switch(hosts, VISION)
    if hosts.vision.vision is None:
        raise NoDevice("The vision model does not run on this device: its bindings are too small.")
    start = time.perf_counter()
    logits = await hosts.vision.classify(picture)
    seen = time.perf_counter() - start
    to_language = await switch(hosts, LANGUAGE)
    start = time.perf_counter()
    made: list[int] = []
    arrivals: list[tuple[float, int]] = []
    """When each read-back was here, and how many tokens were by then."""
    async for fresh in hosts.language.generate(ids, SamplingParams(max_tokens=tokens), ends=NO_END):
        made += fresh
        arrivals.append((time.perf_counter(), len(made)))
    (first_at, first_count), (last_at, count) = arrivals[0], arrivals[-1]
    first = to_language.seconds + first_at - start
    rate = (count - first_count) / (last_at - first_at) if last_at > first_at else 0.0
    return Round(to_vision, to_language, seen, first, rate, hosts.moved - before, made, logits)
