"""Cases of matrix products: formats, shapes, what is fused before and behind them, weights in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from pyapp.compiler.graph import CacheDtype
from pyapp.compiler.reference import StepState
from pyapp.weights.formats import FORMATS

from .case import EPS, Build, Case


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


def formats() -> Iterator[Case]:
    for fmt in FORMATS:
        yield linear(f"{fmt}, one token, lanes share rows", fmt, 37, 96)
        yield linear(f"{fmt}, 5 of 6 tokens", fmt, 19, 96, tokens=6, count=5)


def shapes() -> Iterator[Case]:
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


def digits() -> Iterator[Case]:
    """Products in whole numbers, which many rows have: with subgroups of 4 rows of up to 12 blocks have their inputs
    asked for first, and longer ones the weights; with larger ones more have (``test_products.py``)."""
    for fmt, k, more in (
        ("s4", 32, {}), ("q4", 96, {"bias": True}), ("s4", 2144, {}),
        ("q4", 64, {"prologue": "rms_norm", "epilogue": "silu_mul"}), ("s4", 160, {"prologue": "rms_norm"}),
        ("s4", 256, {"epilogue": "residual"}), ("q4", 416, {"prologue": "rms_norm", "epilogue": "silu_mul"}),
    ):  # fmt: skip
        words = "".join(f", {name}" for name in more)
        yield linear(f"{fmt}, 8202 rows of {k} in digits{words}", fmt, 8202, k, packed_dot=True, **more)
    yield linear("q4, the vocabulary's rows in digits", "q4", 32770, 64, prologue="rms_norm", packed_dot=True)
    # Each 16 inputs have a scale of their own: scales that differ, far from one, and of zeros alone.
    apart = np.float32(2.0) ** (np.arange(33 * 2) % 5 - 2)
    for words, scales in (("differ", apart), ("are tiny", apart * 1e-24), ("are huge", apart * 1e24)):
        case = linear(f"s4, 33 blocks in digits whose scales {words}", "s4", 8192, 1056, packed_dot=True)
        factors = np.repeat(scales.astype(np.float32), 16)
        factors[16:32] = 0.0
        yield replace(case, values={**case.values, "x": case.values["x"] * factors})


def prologues_and_epilogues() -> Iterator[Case]:
    some, vector_formats, chunk_formats = cycle(FORMATS), cycle(FORMATS), cycle(FORMATS)
    for i, prologue in enumerate(("", "rms_norm", "attention_merge")):
        for j, epilogue in enumerate(("", "residual", "silu_mul", "rope_cache")):
            n = {"silu_mul": 2 * 45, "rope_cache": 4 * 32}.get(epilogue, 45)
            bias, words = (i + j) % 2 == 1, f"{prologue or 'plain'} to {epilogue or 'store'}"
            bias_words = ", bias" if bias else ""
            yield linear(
                f"{words}, one token{bias_words}", next(some), n, 96,
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
                    f"{words}, 6 of 7 tokens{'' if bias else ', bias'}", next(some), n, 96, tokens=7, count=6,
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
    for position in (560, 2100):  # 9 and 32 parts
        yield linear(
            f"heads of 64 merged out of 32 parts at {position} as on hardware", "q8", 20, 256,
            prologue="attention_merge", head_dim=64, position=position, splits=32, hardware=True,
        )  # fmt: skip
    yield linear(
        "heads of 32 merged, little workgroup memory as on hardware", "q4", 20, 1536, prologue="attention_merge",
        position=1500, splits=20, hardware=True, workgroup_storage=16384,
    )  # fmt: skip
    # More of them than a workgroup weighs in one round.
    yield linear(
        "96 heads of 32 merged out of 32 parts as on hardware", "q4", 20, 3072, prologue="attention_merge",
        position=2100, splits=32, hardware=True,
    )  # fmt: skip
    yield linear("heads of 64 merged", "q8", 20, 256, prologue="attention_merge", head_dim=64, position=1500)


def pieces() -> Iterator[Case]:
    yield linear("f32 in pieces, bias", "f32", 200, 64, bias=True, max_binding=64 * 64 * 4)
    yield linear("q4 in pieces, 6 of 7 tokens", "q4", 200, 256, tokens=7, count=6, max_binding=64 * 128)
    yield linear("s4 in pieces of odd blocks, bias", "s4", 300, 96, bias=True, max_binding=128 * 48)
    yield linear("q8 in pieces, residual", "q8", 130, 96, epilogue="residual", max_binding=128 * 96)
    yield linear("g8 in pieces, norm", "g8", 130, 64, prologue="rms_norm", max_binding=64 * 64 + 255)
