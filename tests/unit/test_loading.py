"""Taking the pool on a GPU that has less memory than the budget allows."""

from __future__ import annotations

import pytest

from pyapp.engine.loading import take_pool
from pyapp.engine.vision import VisionModel
from pyapp.errors import OutOfMemory
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.pool import Pool
from pyapp.models.efficientnet import build_graph, pack_layout

from .gpu_fakes import fake_device

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
