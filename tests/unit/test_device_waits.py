"""Waiting for a GPU that keeps no promise: closing the device ends it, for those who come later too."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from pyapp.errors import DeviceLost
from pyapp.gpu.device import Device
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.replay import arrived

from .gpu_fakes import FakeProxy


@pytest_asyncio.fixture
async def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    proxies = SimpleNamespace(create_proxy=FakeProxy)
    monkeypatch.setitem(sys.modules, "pyodide", SimpleNamespace(ffi=proxies))
    monkeypatch.setitem(sys.modules, "pyodide.ffi", proxies)
    handle = SimpleNamespace(
        queue=None,
        lost=promise(),
        addEventListener=lambda name, listener: None,
        removeEventListener=lambda name, listener: None,
        destroy=lambda: None,
    )
    probe: Any = SimpleNamespace(device_limits=lambda: DeviceLimits(max_buffer=1 << 20))
    return Device(handle, probe)


def promise() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def test_what_is_kept_counts_as_finished(device: Device) -> None:
    kept = promise()
    asyncio.get_running_loop().call_soon(kept.set_result, SimpleNamespace(to_bytes=lambda: b"abc"))
    assert await arrived(device, kept, "testing") == b"abc"
    assert device.finished == 1


@pytest.mark.parametrize("cancels", [0, 1])
async def test_close_ends_the_wait(device: Device, cancels: int) -> None:
    waiting = asyncio.ensure_future(arrived(device, promise(), "testing"))
    for _ in range(cancels):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0.01)
    assert not waiting.done(), "until then the staging buffer cannot be used again"
    assert device.finished == 0
    device.close()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError if cancels else DeviceLost):
            await waiting


async def test_after_close_nothing_is_waited_for(device: Device) -> None:
    device.close()
    async with asyncio.timeout(1):
        with pytest.raises(DeviceLost, match="was closed"):
            await arrived(device, promise(), "testing")


class Replay:
    """What ``replay.mjs`` has of waiting: the test tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hear: Any = None
        self.numbers: list[int] = []
        monkeypatch.setitem(sys.modules, "tandem_replay", SimpleNamespace(tell=self.tell, write=None))
        monkeypatch.setitem(sys.modules, "pyodide_js", SimpleNamespace(_module=None))

    def tell(self, promise: object, hear: Any, number: int) -> None:
        self.hear = hear
        self.numbers.append(number)


async def test_promises_of_javascript_are_told_apart(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(monkeypatch)
    waiting = [asyncio.ensure_future(arrived(device, object(), "testing")) for _ in range(3)]
    await asyncio.sleep(0)
    one, two, three = replay.numbers
    replay.hear(two, SimpleNamespace(to_bytes=lambda: b"two"), "")
    replay.hear(three, None, "Error: AbortError: gone")
    replay.hear(one, SimpleNamespace(to_bytes=lambda: b"one"), "")
    assert await waiting[0] == b"one"
    assert await waiting[1] == b"two"
    with pytest.raises(DeviceLost, match=r"while testing \(Error: AbortError: gone\)"):
        await waiting[2]


async def test_what_is_told_after_close_harms_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """JavaScript may call until it has told everything, and what it calls by is freed then."""
    replay = Replay(monkeypatch)
    waiting = [asyncio.ensure_future(arrived(device, object(), "testing")) for _ in range(2)]
    await asyncio.sleep(0)
    freed: list[bool] = []
    replay.hear.destroy = lambda: freed.append(True)
    device.close()
    for number, each in zip(replay.numbers, waiting, strict=True):
        with pytest.raises(DeviceLost):
            await each
        assert not freed
        replay.hear(number, None, "Error: AbortError: destroyed")
    await asyncio.sleep(0)
    assert freed == [True]
