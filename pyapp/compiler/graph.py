"""A model as a list of named operations over named tensors.

A graph says what is computed, not how: passes (``passes.py``) fuse it, ``memory.py`` gives its activations their
places, ``lowering.py`` picks kernels. ``reference.py`` runs it in NumPy, fused or not, and is the tests' oracle.
A KV cache may be float16: what is written is rounded to it, the nearest even on a tie.

Operations (inputs → outputs; T = tokens or pixels, all float32 unless said):

    embed           ids [T] u32, table [V, H] → x [T, H]
    rms_norm        x [T, H], gain [H] → y [T, H]                      attrs eps
    linear          x [T, K], weight [N, K], (bias [N]), (gain [K]), (residual [T, N]) → y [T, N]
                    attrs prologue: "" | "rms_norm" (eps) | "attention_merge";
                          epilogue: "" | "residual" | "silu_mul" (N = 2F, gate rows first → y [T, F]) | "rope_cache"
    head_norm_rope_cache / rope_cache
                    qkv [T, (heads + 2·kv_heads)·D], k_cache, v_cache [C, kv_heads·D] → q [T, heads·D]
                    (q and k rotated, k and v written at their positions; the former with q_gain, k_gain [D] first)
    attention       q, k_cache, v_cache → partials [T, heads, splits, D + 4]; splits = 1: y [T, heads·D]
    attention_merge partials → y [T, heads·D]
    add, silu_mul   elementwise
    last_row        x [T, H] → the row of the last valid token [1, H]
    sample          logits [1, V] → the state buffer's token, drawn among the finite logits; without one NO_TOKEN
    conv            x [h, w, C] (kernel 1: or [P, C]), weight, bias, (residual as y) → y [h', w', C'] (or [P, C'])
                    weight: groups 1 [kernel²·C, C'], depthwise (groups C) [kernel², C]; taps in rows, then inputs
                    attrs kernel, stride, pad (top, left, bottom, right), groups, activation ("relu6", applied last),
                          normalise (mean, scale) where x is u8 and enters as (x - mean) / scale; zeros pad after that
    activation      x → y                                              attrs activation
    sum             a, b → y, all of one shape (a tensor of its own, where ``add`` adds in place)
    global_pool     x [h, w, C] → y [1, C], the mean
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

Kind = Literal["activation", "weight", "cache", "input", "output", "state"]
CacheDtype = Literal["f32", "f16"]
"""How a KV cache holds its values; what is computed with them is float32 either way."""
DTYPE_BYTES = {"f32": 4, "u32": 4, "f16": 2, "u8": 1}
NO_TOKEN = 0xFFFFFFFF
"""What a step samples where no logit is a number. It is in no vocabulary, and ends the sequence."""


@dataclass(frozen=True)
class Tensor:
    """A named value. ``kind`` decides where it lives: ``weight`` in a weights slab under this very name,
    ``cache`` in the KV region, ``activation``/``input``/``output`` in the workspace, ``state`` in the step state.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind = "activation"
    dtype: Literal["f32", "u32", "f16", "u8"] = "f32"
    fmt: str = "f32"
    """A weight's kernel format: s4, q4, g4, q8, g8, f16, bf16 or f32 (``weights/packing.py``)."""
    pieces: tuple[tuple[int, int], ...] = ()
    """(first row, rows) of the runs of a weight's rows that lie together in memory; empty: all of them do."""

    @property
    def nbytes(self) -> int:
        """Bytes of an activation, cache, input or output (a weight's size is its layout's business)."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Op:
    """One operation. ``inputs`` maps a role ("x", "weight", "gain", …) to a tensor's name."""

    kind: str
    name: str
    inputs: Mapping[str, str]
    output: str
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def with_(self, **changes: Any) -> Op:
        return replace(self, **changes)


@dataclass(frozen=True)
class Graph:
    """Operations in execution order over ``tensors``; immutable, so that a pass returns a new one."""

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]

    @cached_property
    def _readers(self) -> dict[str, list[Op]]:
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs.values()):
                found.setdefault(name, []).append(op)
        return found

    def readers(self, tensor: str) -> list[Op]:
        """The operations that read it, in order."""
        return self._readers.get(tensor, [])

    def producer(self, tensor: str) -> Op | None:
        return next((op for op in self.ops if op.output == tensor), None)

    def with_ops(self, ops: Iterable[Op], extra: Mapping[str, Tensor] | None = None) -> Graph:
        """The graph with other operations; tensors that nothing names any more are dropped."""
        kept = tuple(ops)
        used = {name for op in kept for name in (*op.inputs.values(), op.output)}
        tensors = {**self.tensors, **(extra or {})}
        return Graph(self.name, {name: tensor for name, tensor in tensors.items() if name in used}, kept)


class GraphBuilder:
    """Collects operations; each method that adds one returns the name of its output tensor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []

    def tensor(self, name: str, shape: tuple[int, ...], kind: Kind = "activation", **more: Any) -> str:
        self.tensors[name] = Tensor(name, shape, kind, **more)
        return name

    def op(
        self,
        kind: str,
        output: str,
        shape: tuple[int, ...],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        **inputs: str,
    ) -> str:
        """Adds an operation named ``name`` (else after its output); names are unique within a graph."""
        if output not in self.tensors:
            self.tensor(output, shape)
        self.ops.append(Op(kind, name or output, dict(inputs), output, dict(attrs or {})))
        return output

    def build(self) -> Graph:
        return Graph(self.name, dict(self.tensors), tuple(self.ops))
