"""Shapes of decoders: the default model's, and small ones of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyapp.models.decoder import DecoderConfig, packed_shapes, rope_table

SMOLLM2 = DecoderConfig(
    arch="llama", vocab=49152, hidden=576, layers=30, heads=9, kv_heads=3, head_dim=64, ff=1536, eps=1e-5,
    rope_base=1e5, context=2048, interleaved=True, qkv_bias=False, head_norm=False, tied=True,
)  # fmt: skip
QWEN25_15B = DecoderConfig(
    arch="qwen2", vocab=151936, hidden=1536, layers=28, heads=12, kv_heads=2, head_dim=128, ff=8960, eps=1e-6,
    rope_base=1e6, context=2048, interleaved=False, qkv_bias=True, head_norm=False, tied=True,
)  # fmt: skip

TINY = st.builds(
    lambda kv, group, **more: DecoderConfig(
        arch="llama", heads=kv * group, kv_heads=kv, head_dim=32, eps=1e-5, rope_base=1e4, context=64,
        interleaved=True, **more,
    ),
    kv=st.integers(1, 2), group=st.integers(1, 3), vocab=st.integers(5, 40), hidden=st.sampled_from([32, 64]),
    layers=st.integers(1, 3), ff=st.sampled_from([32, 96]), qkv_bias=st.booleans(), head_norm=st.booleans(),
    tied=st.booleans(),
)  # fmt: skip
"""Small decoders with and without q/k/v bias, head norms and a head of their own."""


def random_weights(config: DecoderConfig, seed: int = 0) -> dict[str, NDArray[Any]]:
    """float32 of every packed weight, of a size that keeps activations near one."""
    random = np.random.default_rng(seed)
    return {
        name: (
            random.standard_normal(shape) / np.sqrt(shape[-1]) if len(shape) == 2 else random.uniform(0.5, 1.5, shape)
        ).astype(np.float32)
        for name, shape in packed_shapes(config).items()
    }


def caches(config: DecoderConfig, context: int, seed: int = 1) -> dict[str, NDArray[Any]]:
    """KV caches that hold something already, and the RoPE table."""
    random = np.random.default_rng(seed)
    shape = (context, 2 * config.kv_rows)
    kv = {f"layers.{i}.kv": random.standard_normal(shape).astype(np.float32) for i in range(config.layers)}
    return {**kv, "rope": rope_table(config, context)}
