"""Which rows of which GGUF tensors make up each packed weight of a decoder, and in which blocks they move.

A block is a layer's matrices; all vectors (norms, biases) are one block, the embedding and the head one each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..weights.packing import PackedTensor, SourceRows, kernel_format, promote
from .decoder import DecoderConfig, packed_shapes

VECTORS = "vectors"


def _pair_order(heads: int, head_dim: int) -> np.ndarray:
    """Row order that puts column i of each head beside column i + head_dim / 2, so that RoPE pairs are neighbours."""
    one_head = np.arange(head_dim).reshape(2, head_dim // 2).T.reshape(-1)
    return (np.arange(heads)[:, None] * head_dim + one_head).reshape(-1)


def _sources(c: DecoderConfig) -> dict[str, tuple[SourceRows, ...]]:
    q_order = None if c.interleaved else _pair_order(c.heads, c.head_dim)
    k_order = None if c.interleaved else _pair_order(c.kv_heads, c.head_dim)
    head_order = None if c.interleaved else _pair_order(1, c.head_dim)
    sources: dict[str, tuple[SourceRows, ...]] = {
        "embed": (SourceRows("token_embd.weight"),),
        "final_norm": (SourceRows("output_norm.weight"),),
        "head": (SourceRows("output.weight"),),
    }
    for i in range(c.layers):
        b, p = f"blk.{i}.", f"layers.{i}."
        sources |= {
            p + "attn_norm": (SourceRows(b + "attn_norm.weight"),),
            p + "qkv": (
                SourceRows(b + "attn_q.weight", q_order),
                SourceRows(b + "attn_k.weight", k_order),
                SourceRows(b + "attn_v.weight"),
            ),
            p + "qkv_bias": (
                SourceRows(b + "attn_q.bias", q_order),
                SourceRows(b + "attn_k.bias", k_order),
                SourceRows(b + "attn_v.bias"),
            ),
            p + "q_norm": (SourceRows(b + "attn_q_norm.weight", head_order),),
            p + "k_norm": (SourceRows(b + "attn_k_norm.weight", head_order),),
            p + "out": (SourceRows(b + "attn_output.weight"),),
            p + "ffn_norm": (SourceRows(b + "ffn_norm.weight"),),
            p + "gate_up": (SourceRows(b + "ffn_gate.weight"), SourceRows(b + "ffn_up.weight")),
            p + "down": (SourceRows(b + "ffn_down.weight"),),
        }
    return sources


def recipes_by_block(c: DecoderConfig, tensors: Mapping[str, Any]) -> dict[str, list[PackedTensor]]:
    """Recipes of every packed weight, by block, in the order in which a step reads them; the vectors come first, small
    and read all over a step, so that a layer's matrices can be cut anywhere.

    ``tensors`` is the file's table: the kernel format of a matrix follows from its tensors' types.
    """
    sources = _sources(c)
    blocks: dict[str, list[PackedTensor]] = {VECTORS: []}
    for name, shape in packed_shapes(c).items():
        parts = sources[name]
        n, k = shape if len(shape) == 2 else (1, shape[0])
        fmt = promote(kernel_format(tensors[part.tensor].type) for part in parts) if len(shape) == 2 else "f32"
        layer = ".".join(name.split(".")[:2]) if name.startswith("layers.") else name
        block = layer if len(shape) == 2 else VECTORS
        blocks.setdefault(block, []).append(PackedTensor(name, parts, fmt, n, k))
    return blocks


def matrix_formats(blocks: Mapping[str, list[PackedTensor]]) -> dict[str, str]:
    """Kernel format by weight name, for ``decoder.build_graph``."""
    return {recipe.name: recipe.fmt for recipes in blocks.values() for recipe in recipes}
