"""Two models of given shapes with made-up weights, for what no file that we may ship is large enough to show.

They are models like any other: heads that the readers parse, tensors that are packed, kept and uploaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from math import sqrt

from ..compiler.graph import Graph
from ..engine.language import LanguageModel
from ..engine.vision import VisionModel
from ..models.decoder import DecoderConfig, expected_shapes
from ..models.efficientnet import Scale, build_graph, weights_of
from ..weights.packing import PackLayout
from ..weights.store import open_packed
from .made_up import MadeUpSource, MadeUpTensor, gguf_source, safetensors_source

LANGUAGE_STD = 0.02
"""Of the weights of a language model, as such models are initialised: activations stay near one."""
VECTOR_STD = 0.02


@dataclass(frozen=True)
class Shapes:
    """The figures of both models."""

    language: DecoderConfig
    vision: Scale


SHAPES = {
    # Qwen2.5-1.5B as it is, and an EfficientNet-Lite of 447 MB, deep rather than wide: its activations leave room for a
    # context of 2,048 positions beside the language model's weights in 900 MiB.
    "qwen2.5-1.5b": Shapes(
        DecoderConfig(
            arch="qwen2", vocab=151936, hidden=1536, layers=28, heads=12, kv_heads=2, head_dim=128, ff=8960, eps=1e-6,
            rope_base=1e6, context=2048, interleaved=False, qkv_bias=True, head_norm=False, tied=True,
        ),
        Scale(width=2.2, depth=8.4),
    ),
    # Small enough for an emulated GPU, and language weights of which 60 % still hold the vision model.
    "tiny": Shapes(
        DecoderConfig(
            arch="qwen2", vocab=8192, hidden=512, layers=6, heads=8, kv_heads=2, head_dim=64, ff=1536, eps=1e-6,
            rope_base=1e6, context=256, interleaved=False, qkv_bias=True, head_norm=False, tied=True,
        ),
        Scale(width=0.25, depth=0.25),
    ),
    # As little as has every kernel, for tests of what runs all of them many times.
    "least": Shapes(
        DecoderConfig(
            arch="qwen2", vocab=512, hidden=64, layers=2, heads=2, kv_heads=1, head_dim=32, ff=128, eps=1e-6,
            rope_base=1e6, context=256, interleaved=False, qkv_bias=True, head_norm=False, tied=True,
        ),
        Scale(width=0.25, depth=0.25),
    ),
}  # fmt: skip


class MadeUpModel:
    """What the engine needs of a stored model. ``key`` names the weights: the same ones have the same key."""

    def __init__(self, name: str, source: MadeUpSource) -> None:
        self.source = source
        self.key = sha256(f"made up 1 {name} {source.size}".encode()).hexdigest()[:32]

    async def release_chunks(self, keep_bytes: int) -> None:
        """There are none."""

    async def discard(self, layout: PackLayout) -> None:
        """Deletes what was packed, which is of no use to anybody afterwards."""
        blob = await open_packed(self.key, layout)
        if blob is not None:
            await blob.discard()


async def language_model(name: str, context: int | None = None) -> LanguageModel:
    """The decoder of ``SHAPES[name]`` with weights in Q4_0, of so many positions if they are given."""
    config = SHAPES[name].language
    config = replace(config, context=context or config.context)
    return await LanguageModel.open(MadeUpModel(f"language {name}", gguf_source(_metadata(config), _tensors(config))))


async def vision_model(name: str) -> VisionModel:
    """The network of ``SHAPES[name]`` with weights in float32."""
    scale = SHAPES[name].vision
    source = safetensors_source(list(_vision_tensors(build_graph(scale))))
    return await VisionModel.open(MadeUpModel(f"vision {name}", source), scale)


def _metadata(c: DecoderConfig) -> dict[str, str | int | float]:
    return {
        "general.architecture": c.arch,
        f"{c.arch}.embedding_length": c.hidden,
        f"{c.arch}.block_count": c.layers,
        f"{c.arch}.attention.head_count": c.heads,
        f"{c.arch}.attention.head_count_kv": c.kv_heads,
        f"{c.arch}.feed_forward_length": c.ff,
        f"{c.arch}.attention.layer_norm_rms_epsilon": c.eps,
        f"{c.arch}.rope.freq_base": c.rope_base,
        f"{c.arch}.context_length": c.context,
    }


def _tensors(c: DecoderConfig) -> list[MadeUpTensor]:
    made = []
    for name, shape in expected_shapes(c).items():
        if len(shape) == 2:
            made.append(MadeUpTensor(name, shape, "Q4_0", LANGUAGE_STD))
        else:
            made.append(MadeUpTensor(name, shape, "F32", VECTOR_STD, mean=1.0 if "norm" in name else 0.0))
    return made


def _vision_tensors(graph: Graph) -> Iterator[MadeUpTensor]:
    """In the file's layout (OIHW). Their size keeps activations alive (He et al. 2015), which ReLU6 bounds."""
    for op in graph.ops:
        if op.kind != "conv":
            continue
        weight, bias = weights_of(graph, op)
        kernel = op.attrs["kernel"]
        rows, outputs = graph.tensors[weight].shape
        shape = (outputs, rows // kernel**2, kernel, kernel)
        yield MadeUpTensor(weight, shape, "F32", sqrt(2 / rows))
        yield MadeUpTensor(bias, (outputs,), "F32", VECTOR_STD)
