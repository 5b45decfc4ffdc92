"""EfficientNet-Lite0: the graph, its packed weights, the plan, and the logits of the goldens on the CPU."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load, save

from pyapp.compiler.lower_vision import LOWERINGS
from pyapp.compiler.lowering import lower
from pyapp.compiler.memory import plan_memory
from pyapp.compiler.passes import fuse
from pyapp.compiler.passes_vision import VISION_PASSES
from pyapp.compiler.reference import run
from pyapp.engine.cpu_vision import CpuVision
from pyapp.errors import BadImage, BadModel
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.plan import FIGURES, Dispatch
from pyapp.gpu.preprocess import preprocess
from pyapp.models.efficientnet import (
    BLOCK_BYTES,
    STAGES,
    Scale,
    build_graph,
    execution_order,
    from_file_layout,
    load_tensor,
    pack_layout,
    pack_vision,
    same_padding,
)
from pyapp.setup import models
from pyapp.weights.safetensors import read_safetensors
from pyapp.weights.source import BytesSource

Array = NDArray[Any]
SHADERS = Path(__file__).parents[2] / "shaders"


@pytest.fixture(scope="module")
def weights_file() -> bytes:
    model = next(model for model in models.MODELS if model.name == "efficientnet-lite0")
    assert model.convert is not None
    return model.convert(models.obtain_source(model).read_bytes())


def picture(data: Path, name: str) -> Array:
    with Image.open(data / "pics" / name) as image:
        return np.asarray(image.convert("RGB"))


async def test_the_cpu_gives_the_golden_logits(weights_file: bytes, data: Path) -> None:
    vision = await CpuVision.create(SimpleNamespace(source=BytesSource(weights_file)))
    golden = json.loads((data / "effnet_lite0.json").read_text(encoding="utf-8"))
    for each in golden["pictures"]:
        logits = vision.classify(picture(data, each["model_input"]))
        assert (logits.shape, logits.dtype) == ((1000,), np.float32)
        assert int(logits.argmax()) == each["top5"][0]["class"]
        for row in each["top5"]:
            assert logits[row["class"]] == pytest.approx(row["logit"], abs=1e-4), each["picture"]
        if "logits" in each:
            np.testing.assert_allclose(logits, each["logits"], atol=1e-4)


async def test_the_cpu_refuses_other_shapes(weights_file: bytes) -> None:
    vision = await CpuVision.create(SimpleNamespace(source=BytesSource(weights_file)))
    for wrong in (
        np.zeros((224, 224, 4), np.uint8),
        np.zeros((3, 224, 224), np.uint8),
        np.zeros((224, 224, 3), np.float32),
    ):
        with pytest.raises(BadImage, match="224 x 224 x 3 bytes"):
            vision.classify(wrong)  # type: ignore[arg-type]


async def test_the_primitive_graph_means_the_same(weights_file: bytes, data: Path) -> None:
    graph, file, source = build_graph(), await read_safetensors(BytesSource(weights_file)), BytesSource(weights_file)
    weights = {name: await load_tensor(graph, file, source, name) for name in execution_order(graph)}
    assert set(weights) == set(file.tensors)
    pixels = {"pixels": picture(data, "cat.eff224.png")}
    plain = run(graph, pixels, weights.__getitem__, keep=["logits"])["logits"]
    fused = run(fuse(graph, VISION_PASSES), pixels, weights.__getitem__, keep=["logits"])["logits"]
    np.testing.assert_allclose(fused, plain, atol=1e-4)


def test_the_graph_has_the_papers_shapes() -> None:
    graph = build_graph()
    shapes = [graph.tensors[f"blocks.{stage}.0.conv_dw"].shape for stage in range(7)]
    assert shapes == [
        (112, 112, 32), (56, 56, 96), (28, 28, 144), (14, 14, 240), (14, 14, 480), (7, 7, 672), (7, 7, 1152),
    ]  # fmt: skip
    assert graph.tensors["conv_stem"].shape == (112, 112, 32)
    assert graph.tensors["logits"].shape == (1, 1000)
    assert graph.ops[0].attrs["pad"] == (0, 0, 1, 1)  # TensorFlow's SAME: the odd row and column come last
    assert sum(op.kind == "sum" for op in graph.ops) == 9
    assert len({op.name for op in graph.ops}) == len(graph.ops)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "wanted"),
    [
        (224, 3, 2, (112, 0, 1)),
        (112, 3, 1, (112, 1, 1)),
        (56, 5, 2, (28, 1, 2)),
        (7, 5, 1, (7, 2, 2)),
        (5, 3, 2, (3, 1, 1)),
        (4, 1, 2, (2, 0, 0)),
    ],
)
def test_same_padding(size: int, kernel: int, stride: int, wanted: tuple[int, int, int]) -> None:
    assert same_padding(size, kernel, stride) == wanted


def test_scaled_networks_are_those_of_the_paper() -> None:
    assert list(Scale().stages()) == list(STAGES)
    # EfficientNet-Lite4: width 1.4, depth 1.8; channels and blocks as in its authors' checkpoints.
    lite4 = list(Scale(1.4, 1.8).stages())
    assert [cout for _, _, _, cout, _ in lite4] == [24, 32, 56, 112, 160, 272, 448]
    assert [blocks for *_, blocks in lite4] == [1, 4, 4, 6, 6, 8, 1]
    assert pack_layout(build_graph(Scale(1.4, 1.8))).total == pytest.approx(13.0e6 * 4, rel=0.01)


class Blob:
    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, np.uint8)

    async def write(self, offset: int, data: Array) -> None:
        self.bytes[offset : offset + data.size] = data


async def test_packed_weights_are_the_files(weights_file: bytes) -> None:
    graph, source = build_graph(), BytesSource(weights_file)
    layout, file, tensors = pack_layout(graph), await read_safetensors(source), load(weights_file)
    assert layout == pack_layout(fuse(graph, VISION_PASSES)), "fusions must not move the weights"
    reports: list[tuple[str, int, int | None]] = []
    blob = Blob(layout.total)
    await pack_vision(graph, file, source, layout, blob, lambda *report: reports.append(report))

    def packed(name: str) -> Array:
        entry = layout.entries[name]
        raw = blob.bytes[entry.quants_offset : entry.quants_offset + entry.quants_bytes]
        return raw.view(np.float32).reshape(graph.tensors[name].shape)

    stem = tensors["conv_stem.weight"]
    assert packed("conv_stem.weight")[(2 * 3 + 1) * 3 + 2, 5] == stem[5, 2, 2, 1]  # row 2, column 1, blue
    deep = tensors["blocks.2.1.conv_dw.weight"]
    assert packed("blocks.2.1.conv_dw.weight")[3 * 5 + 4, 77] == deep[77, 0, 3, 4]
    np.testing.assert_array_equal(packed("conv_head.weight"), tensors["conv_head.weight"][:, :, 0, 0].T)
    np.testing.assert_array_equal(packed("classifier.weight"), tensors["classifier.weight"].T)
    np.testing.assert_array_equal(packed("blocks.6.0.conv_pwl.bias"), tensors["blocks.6.0.conv_pwl.bias"])
    assert len(reports) == 100
    assert reports[-1][1:] == (sum(info.nbytes for info in file.tensors.values()), layout.total)


def test_blocks_are_uploads_of_a_few_megabytes() -> None:
    layout = pack_layout(build_graph())
    names = [name for block in layout.blocks for name in block.entries]
    assert names == execution_order(build_graph())
    alone = [block for block in layout.blocks if block.nbytes > BLOCK_BYTES + 256 * len(block.entries)]
    assert [set(block.entries) for block in alone] == [{"classifier.weight", "classifier.bias"}]
    assert layout.total == pytest.approx(18_530_000, rel=1e-3)
    small = pack_layout(build_graph(), 1 << 20)
    assert len(small.blocks) > len(layout.blocks)


async def test_a_wrong_file_is_refused() -> None:
    graph = build_graph()
    shapes = {"conv_stem.weight": (32, 3, 5, 5), "conv_stem.bias": (32,), "conv_head.bias": (1280,)}
    tensors: dict[str, Array] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    tensors["conv_head.bias"] = tensors["conv_head.bias"].astype(np.float16)
    source = BytesSource(save(tensors))
    file = await read_safetensors(source)
    for name, words in (
        ("conv_stem.weight", r"\[32, 3, 5, 5\]"),
        ("conv_head.bias", "F16"),
        ("conv_head.weight", "lacks"),
    ):
        with pytest.raises(BadModel, match=words):
            await load_tensor(graph, file, source, name)


def test_layouts_are_views_where_they_can_be() -> None:
    pointwise = np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1)
    assert from_file_layout(pointwise, (3, 4)).base is not None
    np.testing.assert_array_equal(from_file_layout(pointwise, (3, 4)), pointwise[:, :, 0, 0].T)
    with pytest.raises(BadModel, match="cannot become"):
        from_file_layout(pointwise, (4, 3))


def lowered(limits: DeviceLimits) -> list[Dispatch]:
    graph = fuse(build_graph(), VISION_PASSES)
    return [dispatch for op in graph.ops for dispatch in LOWERINGS[op.kind](op, graph, limits)]


@pytest.mark.parametrize("software", [False, True])
def test_the_plan(software: bool) -> None:
    plan = lower(fuse(build_graph(), VISION_PASSES), DeviceLimits(software=software))
    dispatches = plan.dispatches
    assert len(dispatches) == 51
    # 385 million multiply-adds, of which bias, activation and mean are no part but the mean's additions.
    assert sum(d.flops for d in dispatches) == pytest.approx(770.4e6, rel=1e-3)
    assert len({d.shader for d in dispatches}) == (10 if software else 18)  # not one a layer
    for dispatch in dispatches:
        figures = [binding for binding in dispatch.bindings if binding.tensor == FIGURES]
        assert bool(figures) == bool(dispatch.figures)
        for binding in figures:
            found = plan.constants[binding.offset : binding.offset + (binding.nbytes or 0)]
            assert struct.unpack(f"<{len(dispatch.figures)}i", found) == dispatch.figures
            assert binding.offset % 256 == 0
        params = dict(dispatch.shader.params)
        code = preprocess(
            (SHADERS / f"{dispatch.shader.file}.wgsl").read_text(), params, lambda n: (SHADERS / n).read_text()
        )
        assert code.count("@binding") == len(dispatch.bindings) <= 8
        splits = params.get("SPLITS", 1)
        assert splits == 1 or not software
        if splits > 1:
            # A sum of four floats for each value of the tile and invocation: at most half of the workgroup memory.
            assert 64 * params["PIXELS"] * params["OUTS"] * 16 <= DeviceLimits().max_workgroup_storage / 2


def test_activations_share_their_places() -> None:
    plain, fused = plan_memory(build_graph()), plan_memory(fuse(build_graph(), VISION_PASSES))
    assert fused.peak < 6.5e6
    assert fused.sum > 4 * fused.peak
    assert plain.peak > 1.5 * fused.peak


def test_workgroups_go_to_rows_where_one_row_is_too_long() -> None:
    for dispatch, short in zip(lowered(DeviceLimits()), lowered(DeviceLimits(max_workgroups=100)), strict=True):
        (x, y, z), (sx, sy, sz) = dispatch.workgroups, short.workgroups
        assert (y, z, sz) == (1, 1, 1)
        assert sx <= 100
        assert x <= sx * sy < x + sy


def test_unsupported_layers_are_named() -> None:
    graph = build_graph()
    op = next(op for op in graph.ops if op.name == "blocks.1.0.conv_dw")
    with pytest.raises(BadModel, match=r"blocks\.1\.0\.conv_dw is a convolution of kernel 3, stride 2 and 3 groups"):
        LOWERINGS["conv"](op.with_(attrs={**op.attrs, "groups": 3}), graph, DeviceLimits())
