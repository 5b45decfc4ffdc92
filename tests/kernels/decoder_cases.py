"""Cases for the decoder's kernels: small graphs with seeded values, the same in Pyodide and under CPython.

Not the full product of formats, prologues, epilogues and shapes, but a set in which each appears with several of the
others, at sizes that fit nothing: rows that no workgroup divides, K of one block and of an odd number of blocks, chunks
whose last tile is partial, contexts on both sides of where attention is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.compiler.graph import CacheDtype, Graph, GraphBuilder
from pyapp.compiler.reference import StepState
from pyapp.gpu.limits import DeviceLimits
from pyapp.weights.formats import FORMATS, section_sizes, unpack

Array = NDArray[Any]
TOLERANCE = 1e-9
"""Of the normalised squared error. Both sides have exactly the same weights, so only float32's rounding differs."""
HALF_TOLERANCE = 1e-6
"""The same of float16 that was written: a value at the border of two halves may go to either."""
EPS = 0.05
"""Far more than models have, so that it shows."""


@dataclass(frozen=True)
class Packed:
    """A packed matrix and, by ``values``, what it means."""

    fmt: str
    n: int
    k: int
    quants: Array
    scales: Array

    @property
    def values(self) -> Array:
        return unpack(self.fmt, self.quants, self.scales, self.n, self.k)


@dataclass(frozen=True)
class Case:
    """A graph, what it runs on, and the step states that it runs at. ``outputs``: the tensors to compare.

    ``values`` are inputs, caches and what an output holds before the run. ``lanes`` is the subgroup size to lower for
    (1: a device without subgroups); ``hardware`` lowers as for a GPU that is none in software; ``workgroup_storage``:
    bytes, where it is less than the device's.
    """

    name: str
    graph: Graph
    values: Mapping[str, Array]
    weights: Mapping[str, Packed]
    outputs: tuple[str, ...] = ("y",)
    states: tuple[StepState, ...] = (StepState(),)
    lanes: int = 4
    hardware: bool = False
    max_binding: int = 0
    workgroup_storage: int = 0

    def limits(self, limits: DeviceLimits) -> DeviceLimits:
        lanes = self.lanes if self.lanes > 1 else 0
        return replace(
            limits,
            subgroup=lanes,
            subgroup_max=lanes,
            software=not self.hardware,
            max_binding=self.max_binding or limits.max_binding,
            max_workgroup_storage=self.workgroup_storage or limits.max_workgroup_storage,
        )

    def weight(self, name: str) -> Array:
        """A weight as the reference wants it: in the graph's shape."""
        return self.weights[name].values.reshape(self.graph.tensors[name].shape)


def cases() -> Iterator[Case]:
    yield from _formats()
    yield from _shapes()
    yield from _prologues_and_epilogues()
    yield from _pieces()
    yield from _attention()
    yield from _attention_of_a_chunk()
    yield from _rope_cache()
    yield from _half_cache()
    yield from _embed()
    yield from _the_rest()


