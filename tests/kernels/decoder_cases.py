"""Cases for the decoder's kernels: small graphs with seeded values, the same in Pyodide and under CPython.

Not the full product of formats, prologues, epilogues and shapes, but a set in which each appears with several of the
others, at sizes that fit nothing: rows that no workgroup divides, K of one block and of an odd number of blocks, chunks
whose last tile is partial, contexts on both sides of where attention is split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pyapp.compiler.reference import StepState

from . import attention_cases, linear_cases
from .case import EPS, Build, Case


def cases() -> Iterator[Case]:
    yield from linear_cases.formats()
    yield from linear_cases.shapes()
    yield from linear_cases.digits()
    yield from linear_cases.prologues_and_epilogues()
    yield from linear_cases.pieces()
    yield from attention_cases.of_a_step()
    yield from attention_cases.of_a_chunk()
    yield from attention_cases.turned_and_stored()
    yield from attention_cases.half_cache()
    yield from _embed()
    yield from _the_rest()


def embed(name: str, fmt: str, vocab: int, k: int, *, tokens: int = 1, count: int = 1, **more: Any) -> Case:
    b = Build(name)
    b.weight("table", fmt, vocab, k)
    ids = b.random.integers(0, vocab, max(tokens, 6), np.uint32)
    ids[:3] = (vocab - 1, 0, min(64, vocab - 1))  # the last row, the first, and the first of a second piece
    b.values["ids"] = ids[:tokens]
    b.graph.tensor("ids", (tokens,), "input", dtype="u32")
    b.graph.tensor("y", (tokens, k), "output")
    b.graph.op("embed", "y", (tokens, k), ids="ids", table="table")
    chosen = (int(each) for each in ids[:4])
    states = tuple(StepState(token=id, count=count) for id in chosen) if tokens == 1 else (StepState(count=count),)
    return b.case(states=states, **more)


def _embed() -> Iterator[Case]:
    yield embed("embed the state's token", "q8", 100, 96)
    yield embed("embed 5 of 6 ids", "q4", 100, 2080, tokens=6, count=5)
    yield embed("embed from pieces", "f32", 200, 64, tokens=6, count=6, max_binding=64 * 64 * 4)
    yield embed("embed the state's token from pieces", "g4", 130, 64, max_binding=64 * 32)
    yield embed("embed 5 of 6 ids from pieces of odd blocks", "s4", 300, 96, tokens=6, count=5, max_binding=128 * 48)
    for fmt in ("s4", "g8", "f16", "bf16"):
        yield embed(f"embed from {fmt}", fmt, 40, 64)


def _the_rest() -> Iterator[Case]:
    for tokens, count, h, lanes in ((1, 1, 96, 4), (6, 3, 576, 1), (70, 69, 32, 2)):
        b = Build(f"rms_norm of {count} of {tokens} x {h}, {lanes} lanes")
        b.input("x", (tokens, h), scale=4.0)
        b.vector("gain", h, around=1.0)
        b.graph.tensor("y", (tokens, h), "output")
        b.graph.op("rms_norm", "y", (tokens, h), {"eps": EPS}, x="x", gain="gain")
        yield b.case(states=(StepState(count=count),), lanes=lanes)
    for tokens, count, width in ((1, 1, 70), (6, 5, 130)):
        b = Build(f"add {count} of {tokens} x {width}")
        b.input("x", (tokens, width))
        b.input("y", (tokens, width))
        b.graph.op("add", "y", (tokens, width), x="x", residual="y")
        yield b.case(states=(StepState(count=count),))
        b = Build(f"silu_mul of {count} of {tokens} x {width}")
        b.input("x", (tokens, 2 * width), scale=3.0)
        b.values["x"][0, :4] = (-200, 200, -88.8, 0)  # exp overflows: silu goes to 0, to v, and stays finite
        b.graph.tensor("y", (tokens, width), "output")
        b.graph.op("silu_mul", "y", (tokens, width), x="x")
        yield b.case(states=(StepState(count=count),))
