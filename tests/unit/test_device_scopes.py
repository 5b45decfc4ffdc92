"""What ``Device.guarded`` makes of what its error scopes caught."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pyapp.errors import DeviceLost, NoDevice, OutOfMemory, TandemError
from pyapp.gpu.device import Device


class Scopes:
    """A GPUDevice whose scopes catch ``errors`` (filter -> message) when they are popped."""

    def __init__(self, **errors: str) -> None:
        self.errors = {name.replace("_", "-"): message for name, message in errors.items()}
        self.stack: list[str] = []

    def pushErrorScope(self, which: str) -> None:
        self.stack.append(which)

    def popErrorScope(self) -> Any:
        found = self.errors.get(self.stack.pop())

        async def answer() -> Any:
            return found and SimpleNamespace(message=found)

        return asyncio.ensure_future(answer())


def device(handle: Scopes) -> Device:
    made = object.__new__(Device)  # no browser: nothing but the scopes is asked for
    made.handle, made.lost, made.lost_reason, made.closed, made.errors = (
        handle,
        asyncio.Event(),
        "unknown: gone",
        False,
        [],
    )
    return made


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ({"out_of_memory": "no room"}, OutOfMemory),
        ({"validation": "too large"}, NoDevice),
        ({"out_of_memory": "no room", "validation": "too large"}, OutOfMemory),
    ],
)
async def test_each_scope_has_its_error(errors: dict[str, str], kind: type[TandemError]) -> None:
    handle = Scopes(**errors)
    with pytest.raises(kind, match=r"while taking a slab|refused taking a slab"):
        async with device(handle).guarded("taking a slab"):
            pass
    assert handle.stack == []


async def test_nothing_caught_is_nothing_raised() -> None:
    handle = Scopes()
    async with device(handle).guarded("taking a slab"):
        assert handle.stack == ["out-of-memory", "validation"]
    assert handle.stack == []


@pytest.mark.parametrize("scope", ["out_of_memory", "validation"])
async def test_what_fails_because_the_device_is_gone_is_a_loss_and_no_lack_of_memory(scope: str) -> None:
    gone = device(Scopes(**{scope: "not enough memory left"}))
    with pytest.raises(DeviceLost, match="unknown: gone"):
        async with gone.guarded("taking 4 bytes"):
            gone.lost.set()


async def test_what_the_work_raises_comes_through_and_both_scopes_are_popped() -> None:
    handle = Scopes(out_of_memory="no room")
    with pytest.raises(ZeroDivisionError):
        async with device(handle).guarded("taking a slab"):
            raise ZeroDivisionError
    assert handle.stack == []