def random_weight(random: np.random.Generator, fmt: str, n: int, k: int) -> Packed:
    """Blocks with every bit of the quants in use, scales of both signs and minima that do not cancel them."""
    quants_bytes, scales_bytes = section_sizes(fmt, n, k)
    if fmt in ("f16", "bf16", "f32"):
        values = (random.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
        if fmt == "bf16":
            quants = (values.view(np.uint32) >> 16).astype(np.uint16)
        else:
            quants = values.astype(np.float16 if fmt == "f16" else np.float32)  # type: ignore[assignment]
        return Packed(fmt, n, k, quants.reshape(-1).view(np.uint8), np.zeros(0, np.uint8))
    scales = np.zeros(scales_bytes, np.uint8)
    blocks = n * k // 32 * (2 if fmt == "g8" else 1)
    size = random.uniform(0.3, 1.0, blocks) * random.choice([-1, 1], blocks) / np.sqrt(k)
    levels = 15 if fmt in ("s4", "q4", "g4") else 127
    factors = [size / levels] if fmt in ("s4", "q8") else [size / levels, random.uniform(-1, 1, blocks) / np.sqrt(k)]
    wide = np.float32 if fmt in ("g4", "g8") else np.float16
    raw = np.stack(factors, axis=1).astype(wide).reshape(-1).view(np.uint8)
    scales[: raw.size] = raw
    return Packed(fmt, n, k, random.integers(0, 256, quants_bytes, np.uint8), scales)


def vector(values: Array) -> Packed:
    """A norm's gain or a bias: one row of float32."""
    return Packed("f32", 1, values.size, values.astype(np.float32).reshape(-1).view(np.uint8), np.zeros(0, np.uint8))


@dataclass
class Build:
    """Collects a case: each tensor with its seeded contents."""

    name: str
    graph: GraphBuilder = field(init=False)
    random: np.random.Generator = field(init=False)
    values: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Packed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = GraphBuilder(self.name)
        self.graph.tensor("state", (64,), "state", dtype="u32")
        self.random = np.random.default_rng(sum(i * ord(c) for i, c in enumerate(self.name, 1)))

    def input(self, name: str, shape: tuple[int, ...], kind: Any = "input", scale: float = 1.0) -> str:
        self.values[name] = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return self.graph.tensor(name, shape, kind)

    def weight(self, name: str, fmt: str, n: int, k: int) -> str:
        self.weights[name] = random_weight(self.random, fmt, n, k)
        return self.graph.tensor(name, (n, k), "weight", fmt=fmt)

    def cache(self, name: str, shape: tuple[int, int], dtype: CacheDtype) -> str:
        """A KV cache that holds something."""
        self.values[name] = self.random.standard_normal(shape).astype(np.float16 if dtype == "f16" else np.float32)
        return self.graph.tensor(name, shape, "cache", dtype=dtype)

    def vector(self, name: str, size: int, around: float = 0.0) -> str:
        self.weights[name] = vector(self.random.standard_normal(size) * 0.5 + around)
        return self.graph.tensor(name, (size,), "weight")

    def rope(self, context: int, d: int) -> str:
        angles = self.random.uniform(-np.pi, np.pi, (context, d // 2))
        self.values["rope"] = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
        return self.graph.tensor("rope", (context, d // 2, 2), "cache")

    def case(self, **more: Any) -> Case:
        return Case(self.name, self.graph.build(), self.values, self.weights, **more)


def linear(
    name: str, fmt: str, n: int, k: int, *, tokens: int = 1, count: int | None = None, prologue: str = "",
    epilogue: str = "", bias: bool = False, x_row: str = "", position: int = 5, head_dim: int = 32,
    kv: CacheDtype = "f32", splits: int = 16, **more: Any,
) -> Case:  # fmt: skip
    """One matrix product. With a rope_cache epilogue N is (2 + 1 + 1) heads; with an attention_merge prologue K is the
    heads of a split attention that runs before it."""
    b = Build(name)
    attrs: dict[str, Any] = {"prologue": prologue, "epilogue": epilogue, "x_row": x_row, "eps": EPS}
    roles = {"weight": b.weight("w", fmt, n, k)}
    if prologue == "attention_merge":
        heads = k // head_dim
        merge = {"heads": heads, "kv_heads": 1, "head_dim": head_dim, "splits": splits}
        b.input("q", (1, k), scale=3.0)
        b.cache("attended", (position + 3, 2 * head_dim), kv)
        roles["x"] = b.graph.op("attention", "parts", (heads, splits, head_dim + 4), merge, q="q", kv="attended")
        attrs |= merge
    else:
        roles["x"] = b.input("x", (tokens, k))
    if prologue == "rms_norm":
        roles["gain"] = b.vector("gain", k, around=1.0)
    if bias:
        roles["bias"] = b.vector("bias", n)
    outputs: tuple[str, ...] = ("y",)
    rows = 1 if x_row else tokens
    shape = (rows, n)
    if epilogue == "silu_mul":
        shape = (rows, n // 2)
    if epilogue == "residual":
        roles["residual"] = b.input("y", shape)
    if epilogue == "rope_cache":
        d = n // 4
        attrs |= {"head_dim": d, "q_rows": 2 * d, "kv_rows": d}
        shape, outputs = (rows, 2 * d), ("y", "kv")
        roles |= {
            "kv": b.cache("kv", (position + tokens + 3, 2 * d), kv),
            "rope": b.rope(position + tokens + 3, d),
        }
    if epilogue != "residual":
        b.graph.tensor("y", shape, "output")
    b.graph.op("linear", "y", shape, attrs, **roles)
    states = (StepState(position=position, count=count or tokens),)
    return b.case(outputs=outputs, states=states, **more)


def _formats() -> Iterator[Case]:
    for fmt in FORMATS:
        yield linear(f"{fmt}, one token, lanes share rows", fmt, 37, 96)
        yield linear(f"{fmt}, 5 of 6 tokens", fmt, 19, 96, tokens=6, count=5)


def _shapes() -> Iterator[Case]:
    for lanes in (1, 2, 4):
        yield linear(f"q4, three workgroups, {lanes} lanes", "q4", 1100 // lanes, 576, lanes=lanes)
        yield linear(f"q4, 7 of 9 tokens, {lanes} lanes", "q4", 70, 576, tokens=9, count=7, lanes=lanes, hardware=True)
        yield linear(f"s4, three workgroups, {lanes} lanes", "s4", 1100 // lanes, 608, lanes=lanes)
        yield linear(f"s4, 7 of 9 tokens, {lanes} lanes", "s4", 70, 608, tokens=9, count=7, lanes=lanes, hardware=True)
    yield linear("q4, a row of 18 blocks as on hardware", "q4", 70, 576, hardware=True)
    yield linear("s4, a row of 19 blocks as on hardware", "s4", 71, 608, hardware=True)
    # More inputs than are in workgroup memory at a time, and more weights than are asked for at once.
    yield linear("s4, a row of 67 blocks as on hardware", "s4", 41, 2144, hardware=True)
    yield linear("q8, a normed row of 130 blocks as on hardware", "q8", 39, 4160, prologue="rms_norm", hardware=True)
    yield linear("f32, a normed row of 40 blocks as on hardware", "f32", 9, 1280, prologue="rms_norm", hardware=True)
    # Each of the usual shapes, by rows; of a chunk the wide tile too.
    for n, k in ((900, 64), (2080, 64), (8200, 64), (32800, 32)):
        yield linear(f"q4, {n} rows as on hardware", "q4", n, k, hardware=True)
    yield linear("q4, 33 tokens, 2080 rows as on hardware", "q4", 2080, 64, tokens=33, hardware=True)
    yield linear("s4, one block, odd rows", "s4", 5, 32)
    yield linear("q4, one block", "q4", 5, 32)
    yield linear("q8, long rows", "q8", 33, 1536)
    yield linear("g8, one row", "g8", 1, 64)
    yield linear("q4, one of many tokens", "q4", 66, 64, tokens=8, count=1)


def _prologues_and_epilogues() -> Iterator[Case]:
    formats, vector_formats, chunk_formats = cycle(FORMATS), cycle(FORMATS), cycle(FORMATS)
    for i, prologue in enumerate(("", "rms_norm", "attention_merge")):
        for j, epilogue in enumerate(("", "residual", "silu_mul", "rope_cache")):
            n = {"silu_mul": 2 * 45, "rope_cache": 4 * 32}.get(epilogue, 45)
            bias, words = (i + j) % 2 == 1, f"{prologue or 'plain'} to {epilogue or 'store'}"
            bias_words = ", bias" if bias else ""
            yield linear(
                f"{words}, one token{bias_words}", next(formats), n, 96,
                prologue=prologue, epilogue=epilogue, bias=bias, position=130, lanes=1 if j == i else 4,
            )  # fmt: skip
            yield linear(
                f"{words}, one token as on hardware{'' if bias else ', bias'}", next(vector_formats), n, 96,
                prologue=prologue, epilogue=epilogue, bias=not bias, position=130, hardware=True,
            )  # fmt: skip
            if prologue != "attention_merge":
                yield linear(
                    f"{words}, 40 of 42 tokens as on hardware{'' if bias else ', bias'}", next(chunk_formats), n, 96,
                    tokens=42, count=40, prologue=prologue, epilogue=epilogue, bias=not bias, hardware=True,
                )  # fmt: skip
                yield linear(
                    f"{words}, 6 of 7 tokens{'' if bias else ', bias'}", next(formats), n, 96, tokens=7, count=6,
                    prologue=prologue, epilogue=epilogue, bias=not bias,
                )  # fmt: skip
    for prologue in ("", "rms_norm"):
        for hardware in (False, True):
            words = f"last row {prologue}{' as on hardware' if hardware else ''}"
            yield linear(words, "q4", 45, 96, tokens=7, count=5, prologue=prologue, x_row="last", hardware=hardware)
    yield linear("heads of 128 turned", "q4", 512, 64, epilogue="rope_cache", position=0)
    for position in (63, 1500):
        yield linear(
            f"heads of 64 merged at {position} as on hardware", "q8", 20, 256, prologue="attention_merge", head_dim=64,
            position=position, hardware=True,
        )  # fmt: skip
    yield linear(
        "heads of 64 merged out of 32 parts as on hardware", "q8", 20, 256, prologue="attention_merge", head_dim=64,
        position=2100, splits=32, hardware=True,
    )  # fmt: skip
    yield linear(
        "heads of 32 merged, little workgroup memory as on hardware", "q4", 20, 1536, prologue="attention_merge",
        position=1500, splits=20, hardware=True, workgroup_storage=16384,
    )  # fmt: skip
    yield linear("heads of 64 merged", "q8", 20, 256, prologue="attention_merge", head_dim=64, position=1500)


def _pieces() -> Iterator[Case]:
    yield linear("f32 in pieces, bias", "f32", 200, 64, bias=True, max_binding=64 * 64 * 4)
    yield linear("q4 in pieces, 6 of 7 tokens", "q4", 200, 256, tokens=7, count=6, max_binding=64 * 128)
    yield linear("s4 in pieces of odd blocks, bias", "s4", 300, 96, bias=True, max_binding=128 * 48)
    yield linear("q8 in pieces, residual", "q8", 130, 96, epilogue="residual", max_binding=128 * 96)
    yield linear("g8 in pieces, norm", "g8", 130, 64, prologue="rms_norm", max_binding=64 * 64 + 255)


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


def _attention() -> Iterator[Case]:
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


def _attention_of_a_chunk() -> Iterator[Case]:
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


def _rope_cache() -> Iterator[Case]:
    yield rope_cache("turn and store", 4, 2, 64, norm=False)
    yield rope_cache("turn and store, 5 of 6 tokens", 3, 1, 32, norm=False, tokens=6, count=5)
    yield rope_cache("normalise, turn and store", 2, 1, 128, norm=True)
    yield rope_cache("normalise, turn and store, more heads than a workgroup", 60, 5, 32, norm=True, tokens=6, count=6)


def _half_cache() -> Iterator[Case]:
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
