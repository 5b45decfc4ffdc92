"""Cases for the two samplers: logits, the state before the first step, and how many steps are queued in one submit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.compiler.graph import Graph, GraphBuilder
from pyapp.compiler.reference import StepState, run

from .expected import GUARD

Array = NDArray[Any]
NO_WEIGHTS: dict[str, Array] = {}
VOCAB = 200
"""Not a multiple of the 64 invocations that share it."""
WIDE = 2003
"""More than the sampler's list of the largest has room for, with 64 invocations and with 256; a prime."""
WHOLE = 70_001
"""More than 256 tokens for each of 256 invocations."""
LEAST_DRAW, LARGEST_DRAW = 11058903, 277529
"""Seeds whose first draw is 0, and 1 - 2^-24."""
DICE = np.log(np.array([0.30, 0.05, 0.10, 0.02, 0.08, 0.15, 0.01, 0.04, 0.05, 0.20])).astype(np.float32)


@dataclass(frozen=True)
class Draws:
    """``steps`` steps queued at once from each of ``states``; temperature 0 takes the greedy sampler."""

    name: str
    logits: Array
    states: tuple[StepState, ...]
    steps: int = 1

    @property
    def greedy(self) -> bool:
        return self.states[0].temperature == 0

    @property
    def words(self) -> Array:
        """The logits with large ones behind them, which are not of the vocabulary and must not be drawn."""
        return np.append(self.logits, np.full(GUARD // 4, 99, np.float32)).view(np.uint32)

    @property
    def graph(self) -> Graph:
        g = GraphBuilder(self.name)
        g.tensor("state", (64,), "state", dtype="u32")
        g.tensor("logits", (1, len(self.logits)), "input")
        g.op("sample", "state", (64,), {"greedy": self.greedy}, logits="logits")
        return g.build()

    def expected(self) -> list[StepState]:
        """The states after the steps, by NumPy."""
        out = []
        for state in self.states:
            state = replace(state, ids=[])
            for _ in range(self.steps):
                run(self.graph, {"logits": self.logits[None]}, NO_WEIGHTS.__getitem__, state)
            out.append(state)
        return out


def flat(seed: int = 0, size: int = VOCAB, spread: float = 2.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def but(logits: Array, **changes: float) -> Array:
    """``logits`` with single values changed: ``but(x, _5=3.0)`` sets the one of token 5."""
    out = logits.copy()
    for key, value in changes.items():
        out[int(key[1:])] = value
    return out


def greedy_cases() -> Iterator[Draws]:
    one = (StepState(position=4),)
    low = flat() - 20
    yield Draws("random", flat(), one)
    yield Draws("the last token", but(low, _199=9.0), one)
    yield Draws("of equals the lowest", but(low, _70=9.0, _133=9.0, _5=9.0), one)
    yield Draws("of equals the lowest, though its invocation comes later", but(low, _64=9.0, _3=9.0), one)
    yield Draws("all equal", np.zeros(VOCAB, np.float32), one)
    yield Draws("one above minus infinity", but(np.full(VOCAB, -np.inf, np.float32), _150=-80.0), one)
    yield Draws("infinity", but(low, _8=np.inf), one)
    yield Draws("large negative", flat() * 1e30 - 1e32, one)
    yield Draws("of both zeros the lower", but(np.full(VOCAB, -1, np.float32), _77=-0.0, _9=-0.0, _140=0.0), one)
    yield Draws("fewer than invocations", flat(11, 5), one)
    yield Draws("a wide one, the last", but(flat(12, WIDE) - 20, _2002=9.0), one)
    yield Draws("a wide one, of equals the lowest", but(flat(12, WIDE) - 20, _2002=9.0, _1000=9.0, _1003=9.0), one)
    yield from _endings(0.0)
    yield from _not_finite(0.0)


def random_cases() -> Iterator[Draws]:
    def states(count: int = 12, **more: Any) -> tuple[StepState, ...]:
        return tuple(StepState(seed=seed * 2654435761 % 2**32, **more) for seed in range(count))

    yield Draws("all of it", flat(1), states(temperature=1.0), 32)
    yield Draws("warm", flat(1), states(temperature=1.7), 32)
    yield Draws("top 5, the fifth a tie", but(flat(2) - 20, _3=4.0, _9=3.5, _70=3.0, _71=2.5, _64=2.0, _11=2.0),
                states(temperature=1.3, top_k=5), 32)  # fmt: skip
    yield Draws("half of the mass", flat(3), states(temperature=0.9, top_p=0.5), 32)
    yield Draws("top 20, of them 0.7", flat(4), states(temperature=0.8, top_k=20, top_p=0.7), 32)
    yield Draws("top k above the vocabulary", flat(5), states(4, temperature=1.0, top_k=1000), 32)
    yield Draws("below zero and minus infinity", but(flat(6) - 50, _0=-np.inf, _64=-np.inf, _199=-np.inf),
                states(temperature=1.0, top_k=150), 32)  # fmt: skip
    yield Draws("without what minus infinity bars", but(np.full(VOCAB, -np.inf, np.float32), _9=1.0, _77=1.5, _13=0.5),
                states(temperature=1.0), 32)  # fmt: skip
    yield Draws("the least draw", but(flat(9), _0=-np.inf), (StepState(seed=LEAST_DRAW, temperature=1.0),))
    yield from _borders()
    yield from _endings(1.0)
    yield from _not_finite(1.0)


def _borders() -> Iterator[Draws]:
    """What the list of the largest logits holds, and what is searched for among all."""

    def states(count: int = 4, **more: Any) -> tuple[StepState, ...]:
        return tuple(StepState(seed=seed * 40503 + 7, **more) for seed in range(count))

    normal, equal = flat(13, WIDE), np.zeros(WIDE, np.float32)
    # 700 at the top, of two values in turns, and neighbours: few invocations read most of them.
    ties = but(flat(14, WIDE) - 20, **{f"_{token}": float(1 + token % 2) for token in range(1100, 1800)})
    # One large one for each of 64 invocations, and for each of 256: fewer than top_k, though the list would hold them.
    one_each = but(flat(15, WIDE, 0.1), **{f"_{token}": 3.0 + (token < 256) for token in range(0, 1024, 4)})
    yield Draws("listed", normal, states(temperature=0.8, top_k=40, top_p=0.9), 8)
    many = (*states(2, temperature=3.0, top_k=60, top_p=0.9), *states(2, temperature=9.0, top_k=200, top_p=0.5))
    yield Draws("listed, more than invocations", normal, many, 8)
    yield Draws("top k above the invocations, which have one each", one_each, states(temperature=1.0, top_k=600), 8)
    yield Draws("listed, top k alone", normal, states(temperature=0.8, top_k=40), 8)
    yield Draws("listed, top p alone", normal * 4, states(temperature=1.0, top_p=0.9), 8)
    yield Draws("listed, and a tie at the border of top p", but(normal - 20, _3=4.0, _700=3.0, _1003=3.0, _2002=3.0),
                states(temperature=1.0, top_p=0.75), 8)  # fmt: skip
    yield Draws("listed, both zeros tie", but(normal - 20, _3=4.0, _700=0.0, _1003=-0.0, _2002=-0.0, _8=-1.0),
                states(temperature=4.0, top_k=2), 8)  # fmt: skip
    yield Draws("top k above the invocations", normal, states(temperature=1.0, top_k=900, top_p=0.8), 8)
    yield Draws("top k all but one", normal, states(2, temperature=1.0, top_k=WIDE - 1), 8)
    yield Draws("flat, most of the mass", normal / 4, states(temperature=1.0, top_p=0.9), 8)
    yield Draws("flat, hardly any mass", normal / 4, states(2, temperature=1.0, top_p=1e-6), 8)
    yield Draws("more ties than the list holds", equal, states(temperature=1.0, top_k=3), 8)
    yield Draws("more ties than the list holds, top p", equal, states(temperature=1.0, top_p=0.01), 8)
    yield Draws("ties of neighbours", ties, states(temperature=1.0, top_k=5), 8)
    yield Draws("ties of neighbours beyond the first value", ties, states(temperature=1.0, top_k=400, top_p=0.9), 8)
    yield Draws("below zero and large", normal * 1e30 - 1e32, states(2, temperature=1e30, top_k=60, top_p=0.95), 8)
    vocabulary = (*states(2, temperature=1.0), *states(2, temperature=1.0, top_k=300))
    yield Draws("a vocabulary, all of it and most", flat(16, WHOLE, 4.0), vocabulary, 4)
    yield Draws("fewer than invocations", flat(11, 5), states(temperature=1.0, top_k=3, top_p=0.9), 8)
    yield Draws("fewer than invocations, all of them", flat(11, 5), states(temperature=1.0), 8)


def barely_reached() -> Draws:
    """The largest draw, and a last thread whose three tokens (7, 71, 135) count together but are each lost when added
    to the sum before them: the walk ends without reaching its aim, at token 199, which must not come."""
    logits = np.full(VOCAB, -np.inf, np.float32)
    changes = {"_0": 0.0, **{f"_{token}": float(np.log(5e-8)) for token in (7, 71, 135)}}
    return Draws("barely reached", but(logits, **changes), (StepState(seed=LARGEST_DRAW, temperature=1.0),))


def _not_finite(temperature: float) -> Iterator[Draws]:
    """What damaged weights or a kernel that overflows give: only numbers are drawn, and without one the sequence ends,
    though more steps are queued."""
    states = tuple(StepState(position=4, temperature=temperature, seed=seed, top_k=20) for seed in range(6))
    wide = tuple(replace(state, top_k=0, top_p=0.9) for state in states)
    # Of both signs and with several payloads.
    none = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF] * (VOCAB // 4), np.uint32).view(np.float32)
    some = but(flat(10), _0=np.nan, _3=np.nan, _64=np.inf, _100=-np.nan, _120=-np.inf)
    yield Draws("some are no numbers", some, states, 4)
    yield Draws("some are no numbers, top p", some, wide, 4)
    yield Draws("one is a number", but(none, _150=-80.0), states, 4)
    yield Draws("one is a number, and the least", but(none, _150=float(np.finfo(np.float32).min)), wide, 4)
    yield Draws("none is a number", none, states, 4)
    yield Draws("none is a number, top p", none, wide, 4)
    if temperature:
        every = tuple(replace(state, top_k=top_k) for state in states[:2] for top_k in (0, 150))
        yield Draws("none is a number, all of it", none, every, 4)
        yield Draws("some are no numbers, all of it", some, every, 4)
        yield Draws("fewer numbers than top k", but(none, _150=-80.0, _7=-80.5), every, 4)
    yield Draws("all infinite", np.full(VOCAB, np.inf, np.float32), states, 4)
    yield Draws("all minus infinity", np.full(VOCAB, -np.inf, np.float32), states, 4)
    yield Draws("no number, but stopped", none, (replace(states[0], stop=True, token=9),), 4)


def sure_cases() -> Iterator[Draws]:
    """Whatever the seed, only the most probable token may come."""
    states = [StepState(seed=seed, temperature=1.0) for seed in range(6)]
    for name, change in (
        ("top 1", {"top_k": 1}),
        ("hardly any mass", {"top_p": 1e-6}),
        ("less mass than a float32 can say", {"top_p": 1e-300}),
        ("cold", {"temperature": 1e-3}),
        ("colder than a float32 can say", {"temperature": 1e-300}),
    ):
        yield Draws(name, flat(7), tuple(replace(state, **change) for state in states), 32)  # type: ignore[arg-type]


def _endings(temperature: float) -> Iterator[Draws]:
    """More steps are queued than may be taken."""
    state = StepState(position=4, temperature=temperature, top_k=1, seed=3)
    logits = but(flat(8) - 20, _42=9.0)
    others = frozenset(range(11))  # the state keeps them in order, so 42 is the twelfth
    yield Draws("an end token", logits, (replace(state, ends=frozenset({42})),), 5)
    yield Draws("the last of twelve end tokens", logits, (replace(state, ends=others | {42}),), 3)
    yield Draws("no end token", logits, (replace(state, ends=others),), 3)
    yield Draws("the limit", logits, (replace(state, limit=3),), 8)
    yield Draws("the limit, begun before", logits, (replace(state, limit=9, step=7),), 8)
    yield Draws("past the ring of 32", logits, (replace(state, limit=1000, step=30),), 40)
    yield Draws("after a chunk", logits, (replace(state, count=5),), 3)
    yield Draws("stopped", logits, (replace(state, stop=True, token=9),), 3)


def frequencies(temperature: float, seeds: int, top_k: int = 0, top_p: float = 1.0) -> Draws:
    """Many draws of ten tokens, for statistics: neighbouring seeds, 32 steps each."""
    state = StepState(temperature=temperature, top_k=top_k, top_p=top_p)
    return Draws(f"dice at {temperature}", DICE, tuple(replace(state, seed=seed) for seed in range(seeds)), 32)
