"""The tiny models of ``tests/data/tiny``, packed and unpacked again, for the NumPy run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.compiler.graph import CacheDtype, Graph
from pyapp.compiler.reference import StepState, run
from pyapp.models.decoder import build_graph, config_from_gguf, rope_table
from pyapp.models.decoder_weights import matrix_formats, recipes_by_block
from pyapp.weights.gguf import read_gguf
from pyapp.weights.packing import pack, plan_layout, unpack
from pyapp.weights.source import BytesSource

Array = NDArray[Any]
TINY = Path(__file__).parents[1] / "data" / "tiny"
FILES = sorted(path.stem for path in TINY.glob("*.gguf"))
CONTEXT = 64


class Blob:
    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, np.uint8)

    async def write(self, offset: int, data: Array) -> None:
        self.bytes[offset : offset + data.size] = data


class Tiny:
    """A tiny model, its weights packed and unpacked again, ready to run step by step."""

    def __init__(self, config: Any, formats: dict[str, str], weights: dict[str, Array]) -> None:
        self.config, self.formats, self.weights = config, formats, weights

    @classmethod
    async def open(cls, name: str) -> Tiny:
        source = BytesSource((TINY / f"{name}.gguf").read_bytes())
        file = await read_gguf(source)
        config = config_from_gguf(file.metadata, file.tensors)
        blocks = recipes_by_block(config, file.tensors)
        layout = plan_layout(blocks)
        blob = Blob(layout.total)
        await pack(file, source, layout, blob)
        weights = {}
        for recipe in itertools.chain.from_iterable(blocks.values()):
            entry = layout.entries[recipe.name]
            quants = blob.bytes[entry.quants_offset : entry.quants_offset + entry.quants_bytes]
            scales = blob.bytes[entry.scales_offset : entry.scales_offset + entry.scales_bytes]
            value = unpack(recipe.fmt, quants, scales, recipe.n, recipe.k)
            weights[recipe.name] = value[0] if recipe.n == 1 else value
        return cls(config, matrix_formats(blocks), weights)

    def graph(self, tokens: int, splits: int = 1, kv: CacheDtype = "f32") -> Graph:
        return build_graph(self.config, self.formats, tokens=tokens, context=CONTEXT, splits=splits, kv=kv)

    def caches(self, kv: CacheDtype = "f32") -> dict[str, Array]:
        shape, dtype = (CONTEXT, 2 * self.config.kv_rows), np.float16 if kv == "f16" else np.float32
        layers = {f"layers.{i}.kv": np.zeros(shape, dtype) for i in range(self.config.layers)}
        return {**layers, "rope": rope_table(self.config, CONTEXT)}

    def run(self, graph: Graph, inputs: dict[str, Array], state: StepState) -> dict[str, Array]:
        return run(graph, inputs, self.weights.__getitem__, state)
