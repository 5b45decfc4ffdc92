"""Decoder-only transformers of the Llama family (llama, qwen2, qwen3) as graphs over named weights.

Sources: Touvron et al. 2023 (Llama), Qwen2 and Qwen3 technical reports; tensor and metadata names as in the GGUF
specification's architecture section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from ..compiler.graph import DTYPE_BYTES, CacheDtype, Graph, GraphBuilder
from ..errors import BadModel

ARCHITECTURES = ("llama", "qwen2", "qwen3")
MOST = (1 << 31) - 1
"""More than this of anything is damage: the step state counts in 32 bits."""
MOST_HEADS = 256
"""Attention of a step is split into 4 parts at least, which are merged in the workgroup memory that any device has
(``splits_of`` in ``engine.language``): 32 bytes of each head in 8 KiB."""
LEAST_CONTEXT = 16
"""Tokens: below that not even an empty conversation's markup has room."""


@dataclass(frozen=True)
class DecoderConfig:
    """The figures that shape a decoder. ``interleaved``: RoPE turns neighbouring columns (llama's GGUF row order);
    otherwise column i turns with i + head_dim / 2, and the rows are put side by side when packed."""

    arch: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    eps: float
    rope_base: float
    context: int
    interleaved: bool
    qkv_bias: bool
    head_norm: bool
    tied: bool

    @property
    def q_rows(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        return self.kv_heads * self.head_dim

    def kv_row_bytes(self, kv: CacheDtype) -> int:
        """Bytes of one position in the KV cache of one layer."""
        return 2 * self.kv_rows * DTYPE_BYTES[kv]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one position takes over all layers (float32)."""
        return self.layers * self.kv_row_bytes("f32")


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> DecoderConfig:
    """Reads and checks a GGUF's metadata and tensor shapes; raises ``BadModel`` for what cannot run, and says why."""
    arch = metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise BadModel(
            f"This file's architecture is {arch!r}; Tandem runs {', '.join(ARCHITECTURES)}. Choose one of these.",
            architecture=str(arch),
            supported=list(ARCHITECTURES),
        )

    def number(key: str, default: float | None = None) -> float:
        value = metadata.get(f"{arch}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
            raise _damaged(f"{arch}.{key}", value, "a positive number")
        return value

    def whole(key: str, default: int | None = None) -> int:
        value = number(key, default)
        if value != int(value) or value > MOST:
            raise _damaged(f"{arch}.{key}", value, f"a whole number up to {MOST}")
        return int(value)

    hidden, heads = whole("embedding_length"), whole("attention.head_count")
    kv_heads = whole("attention.head_count_kv", heads)
    head_dim = whole("attention.key_length", hidden // heads if heads <= hidden else 1)
    layers, context = whole("block_count"), whole("context_length")
    if layers > len(tensors):
        # Before anything is made for each of them.
        raise BadModel(
            f"The model file promises {layers} layers and has {len(tensors)} tensors; it is damaged.", layers=layers
        )
    if context < LEAST_CONTEXT:
        raise BadModel(
            f"The model's context is {context} tokens; a prompt and an answer need {LEAST_CONTEXT} at least: choose "
            "another model.",
            context=context,
        )
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadModel("The model file has no token embedding (token_embd.weight); it is not a language model.")
    config = DecoderConfig(
        arch=str(arch),
        vocab=embedding.shape[0],
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ff=whole("feed_forward_length"),
        eps=float(number("attention.layer_norm_rms_epsilon", 1e-5)),
        rope_base=float(number("rope.freq_base", 10000.0)),
        context=context,
        interleaved=arch == "llama",
        qkv_bias="blk.0.attn_q.bias" in tensors,
        head_norm="blk.0.attn_q_norm.weight" in tensors,
        tied="output.weight" not in tensors,
    )
    _check(config, metadata, tensors)
    return config


def _damaged(key: str, value: object, wanted: str) -> BadModel:
    return BadModel(f"The model file's {key} is {str(value)[:40]!r}, not {wanted}; the file is damaged.", key=key)


def _check(c: DecoderConfig, metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    if c.heads % c.kv_heads:
        raise BadModel(f"{c.heads} heads cannot share {c.kv_heads} key-value heads evenly; the file is damaged.")
    if c.heads > MOST_HEADS:
        raise BadModel(
            f"The model has {c.heads} attention heads; Tandem's attention holds at most {MOST_HEADS}: choose another.",
            heads=c.heads,
        )
    rope_dim = metadata.get(f"{c.arch}.rope.dimension_count", c.head_dim)
    scaling = metadata.get(f"{c.arch}.rope.scaling.type", "none")
    if rope_dim != c.head_dim:
        raise BadModel(
            f"The model turns {rope_dim} of {c.head_dim} head columns (partial RoPE), which Tandem cannot run."
        )
    if scaling not in ("none", "", None):
        raise BadModel(f"The model uses RoPE scaling of type {scaling!r}, which Tandem cannot run yet.")
    for name, value in (("hidden size", c.hidden), ("feed-forward size", c.ff), ("head size", c.head_dim)):
        if value % 32:
            raise BadModel(f"The model's {name} is {value}; Tandem's kernels need a multiple of 32.")
    if c.head_dim > 256:
        raise BadModel(f"The model's head size is {c.head_dim}; Tandem's attention holds at most 256.")
    for name, shape in expected_shapes(c).items():
        tensor = tensors.get(name)
        if tensor is None:
            raise BadModel(f"The model file lacks the tensor {name}; it is incomplete or of another kind.", tensor=name)
        if tuple(tensor.shape) != shape:
            raise BadModel(
                f"The tensor {name} has the shape {list(tensor.shape)} where {list(shape)} is needed; "
                "the file is damaged.",
                tensor=name,
            )


def expected_shapes(c: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every GGUF tensor the graph needs, with its row-major shape."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (c.vocab, c.hidden), "output_norm.weight": (c.hidden,)}
    if not c.tied:
        shapes["output.weight"] = (c.vocab, c.hidden)
    for i in range(c.layers):
        b = f"blk.{i}."
        shapes |= {
            b + "attn_norm.weight": (c.hidden,),
            b + "attn_q.weight": (c.q_rows, c.hidden),
            b + "attn_k.weight": (c.kv_rows, c.hidden),
            b + "attn_v.weight": (c.kv_rows, c.hidden),
            b + "attn_output.weight": (c.hidden, c.q_rows),
            b + "ffn_norm.weight": (c.hidden,),
            b + "ffn_gate.weight": (c.ff, c.hidden),
            b + "ffn_up.weight": (c.ff, c.hidden),
            b + "ffn_down.weight": (c.hidden, c.ff),
        }
        if c.qkv_bias:
            shapes |= {b + "attn_q.bias": (c.q_rows,), b + "attn_k.bias": (c.kv_rows,), b + "attn_v.bias": (c.kv_rows,)}
        if c.head_norm:
            shapes |= {b + "attn_q_norm.weight": (c.head_dim,), b + "attn_k_norm.weight": (c.head_dim,)}
    return shapes


def rope_table(c: DecoderConfig, context: int, factors: np.ndarray | None = None) -> np.ndarray:
    """cos and sin of every position and pair, [context, head_dim / 2, 2] float32, computed in float64.

    Angle of pair i at position p: p / base^(2i / head_dim) (Su et al. 2021), divided by ``factors[i]`` where the file
    has ``rope_freqs.weight``. A table, because WGSL promises only 2^-11 for sin and cos.
    """
    pairs = np.arange(c.head_dim // 2, dtype=np.float64)
    frequency = c.rope_base ** (-2.0 * pairs / c.head_dim)
    if factors is not None:
        frequency = frequency / factors
    angle = np.arange(context, dtype=np.float64)[:, None] * frequency
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)


Pieces = Mapping[str, tuple[tuple[int, int], ...]]
"""By weight: (first row, rows) of the runs of its rows that lie together in memory."""


def build_graph(
    c: DecoderConfig,
    formats: Mapping[str, str],
    *,
    tokens: int,
    context: int,
    splits: int,
    pieces: Pieces | None = None,
    kv: CacheDtype = "f32",
) -> Graph:
    """The graph of one step: ``tokens`` new tokens, the logits of the last valid one, and the two ways to sample it.

    ``tokens``: 1 to decode, more for a chunk of a prompt. ``formats``: the kernel format of each packed matrix.
    ``context``: positions of the cache; ``kv``: how it holds keys and values. ``splits``: parts of attention (decoding
    only). ``pieces``: of the weights that do not lie together as a whole.
    """
    g = GraphBuilder("decode" if tokens == 1 else "prefill")
    for name, shape in packed_shapes(c).items():
        fmt = "f32" if len(shape) == 1 else formats[name]
        g.tensor(name, shape, "weight", fmt=fmt, pieces=(pieces or {}).get(name, ()))
    caches = cache_shapes(c, context)
    g.tensor("rope", caches["rope"], "cache")
    g.tensor("ids", (tokens,), "input", dtype="u32")
    heads = {"heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim, "q_rows": c.q_rows, "kv_rows": c.kv_rows}
    qkv_rows = c.q_rows + 2 * c.kv_rows
    # The residual stream is one tensor that each block adds onto in place.
    x = g.op("embed", "x", (tokens, c.hidden), name="embed_tokens", ids="ids", table="embed")
    for i in range(c.layers):
        p = f"layers.{i}."
        g.tensor(p + "kv", caches[p + "kv"], "cache", dtype=kv)
        y = g.op("rms_norm", p + "attn_in", (tokens, c.hidden), {"eps": c.eps}, x=x, gain=p + "attn_norm")
        bias = {"bias": p + "qkv_bias"} if c.qkv_bias else {}
        qkv = g.op("linear", p + "qkv_out", (tokens, qkv_rows), {}, x=y, weight=p + "qkv", **bias)
        gains = {"q_gain": p + "q_norm", "k_gain": p + "k_norm"} if c.head_norm else {}
        kind = "head_norm_rope_cache" if c.head_norm else "rope_cache"
        q = g.op(kind, p + "q", (tokens, c.q_rows), {**heads, "eps": c.eps}, qkv=qkv, kv=p + "kv", rope="rope", **gains)
        if tokens == 1:
            parts = g.op(
                "attention",
                p + "parts",
                (c.heads, splits, c.head_dim + 4),
                {**heads, "splits": splits},
                q=q,
                kv=p + "kv",
            )
            a = g.op("attention_merge", p + "attended", (1, c.q_rows), {**heads, "splits": splits}, x=parts)
        else:
            a = g.op("attention", p + "attended", (tokens, c.q_rows), {**heads, "splits": 1}, q=q, kv=p + "kv")
        o = g.op("linear", p + "attn_out", (tokens, c.hidden), x=a, weight=p + "out")
        g.op("add", "x", (tokens, c.hidden), name=p + "attn_add", x=o, residual=x)
        y = g.op("rms_norm", p + "ffn_in", (tokens, c.hidden), {"eps": c.eps}, x=x, gain=p + "ffn_norm")
        gate_up = g.op("linear", p + "gate_up_out", (tokens, 2 * c.ff), x=y, weight=p + "gate_up")
        f = g.op("silu_mul", p + "ff", (tokens, c.ff), x=gate_up)
        d = g.op("linear", p + "ffn_out", (tokens, c.hidden), x=f, weight=p + "down")
        g.op("add", "x", (tokens, c.hidden), name=p + "ffn_add", x=d, residual=x)
    y = g.op("rms_norm", "final", (tokens, c.hidden), {"eps": c.eps}, x=x, gain="final_norm")
    g.tensor("logits", (1, c.vocab), "output")
    logits = g.op("linear", "logits", (1, c.vocab), {"x_row": "last"}, x=y, weight="embed" if c.tied else "head")
    g.tensor("state", (64,), "state", dtype="u32")
    # A step runs one of the two: which is the request's choice.
    g.op("sample", "state", (64,), {"greedy": True}, name="sample_greedy", logits=logits)
    g.op("sample", "state", (64,), {"greedy": False}, name="sample_random", logits=logits)
    return g.build()


def cache_shapes(c: DecoderConfig, context: int) -> dict[str, tuple[int, ...]]:
    """What a conversation of ``context`` positions keeps: the RoPE table (always float32), and each layer's cache."""
    layers = {f"layers.{i}.kv": (context, 2 * c.kv_rows) for i in range(c.layers)}
    return {"rope": (context, c.head_dim // 2, 2), **layers}


def packed_shapes(c: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The weights as kernels read them: q|k|v and gate|up as one matrix each. Vectors have one dimension."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (c.vocab, c.hidden)}
    for i in range(c.layers):
        p = f"layers.{i}."
        shapes |= {
            p + "attn_norm": (c.hidden,),
            p + "qkv": (c.q_rows + 2 * c.kv_rows, c.hidden),
            p + "out": (c.hidden, c.q_rows),
            p + "ffn_norm": (c.hidden,),
            p + "gate_up": (2 * c.ff, c.hidden),
            p + "down": (c.hidden, c.ff),
        }
        if c.qkv_bias:
            shapes[p + "qkv_bias"] = (c.q_rows + 2 * c.kv_rows,)
        if c.head_norm:
            shapes |= {p + "q_norm": (c.head_dim,), p + "k_norm": (c.head_dim,)}
    shapes["final_norm"] = (c.hidden,)
    if not c.tied:
        shapes["head"] = (c.vocab, c.hidden)
    return shapes
