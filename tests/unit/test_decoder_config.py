"""What a file's metadata may say, and which sentence comes of what it may not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pyapp.errors import BadModel
from pyapp.models.decoder import config_from_gguf
from pyapp.weights.gguf import GGUFFile, read_gguf
from pyapp.weights.source import BytesSource

TINY = Path(__file__).parents[1] / "data" / "tiny" / "tiny-llama-Q4_1-tied.gguf"
COUNTS = ("embedding_length", "attention.head_count", "attention.head_count_kv", "block_count", "feed_forward_length",
          "context_length")  # fmt: skip


@pytest.fixture
async def file() -> GGUFFile:
    return await read_gguf(BytesSource(TINY.read_bytes()))


async def test_the_file_as_it_is(file: GGUFFile) -> None:
    config = config_from_gguf(file.metadata, file.tensors)
    assert (config.layers, config.context) == (2, 512)


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize(
    "value", [0, -1, 0.5, 1.5, 1e30, 1 << 31, float("nan"), float("inf"), True, "2", [2], None], ids=repr
)
async def test_counts_are_whole_numbers(file: GGUFFile, key: str, value: Any) -> None:
    metadata = {**file.metadata, f"llama.{key}": value}
    if key == "attention.head_count_kv" and value is None:
        del metadata[f"llama.{key}"]  # as many as heads, which this file has not
    with pytest.raises(BadModel, match=r"damaged|context is|cannot share|shape|lacks"):
        config_from_gguf(metadata, file.tensors)


@pytest.mark.parametrize("layers", [1_000_000, (1 << 31) - 1])
async def test_a_promise_of_absurdly_many_layers_costs_nothing(file: GGUFFile, layers: int) -> None:
    start = time.perf_counter()
    with pytest.raises(BadModel, match=f"promises {layers} layers and has {len(file.tensors)} tensors"):
        config_from_gguf({**file.metadata, "llama.block_count": layers}, file.tensors)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("context", [1, 15])
async def test_a_context_without_room_for_anything(file: GGUFFile, context: int) -> None:
    with pytest.raises(BadModel, match=f"context is {context} tokens"):
        config_from_gguf({**file.metadata, "llama.context_length": context}, file.tensors)


@pytest.mark.parametrize("heads", [256, 257, 1000])
async def test_heads_that_workgroup_memory_cannot_hold(file: GGUFFile, heads: int) -> None:
    metadata = {**file.metadata, "llama.attention.head_count": heads, "llama.attention.head_count_kv": 1}
    metadata["llama.attention.key_length"] = metadata["llama.rope.dimension_count"] = 32
    says = f"has {heads} attention heads; .* at most 256" if heads > 256 else "shape"  # which no file here has
    with pytest.raises(BadModel, match=says):
        config_from_gguf(metadata, file.tensors)
