"""Made-up model files: they are read as any file is, whatever ranges are asked for."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from pyapp.bench.made_up import PERIOD, MadeUpSource, MadeUpTensor, gguf_source, safetensors_source
from pyapp.bench.synthetic import SHAPES, language_model, vision_model
from pyapp.compiler.reference import run
from pyapp.errors import BadModel
from pyapp.models.decoder import expected_shapes
from pyapp.models.efficientnet import load_tensor
from pyapp.weights.gguf import read_gguf
from pyapp.weights.packing import pack, row_sizes, unpack
from pyapp.weights.quants import dequantise

TENSORS = [
    MadeUpTensor("a", (7, 64), "Q4_0", 0.02),
    MadeUpTensor("b", (37,), "F32", 0.5, mean=1.0),
    MadeUpTensor("c", (3 * PERIOD // 1000, 32000), "Q4_0", 0.02),
]


def whole(source: MadeUpSource) -> bytes:
    return asyncio.run(source.read(0, source.size)).tobytes()


def test_any_range_is_a_part_of_the_file() -> None:
    source = gguf_source({"general.architecture": "none"}, TENSORS[:2])
    data, rng = whole(source), random.Random(3)
    for _ in range(300):
        start = rng.randrange(source.size)
        length = rng.randrange(source.size - start + 1)
        assert asyncio.run(source.read(start, length)).tobytes() == data[start : start + length]
    with pytest.raises(BadModel):
        asyncio.run(source.read(source.size - 1, 2))


def test_it_is_the_same_file_each_time() -> None:
    assert whole(gguf_source({"k": 1}, TENSORS[:2])) == whole(gguf_source({"k": 1}, TENSORS[:2]))


async def test_a_gguf_file_says_what_it_was_told() -> None:
    metadata: dict[str, str | int | float] = {"general.architecture": "qwen2", "x.count": 151_936, "x.eps": 1e-6}
    file = await read_gguf(gguf_source(metadata, TENSORS))
    assert file.metadata == metadata
    assert {name: (info.shape, info.type) for name, info in file.tensors.items()} == {
        tensor.name: (tensor.shape, tensor.type) for tensor in TENSORS
    }


async def test_values_have_the_spread_that_was_asked_for() -> None:
    source = gguf_source({}, TENSORS)
    file = await read_gguf(source)
    big, vector = file.tensors["c"], file.tensors["b"]
    values = dequantise("Q4_0", await source.read(big.offset, 18 * 1000 * 100), 32 * 1000 * 100)
    assert values.std() == pytest.approx(0.02, rel=0.1)
    assert abs(values.mean()) < 0.004
    values = dequantise("F32", await source.read(vector.offset, vector.nbytes), vector.values)
    assert values.mean() == pytest.approx(1, abs=0.3)


def test_a_safetensors_file_is_one_to_the_library() -> None:
    tensors = [MadeUpTensor("w", (4, 2, 3, 3), "F32", 1.0), MadeUpTensor("b", (4,), "F32", 1.0)]
    loaded = load(whole(safetensors_source(tensors)))
    assert {name: array.shape for name, array in loaded.items()} == {"w": (4, 2, 3, 3), "b": (4,)}
    assert len(np.unique(loaded["w"])) == 72
    with pytest.raises(BadModel, match="only F32"):
        safetensors_source(TENSORS)


class Sink:
    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, np.uint8)

    async def write(self, offset: int, data: NDArray[Any]) -> None:
        self.bytes[offset : offset + data.size] = data


@pytest.mark.parametrize("name", SHAPES)
async def test_the_language_models_are_of_their_shapes(name: str) -> None:
    model = await language_model(name)
    assert model.config == SHAPES[name].language
    shapes = list(expected_shapes(model.config).values())
    # 4 bits and a scale for each 32 of a matrix, float32 of a vector, and a line of the head for each.
    tensors = sum(np.prod(shape) * (18 / 32 if len(shape) == 2 else 4) for shape in shapes)
    assert tensors <= model.stored.source.size < tensors + 80 * len(shapes)
    assert model.stored.key != (await vision_model(name)).stored.key


async def test_no_two_rows_of_the_head_are_alike() -> None:
    model = await language_model("tiny")
    sink = Sink(model.layout.total)
    await pack(model.file, model.stored.source, model.layout, sink)
    entry, (recipe,) = model.layout.entries["embed"], next(b for b in model.layout.blocks if b.name == "embed").recipes
    quants, scales = (recipe.n * size for size in row_sizes(recipe.fmt, recipe.k))
    parts = [sink.bytes[at : at + size] for at, size in ((entry.quants_offset, quants), (entry.scales_offset, scales))]
    values = unpack(recipe.fmt, parts[0], parts[1], recipe.n, recipe.k)
    assert len(np.unique(values, axis=0)) == recipe.n == 8192
    assert values.std() == pytest.approx(0.02, rel=0.1)


async def test_the_head_of_the_large_one_has_no_two_rows_alike_either() -> None:
    shape = SHAPES["qwen2.5-1.5b"].language
    blocks = shape.hidden // 32
    assert len({blocks * row % PERIOD for row in range(shape.vocab)}) == shape.vocab


async def test_the_large_vision_model_has_about_450_mb() -> None:
    assert (await vision_model("qwen2.5-1.5b")).layout.total == pytest.approx(450e6, rel=0.02)


async def test_the_small_vision_model_sees_something() -> None:
    model = await vision_model("tiny")
    names = model.layout.entries
    weights = {name: await load_tensor(model.graph, model.file, model.stored.source, name) for name in names}
    pictures = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), np.uint8)
    first, second = (run(model.graph, {"pixels": each}, weights.__getitem__)["logits"] for each in pictures)
    assert np.isfinite(first).all()
    assert first.std() > 0.01
    assert np.abs(first - second).max() > 1e-3
