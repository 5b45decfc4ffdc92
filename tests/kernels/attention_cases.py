"""Cases of attention, of what turns and stores its keys and values, and of a cache of float16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pyapp.compiler.graph import CacheDtype
from pyapp.compiler.reference import StepState

from .case import EPS, Build, Case
from .linear_cases import linear


def attention(
    name: str, heads: int, kv_heads: int, d: int, splits: int, positions: tuple[int, ...], *, tokens: int = 1,
    count: int | None = None, scale: float = 3.0, negative: bool = False, kv: CacheDtype = "f32", **more: Any,
) -> Case:  # fmt: skip
    """Attention at several positions; when split, with the kernel that merges the parts. ``negative``: scores are."""
    b = Build(name)
    b.input("q", (tokens, heads * d), scale=scale)
    b.cache("kv", (max(positions) + tokens + 2, 2 * kv_heads * d), kv)
    if negative:
        b.values["q"], b.values["kv"] = np.abs(b.values["q"]), -np.abs(b.values["kv"])
    attrs = {"heads": heads, "kv_heads": kv_heads, "head_dim": d, "splits": splits}
    b.graph.tensor("y", (tokens, heads * d), "output")
    if splits > 1:
        b.graph.op("attention", "parts", (heads, splits, d + 4), attrs, q="q", kv="kv")
        b.graph.op("attention_merge", "y", (1, heads * d), attrs, x="parts")
    else:
        b.graph.op("attention", "y", (tokens, heads * d), attrs, q="q", kv="kv")
    states = tuple(StepState(position=position, count=count or tokens) for position in positions)
    return b.case(states=states, **more)


def of_a_step() -> Iterator[Case]:
    # A part has 64 positions at least, so up to 64 there is one; from 1,024 on the sixteen parts grow.
    border = (0, 62, 63, 64, 127, 128, 1022, 1023, 1024, 1100)
    yield attention("split attention, nine heads of 64 on three", 9, 3, 64, 16, border)
    for heads, kv_heads, d, positions in (
        (9, 3, 64, border), (4, 4, 32, (0, 63, 64, 300)), (12, 2, 128, (1, 65, 1100)), (2, 1, 256, (63, 200))
    ):  # fmt: skip
        words = f"split attention, {heads} heads of {d} on {kv_heads} as on hardware"
        yield attention(words, heads, kv_heads, d, 16, positions, hardware=True)
    words = "split attention, nine heads of 64 on three, 32 parts as on hardware"
    yield attention(words, 9, 3, 64, 32, (1500, 2100), hardware=True)
    words = "split attention, nine heads of 64 on three, no subgroups as on hardware"
    yield attention(words, 9, 3, 64, 16, (63, 64, 300), lanes=1, hardware=True)
    words = "float16 cache, split, nine heads of 64 on three as on hardware"
    yield attention(words, 9, 3, 64, 16, (63, 1100), kv="f16", hardware=True)
    yield attention(
        "split attention, scores far below zero as on hardware", 2, 1, 32, 16, (250, 1500), scale=60.0, negative=True,
        hardware=True,
    )  # fmt: skip
    yield attention(
        "split attention, scores in the hundreds as on hardware", 2, 1, 32, 16, (250, 1500), scale=60.0, hardware=True
    )
    yield attention("split attention, heads of 32 without subgroups", 4, 4, 32, 16, (0, 63, 64, 300), lanes=1)
    yield attention("split attention, heads of 128 on one", 4, 1, 128, 16, (1, 65, 200), lanes=2)
    yield attention("split attention, scores in the hundreds", 2, 1, 32, 16, (250,), scale=60.0)
    yield attention("split attention, scores far below zero", 2, 1, 32, 16, (250,), scale=60.0, negative=True)
    yield attention("attention, scores far below zero", 2, 1, 32, 1, (0, 90), scale=60.0, negative=True)
    yield attention("attention, 5 of 6 tokens", 4, 2, 64, 1, (0, 3, 150), tokens=6, count=5)
    yield attention("attention without subgroups", 2, 1, 128, 1, (0, 40), tokens=5, count=4, lanes=1)
    yield attention("attention, one token", 3, 3, 32, 1, (0, 1, 2, 3, 4, 90), lanes=2)


def of_a_chunk() -> Iterator[Case]:
    """In tiles, as on hardware: counts around a tile of tokens, contexts that end in the middle of a tile of keys."""

    def chunk(
        words: str, heads: int, kv_heads: int, d: int, tokens: int, at: tuple[tuple[int, int], ...], **more: Any
    ) -> Case:
        name = f"attention of a chunk, {heads} heads of {d} on {kv_heads}{words}"
        case = attention(name, heads, kv_heads, d, 1, tuple(p for p, _ in at), tokens=tokens, hardware=True, **more)
        return replace(case, states=tuple(StepState(position=position, count=count) for position, count in at))

    yield chunk("", 9, 3, 64, 202, ((0, 200), (1, 32), (31, 1), (255, 33)))
    yield chunk(", scores far below zero", 9, 3, 64, 6, ((0, 5), (250, 5)), scale=60.0, negative=True)
    yield chunk(", scores in the hundreds", 9, 3, 64, 6, ((0, 5), (250, 5)), scale=60.0)
    yield chunk(", float16 cache", 9, 3, 64, 33, ((0, 33), (255, 31)), kv="f16")
    yield chunk("", 4, 4, 32, 70, ((0, 32), (1, 70), (255, 31)))
    yield chunk("", 2, 1, 256, 6, ((0, 5), (63, 6)))
    words = ", little workgroup memory"
    yield chunk(words, 12, 2, 128, 33, ((0, 33), (1000, 2)), workgroup_storage=16384)


def rope_cache(
    name: str, heads: int, kv_heads: int, d: int, *, norm: bool, tokens: int = 1, count: int = 1, scale: float = 1.0,
    kv: CacheDtype = "f32",
) -> Case:  # fmt: skip
    b = Build(name)
    position, context = 7, 20
    attrs = {"heads": heads, "kv_heads": kv_heads, "head_dim": d, "eps": EPS}
    roles = {"qkv": b.input("qkv", (tokens, (heads + 2 * kv_heads) * d), scale=scale), "rope": b.rope(context, d)}
    roles["kv"] = b.cache("kv", (context, 2 * kv_heads * d), kv)
    if norm:
        roles |= {"q_gain": b.vector("q_gain", d, around=1.0), "k_gain": b.vector("k_gain", d, around=1.0)}
    b.graph.tensor("y", (tokens, heads * d), "output")
    b.graph.op("head_norm_rope_cache" if norm else "rope_cache", "y", (tokens, heads * d), attrs, **roles)
    return b.case(outputs=("y", "kv"), states=(StepState(position=position, count=count),))


def turned_and_stored() -> Iterator[Case]:
    yield rope_cache("turn and store", 4, 2, 64, norm=False)
    yield rope_cache("turn and store, 5 of 6 tokens", 3, 1, 32, norm=False, tokens=6, count=5)
    yield rope_cache("normalise, turn and store", 2, 1, 128, norm=True)
    yield rope_cache("normalise, turn and store, more heads than a workgroup", 60, 5, 32, norm=True, tokens=6, count=6)


def half_cache() -> Iterator[Case]:
    """Every kernel that reads or writes the KV cache, with one of float16."""
    border = (0, 63, 64, 1023, 1024, 1100)
    yield attention("float16 cache, split, nine heads of 64 on three", 9, 3, 64, 16, border, kv="f16")
    yield attention("float16 cache, split, no subgroups", 4, 4, 32, 16, (0, 63, 64, 300), lanes=1, kv="f16")
    yield attention("float16 cache, split, heads of 128 on one", 4, 1, 128, 16, (1, 65, 200), lanes=2, kv="f16")
    yield attention("float16 cache, 5 of 6 tokens", 4, 2, 64, 1, (0, 3, 150), tokens=6, count=5, kv="f16")
    yield attention(
        "float16 cache, 4 of 5 tokens, no subgroups", 2, 1, 128, 1, (0, 40), tokens=5, count=4, lanes=1, kv="f16"
    )
    for norm in (False, True):
        words = "float16 cache, normalise, turn and store" if norm else "float16 cache, turn and store"
        yield rope_cache(words, 4, 2, 64, norm=norm, kv="f16")
        yield rope_cache(f"{words}, 5 of 6 tokens", 3, 1, 32, norm=norm, tokens=6, count=5, kv="f16")
    yield rope_cache("float16 cache, store what is too large", 2, 1, 64, norm=False, scale=60000.0, kv="f16")
    yield linear("float16 cache, product turned and stored", "q4", 128, 96, epilogue="rope_cache", kv="f16")
    yield linear(
        "float16 cache, normed product turned and stored, 6 of 7 tokens, bias", "s4", 128, 96, tokens=7, count=6,
        prologue="rms_norm", epilogue="rope_cache", bias=True, position=130, hardware=True, kv="f16",
    )  # fmt: skip
    yield linear(
        "float16 cache, product of halves stored, no subgroups",
        "f16",
        512,
        64,
        epilogue="rope_cache",
        lanes=1,
        kv="f16",
    )
    yield linear(
        "float16 cache, heads of 64 merged",
        "q8",
        20,
        256,
        prologue="attention_merge",
        head_dim=64,
        position=1500,
        kv="f16",
    )
