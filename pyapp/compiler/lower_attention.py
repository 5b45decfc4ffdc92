"""Which kernel computes attention over the cache, and in what shape.

One token's is split over the context (``attention_split.wgsl``), a chunk's goes in tiles of queries and keys
(``attention_chunk.wgsl``): both have keys in workgroup memory for all heads that share them. An emulated device, where
barriers are dear, and heads of other sizes have ``attention.wgsl``, which needs no workgroup memory at all.
"""

from __future__ import annotations

from math import ceil

from ..gpu.limits import DeviceLimits
from ..gpu.plan import Binding, Dispatch, Shader
from .graph import DTYPE_BYTES, Graph, Op
from .products import WORKGROUP, lanes_for, token_tile

MIN_SPLIT = 64
"""Positions that a part of the context has at least."""
MERGE = 32
"""Parts whose values in a column are on their way together while parts are merged, 8 times a power of two: all of them,
as one token's attention is split (``engine/language.py``)."""
CHUNK_QUERIES = 16
"""Queries of a workgroup of ``attention_chunk.wgsl``, a divisor of those in a tile of tokens. So few because each
workgroup goes through all keys: 256 tokens of SmolLM2 make 144 of them, and of 32 queries 72 with twice the work."""
CHUNK_ROWS = 2
"""Queries that an invocation of it scores and sums, four keys at a time."""
CHUNK_KEYS = ((64, 16), (64, 8), (32, 16), (32, 8))
"""(keys, vec4 of each) that it has in workgroup memory at a time, the best first: fewer barriers, more invocations. The
first two take more than the 16 KiB that a device has of which no more were asked."""


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
    sharers = heads // kv_heads
    params = {
        "HEADS": heads, "KV_HEADS": kv_heads, "D": d, "SCALE": float(d**-0.5), "HALF_CACHE": half_cache(op, graph),
    }  # fmt: skip
    if tokens > 1 and (shape := chunk_shape(d, limits)):
        tile = token_tile(limits)
        shader = Shader.of("attention_chunk", **params, **shape, TILE=tile)
        workgroups = kv_heads * (tile * sharers // CHUNK_QUERIES), ceil(tokens / tile), 1
    elif splits > 1 and (shape := split_shape(sharers, d, limits)):
        params |= {"SPLITS": splits, "MIN_SPLIT": MIN_SPLIT}
        shader = Shader.of("attention_split", **params, **shape)
        workgroups = kv_heads * splits, 1, 1
    else:
        # Of one lane it is compiled faster, and no slower where lanes are emulated.
        lanes = 1 if limits.software else lanes_for(limits, 32)
        params |= {"SPLITS": splits, "MIN_SPLIT": MIN_SPLIT}
        shader = Shader.of("attention", **params, LANES=lanes, LOG_LANES=lanes.bit_length() - 1, WG=WORKGROUP)
        workgroups = ceil(heads * splits / (WORKGROUP // lanes)), tokens, 1
    bindings = (
        Binding(0, op.inputs["q"], "read_write"),
        Binding(1, op.inputs["kv"], "read_write"),
        Binding(2, op.output, "read_write"),
        Binding(3, "state", "read"),
    )
    # At full context: what a step reads grows with its position. Bytes count once, as a product's weights do, though
    # each workgroup reads the context anew; each token sees one position more than the one before it.
    seen = tokens * context - tokens * (tokens - 1) // 2
    return [
        Dispatch(
            op.name,
            shader,
            bindings,
            workgroups,
            bytes=context * 2 * kv_heads * d * cache_bytes(op, graph) + tokens * heads * d * 8,
            flops=4 * seen * heads * d,
            per_tile=tokens > 1,
        )
    ]


def chunk_shape(d: int, limits: DeviceLimits) -> dict[str, int] | None:
    """The parameters of ``attention_chunk.wgsl`` for heads of ``d`` on a device; None where it does not do them."""
    if limits.software or d not in (32, 64, 128, 256):
        return None
    for keys, part in CHUNK_KEYS:
        workgroup = CHUNK_QUERIES // CHUNK_ROWS * (keys // 4)
        nbytes = 16 * (CHUNK_QUERIES * (d // 4 + 1 + keys // 4 + 1) + keys * (part + 1)) + 4 * CHUNK_ROWS * workgroup
        divides = d % keys == 0 and d % (4 * part) == 0
        if divides and workgroup <= limits.max_invocations and nbytes <= limits.max_workgroup_storage:
            return {"QUERIES": CHUNK_QUERIES, "ROWS": CHUNK_ROWS, "KEYS": keys, "SLICE": part, "WG": workgroup}
    return None


def split_shape(sharers: int, d: int, limits: DeviceLimits) -> dict[str, int] | None:
    """The parameters of ``attention_split.wgsl`` for heads of ``d``, so many to a head of the cache, on a device; None
    where it does not do them: in 16 KiB of workgroup memory, heads of 128 with ten and more to one of the cache."""
    if limits.software or d not in (32, 64, 128, 256):
        return None
    wide = max(128, d)
    for workgroup, chunk in ((wide, 64), (wide // 2, 32)):
        if split_fits(sharers, d, workgroup, chunk, limits):
            return split_params(workgroup, chunk, limits)
    return None


def split_params(workgroup: int, chunk: int, limits: DeviceLimits) -> dict[str, int]:
    """Those parameters for a workgroup that takes ``chunk`` positions at a time."""
    lanes = lanes_for(limits, 32)
    log_parts = (workgroup // chunk).bit_length() - 1
    return {
        "WG": workgroup,
        "CHUNK": chunk,
        "LANES": lanes,
        "LOG_LANES": lanes.bit_length() - 1,
        "LOG_KPARTS": log_parts,
    }


def split_fits(sharers: int, d: int, workgroup: int, chunk: int, limits: DeviceLimits) -> bool:
    """Whether a device has the invocations and the workgroup memory for ``attention_split.wgsl`` in such a shape."""
    lanes = lanes_for(limits, 32)
    scores = workgroup if lanes < workgroup // chunk else 0
    nbytes = sharers * (4 * (d + workgroup // lanes + chunk + scores) + 16 * workgroup)
    return workgroup <= limits.max_invocations and nbytes <= limits.max_workgroup_storage


def gang(splits: int, lanes: int) -> int:
    """Neighbours of ``merge_parts.wgsl`` that weigh the parts of a head, four each at a time: a power of two, of which
    a whole number of rounds takes all ``splits``."""
    together = 1
    while 2 * together <= lanes and splits // 4 % (2 * together) == 0:
        together *= 2
    return together


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
