"""The Python door with fakes behind it: photos, and the parts of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from pyapp.errors import BadArgument, BadImage, BadModel, DeviceLost, NoDevice
from tests.unit.door_fakes import World
from tests.unit.test_client import opened

# --- photos


async def test_describe_on_the_device() -> None:
    found = await (await opened(World())).describe(b"png")
    assert found["source"] == "device"
    assert (found["width"], found["height"]) == (20, 30)
    assert [label["index"] for label in found["labels"]] == [9, 8, 7, 6, 5]
    assert found["labels"][0]["name"] == "class 9"
    assert found["labels"][0]["p"] > found["labels"][1]["p"] > 0


@pytest.mark.parametrize("mode", ["prefer_on_device", "only_in_cloud"])
async def test_describe_on_the_cpu_where_there_is_no_device(mode: str) -> None:
    world = World(tier="unsupported")
    found = await (await opened(world, mode=mode)).describe(b"png")
    assert found["source"] == "cpu"
    assert found["labels"][0]["index"] == 0
    assert world.cloud.requests == []


async def test_device_that_fails_at_a_photo_leaves_it_to_the_cpu() -> None:
    world = World()
    client = await opened(world)
    world.engine.vision_error = DeviceLost("gone")
    assert (await client.describe(b"png"))["source"] == "cpu"
    assert client.status["source"] == "cloud"


async def test_bad_picture_harms_nothing() -> None:
    world = World()
    client = await opened(world)

    def refuse(image: Any) -> Any:
        raise BadImage("The file is empty.")

    good, world.picture = world.picture, refuse
    with pytest.raises(BadImage):
        await client.describe(b"")
    world.picture = good
    assert (await client.describe(b"png"))["source"] == "device"


async def test_client_without_vision_model_refuses_photos() -> None:
    client = await opened(World(), vision=None)
    with pytest.raises(BadArgument, match="without a vision model"):
        await client.describe(b"png")
    with pytest.raises(NoDevice):
        await client.inspect.vision(bytes(224 * 224 * 3))


# --- inspect


async def test_inspect_reaches_the_engine() -> None:
    client = await opened(World())
    assert await client.inspect.tokenize("Hi") == [72, 105]
    assert await client.inspect.detokenize([72, 105]) == "Hi"
    assert await client.inspect.detokenize([]) == ""
    message = [{"role": "user", "content": "x"}]
    assert await client.inspect.render(message, generation_prompt=False) == "[user]x"
    assert (await client.inspect.logits([1])).shape == (256,)
    assert (await client.inspect.nll([1, 2, 3])).shape == (2,)
    assert await client.inspect.greedy([1], 3) == [0, 1, 2]
    assert (await client.inspect.vision(bytes(224 * 224 * 3))).shape == (10,)
    assert await client.inspect.vision_times(bytes(224 * 224 * 3), 2) == [2.0, 2.0]
    assert (await client.inspect.plan("language"))["dispatchesPerLayer"] == 5
    assert (await client.inspect.memory())["asked"] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda i: i.tokenize(5),
        lambda i: i.tokenize("x", special=1),
        lambda i: i.detokenize([256]),
        lambda i: i.detokenize("ab"),
        lambda i: i.detokenize(None),
        lambda i: i.render("x"),
        lambda i: i.logits([]),
        lambda i: i.logits([-1]),
        lambda i: i.logits([0.5]),
        lambda i: i.nll([1]),
        lambda i: i.greedy([1], 0),
        lambda i: i.vision(b"short"),
        lambda i: i.vision("text"),
        lambda i: i.plan("both"),
    ],
)
async def test_inspect_refuses_bad_arguments(call: Any) -> None:
    client = await opened(World())
    with pytest.raises(BadArgument):
        await call(client.inspect)


async def test_inspect_rejects_with_no_device_whatever_the_cause() -> None:
    client = await opened(World(model_errors={"smollm2-135m": BadModel("truncated")}))
    with pytest.raises(NoDevice, match="truncated") as caught:
        await client.inspect.tokenize("x")
    assert caught.value.details["cause"]["code"] == "bad_model"
