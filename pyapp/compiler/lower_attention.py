"""Kernels for a decoder's attention over the cache, split over the context while decoding."""

from __future__ import annotations

from math import ceil

from ..gpu.limits import DeviceLimits
from ..gpu.plan import Binding, Dispatch, Shader
from .graph import DTYPE_BYTES, Graph, Op
from .products import WORKGROUP, lanes_for

MIN_SPLIT = 64
SPLIT_CHUNK = 64
"""Positions that ``attention_split.wgsl`` takes at a time."""


def half_cache(op: Op, graph: Graph) -> bool:
    """Whether the KV cache that an operation reads or writes, if any, is float16."""
    return "kv" in op.inputs and graph.tensors[op.inputs["kv"]].dtype == "f16"


def cache_bytes(op: Op, graph: Graph) -> int:
    """Bytes of one cached value."""
    return DTYPE_BYTES[graph.tensors[op.inputs["kv"]].dtype]


def lower_attention(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    heads, kv_heads, d, splits = (op.attrs[key] for key in ("heads", "kv_heads", "head_dim", "splits"))
    tokens = graph.tensors[op.inputs["q"]].shape[0]
    context = graph.tensors[op.inputs["kv"]].shape[0]
    params = {
        "HEADS": heads, "KV_HEADS": kv_heads, "D": d, "SPLITS": splits, "MIN_SPLIT": MIN_SPLIT,
        "SCALE": float(d**-0.5), "HALF_CACHE": half_cache(op, graph),
    }  # fmt: skip
    if splits > 1 and _splits_together(heads // kv_heads, d, limits):
        shader = Shader.of("attention_split", **params, WG=max(SPLIT_CHUNK, d), CHUNK=SPLIT_CHUNK)
        groups = kv_heads * splits
    else:
        lanes = lanes_for(limits, 32)
        shader = Shader.of("attention", **params, LANES=lanes, LOG_LANES=lanes.bit_length() - 1, WG=WORKGROUP)
        groups = ceil(heads * splits / (WORKGROUP // lanes))
    bindings = (
        Binding(0, op.inputs["q"], "read_write"),
        Binding(1, op.inputs["kv"], "read_write"),
        Binding(2, op.output, "read_write"),
        Binding(3, "state", "read"),
    )
    # Bytes and operations at full context: what a step reads grows with its position.
    return [
        Dispatch(
            op.name,
            shader,
            bindings,
            (groups, tokens, 1),
            bytes=context * 2 * kv_heads * d * cache_bytes(op, graph) + tokens * heads * d * 8,
            flops=4 * tokens * context * heads * d,
            per_tile=tokens > 1,
        )
    ]


def _splits_together(sharers: int, d: int, limits: DeviceLimits) -> bool:
    """Whether ``attention_split.wgsl`` does heads of ``d`` with so many to a head of the cache on a device."""
    workgroup = max(SPLIT_CHUNK, d)
    nbytes = 4 * sharers * (d + workgroup + SPLIT_CHUNK) + 16 * workgroup
    fits = workgroup <= limits.max_invocations and nbytes <= limits.max_workgroup_storage
    return not limits.software and d in (32, 64, 128, 256) and fits


def lower_attention_merge(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    heads, d, splits = op.attrs["heads"], op.attrs["head_dim"], op.attrs["splits"]
    shader = Shader.of("attention_merge", HEADS=heads, D=d, SPLITS=splits, MIN_SPLIT=MIN_SPLIT, WG=WORKGROUP)
    width = heads * d // 32
    bindings = (
        Binding(0, op.inputs["x"], "read_write"),
        Binding(1, op.output, "read_write"),
        Binding(2, "state", "read"),
    )
    return [Dispatch(op.name, shader, bindings, (ceil(width / WORKGROUP), 1, 1), bytes=width * 12, flops=width)]
