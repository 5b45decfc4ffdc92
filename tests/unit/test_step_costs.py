"""What a token costs, counted from the plans: a guard against slow steps that needs no clock.

The counts are those of the default model, and of Qwen2.5-1.5B's shape, as their files have them. A change that raises
one must say why; one that lowers it lowers the number here.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pyapp.compiler.graph import Graph
from pyapp.compiler.lower_decoder import weight_bytes
from pyapp.compiler.lowering import lower
from pyapp.compiler.passes import decoder_passes, fuse
from pyapp.engine.language import CHUNK, SPLITS
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.plan import Plan
from pyapp.models.decoder import DecoderConfig, build_graph, expected_shapes, packed_shapes
from pyapp.weights.quants import quant_type

from .decoder_configs import QWEN25_15B, SMOLLM2

GPU = DeviceLimits(max_binding=2 << 30, max_buffer=4 << 30, subgroup=32, subgroup_max=32)
SMALL_GPU = DeviceLimits(subgroup=4, subgroup_max=128)
"""The least that WebGPU promises, and subgroups of any size."""
NO_SUBGROUPS = DeviceLimits()
EMULATED = DeviceLimits(max_binding=1 << 30, max_buffer=1 << 30, subgroup=4, subgroup_max=4, software=True)
DEVICES = {"gpu": GPU, "small gpu": SMALL_GPU, "no subgroups": NO_SUBGROUPS, "emulated": EMULATED}
CONTEXT = 2048


@dataclass(frozen=True)
class File:
    """A model file: its config, the ggml type of its matrices and of its embedding, and their kernel formats."""

    config: DecoderConfig
    type: str
    embedding: str
    fmt: str
    embedding_fmt: str

    def formats(self) -> dict[str, str]:
        return {
            name: "f32" if len(shape) == 1 else self.embedding_fmt if name == "embed" else self.fmt
            for name, shape in packed_shapes(self.config).items()
        }

    @property
    def nbytes(self) -> float:
        """Bytes of the tensors in the file."""
        total = 0.0
        for name, shape in expected_shapes(self.config).items():
            kind = "F32" if len(shape) == 1 else self.embedding if name == "token_embd.weight" else self.type
            each = quant_type(kind)
            count = shape[0] * (shape[1] if len(shape) == 2 else 1)
            total += count / each.values * each.nbytes
        return total


FILES = {
    "smollm2": File(SMOLLM2, "Q4_1", "Q8_0", "q4", "q8"),
    "qwen2.5-1.5b": File(QWEN25_15B, "Q4_0", "Q4_0", "s4", "s4"),
}


def lowered(file: File, limits: DeviceLimits, tokens: int) -> tuple[Graph, Plan]:
    splits = SPLITS if tokens == 1 else 1
    graph = build_graph(file.config, file.formats(), tokens=tokens, context=CONTEXT, splits=splits)
    graph = fuse(graph, decoder_passes(limits))
    return graph, lower(graph, limits)


def greedy(plan: Plan) -> list[str]:
    """Operations of a step, which samples one way or the other."""
    return [d.operation for d in plan.dispatches if d.operation != "sample_random"]


def weights_read(graph: Graph, plan: Plan) -> int:
    """Bytes of weights that a token reads: whole matrices and vectors, one row of the embedding."""
    total = 0
    for dispatch in plan.dispatches:
        for name in {b.tensor for b in dispatch.bindings if b.section != "data" and b.tensor in graph.tensors}:
            tensor = graph.tensors[name]
            if len(tensor.shape) == 1:
                total += 4 * tensor.shape[0]
            else:
                total += weight_bytes(tensor, 1 if dispatch.shader.file == "embed" else None)
    return total


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FILES)
def test_dispatches_and_pipelines_of_a_step(name: str, device: str) -> None:
    file = FILES[name]
    _, decode = lowered(file, DEVICES[device], 1)
    operations = greedy(decode)
    for layer in range(file.config.layers):
        assert len([each for each in operations if each.startswith(f"layers.{layer}.")]) == 5
    assert len(operations) == 5 * file.config.layers + 3
    assert len({d.shader for d in decode.dispatches}) == 9


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FILES)
def test_dispatches_and_pipelines_of_a_chunk(name: str, device: str) -> None:
    file = FILES[name]
    _, prefill = lowered(file, DEVICES[device], CHUNK)
    assert len(greedy(prefill)) == 5 * file.config.layers + 3
    assert len({d.shader for d in prefill.dispatches}) == 9


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FILES)
def test_a_token_reads_each_byte_of_the_weights_once(name: str, device: str) -> None:
    """And a row of the embedding, which is the head too."""
    graph, decode = lowered(FILES[name], DEVICES[device], 1)
    assert 1.0 <= weights_read(graph, decode) / FILES[name].nbytes <= 1.0001


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FILES)
def test_a_chunk_computes_logits_of_one_position_and_keeps_no_scores_of_all_pairs(name: str, device: str) -> None:
    file = FILES[name]
    graph, prefill = lowered(file, DEVICES[device], CHUNK)
    assert graph.tensors["logits"].shape == (1, file.config.vocab)
    c = file.config
    widest = 4 * CHUNK * max(2 * c.ff, c.q_rows + 2 * c.kv_rows, c.hidden)
    assert max(prefill.memory.sizes.values()) <= max(widest, 4 * c.vocab)
    assert prefill.memory.peak <= 0.04 * prefill.memory.sum


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "most"), [("smollm2", 1.61), ("qwen2.5-1.5b", 5.71)])
def test_activations_that_a_step_moves(name: str, most: float, device: str) -> None:
    """MB, beside weights and a full cache: what fusion saves."""
    file = FILES[name]
    graph, decode = lowered(file, DEVICES[device], 1)
    cache = CONTEXT * file.config.layers * file.config.kv_row_bytes("f32")
    moved = sum(d.bytes for d in decode.dispatches) - weights_read(graph, decode) - cache
    assert moved / 1e6 <= most
