"""Taking the pool: on a GPU that has less memory than the budget allows, and with plans for what was taken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyapp.engine.language import LanguageModel
from pyapp.engine.loading import Sized, size_for, take_pool
from pyapp.engine.vision import VisionModel
from pyapp.errors import OutOfMemory
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.pool import Pool
from pyapp.models.efficientnet import build_graph, pack_layout
from pyapp.weights.gguf import read_gguf
from pyapp.weights.source import BytesSource

from .gpu_fakes import fake_device
from .tiny_models import TINY

MIB = 1 << 20


def vision_model() -> VisionModel:
    model = VisionModel.__new__(VisionModel)
    model.graph = build_graph()
    model.layout = pack_layout(model.graph)
    return model


@pytest.mark.parametrize(("memory", "streams"), [(900 * MIB, False), (30 * MIB, False), (18 * MIB, True)])
async def test_a_gpu_with_less_memory_gets_a_smaller_pool(memory: int, streams: bool) -> None:
    device, model = fake_device(memory=memory), vision_model()
    pool = Pool(device, 900 * MIB)
    sized = await take_pool(device, pool, None, model, model.lowered(DeviceLimits()), 1.0)
    assert bool(sized.sizing.placements[0].streamed) == streams
    assert device.live == pool.live == pool.slab_bytes <= memory
    assert pool.slab_bytes == sized.sizing.weights + sized.sizing.workspace


async def test_a_gpu_with_too_little_is_said_so_and_nothing_is_left() -> None:
    device, model = fake_device(memory=4 * MIB), vision_model()
    pool = Pool(device, 900 * MIB)
    with pytest.raises(OutOfMemory, match="need at least"):
        await take_pool(device, pool, None, model, model.lowered(DeviceLimits()), 1.0)
    assert device.live == pool.live == 0


@pytest.mark.parametrize("name", ["tiny-qwen2-Q4_0-untied", "tiny-qwen3-Q8_0-tied"])
async def test_the_plans_are_for_the_cache_that_was_chosen(name: str) -> None:
    source = BytesSource((TINY / f"{name}.gguf").read_bytes())
    model = await LanguageModel.open(SimpleNamespace(source=source))

    async def taken(budget: int) -> Sized:
        device = fake_device()
        sized = await take_pool(device, Pool(device, budget), model, None, None, 1.0)
        assert device.live == sized.sizing.weights + sized.sizing.workspace <= budget
        return sized

    wide = await taken(900 * MIB)
    half = await taken(wide.sizing.weights + wide.sizing.workspace - 256)
    cache = 512 * model.config.kv_bytes_per_token
    assert (wide.sizing.kv, half.sizing.kv) == ("f32", "f16")
    assert wide.sizing.context == half.sizing.context == 512
    assert wide.sizing.workspace - half.sizing.workspace == cache // 2
    assert not half.sizing.placements[0].streamed
    for sized, halves in ((wide, False), (half, True)):
        assert sized.language is not None
        for plan in sized.language:
            touching = [d for d in plan.dispatches if any(b.tensor.endswith(".kv") for b in d.bindings)]
            assert len(touching) == 2 * model.config.layers
            assert all(dict(d.shader.params)["HALF_CACHE"] == halves for d in touching)


async def test_plans_are_made_once_where_there_is_room() -> None:
    tiny = TINY / "tiny-llama-Q4_1-tied.gguf"
    model = LanguageModel(SimpleNamespace(), await read_gguf(BytesSource(tiny.read_bytes())))
    limits = DeviceLimits()
    sized = size_for(limits, 900 * MIB, model, None, None)
    assert sized.language is model.plans(limits, 512, {})
    assert model.plans(limits, 512, {}, "f16") is not sized.language
    cut = size_for(limits.lowered({"maxStorageBufferBindingSize": 32 << 10}), 900 * MIB, model, None, None)
    assert cut.language is not sized.language
