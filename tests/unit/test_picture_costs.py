"""What a warm picture costs between its message and its answer, counted: turns of the browser's event loop that are
waited for, calls into JavaScript, callbacks of asyncio. A guard against a slow way that needs no clock.

The door, the engine, its lease and the plan's replay are the real ones; of the browser there is a stand-in.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyapp.compiler.lowering import lower
from pyapp.compiler.passes import fuse
from pyapp.compiler.passes_vision import VISION_PASSES
from pyapp.door.ready_queue import ReadyQueue
from pyapp.engine.engine import Engine
from pyapp.engine.vision import NAME, VisionRunner
from pyapp.gpu.allocator import FreeList
from pyapp.gpu.device import Device
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.pool import Region, Slab
from pyapp.models.efficientnet import CLASSES, LITE0, build_graph
from pyapp.worker import Door
from tests.unit.door_fakes import World
from tests.unit.gpu_fakes import FakeProxy

PICTURE = bytes(224 * 224 * 3)
LOGITS = np.arange(CLASSES, dtype=np.float32)


class Browser:
    """JavaScript as Python sees it: what is called once all is made ready, what is submitted and what promised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.submits: list[tuple[Any, ...]] = []
        self.told: list[tuple[Any, int]] = []
        acts: dict[str, Any] = {
            name: lambda *args: None for name in ("write", "hasten", "clear", "timed", "bindGroups")
        }
        acts |= {"submit": self._submit, "tell": self._tell}
        replay = SimpleNamespace(
            record=lambda *args: SimpleNamespace(pace=1e-12),
            ranges=lambda *args: args,
            **{name: self._counted(name, act) for name, act in acts.items()},
        )
        ffi = SimpleNamespace(create_proxy=FakeProxy, to_js=lambda value, **options: value)
        monkeypatch.setitem(sys.modules, "tandem_replay", replay)
        monkeypatch.setitem(sys.modules, "pyodide", SimpleNamespace(ffi=ffi))
        monkeypatch.setitem(sys.modules, "pyodide.ffi", ffi)
        monkeypatch.setitem(sys.modules, "pyodide_js", SimpleNamespace(_module="heap"))
        monkeypatch.setitem(sys.modules, "js", SimpleNamespace(Object=SimpleNamespace(fromEntries=None)))

    def _counted(self, name: str, act: Any) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append(name)
            return act(*args)

        return call

    def _submit(self, *args: Any) -> str:
        self.submits.append(args)
        return "a promise"

    def _tell(self, promise: str, hear: Any, number: int) -> None:
        self.told.append((hear, number))


class Queue:
    """The ready queue in the place of a loop's ``call_soon``: ``end_turn`` is the end of a turn of the browser's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.microtasks = self.turns_asked = self.callbacks = 0
        self._queue = ReadyQueue(loop, self._soon, self._later, clock=lambda: 0.0)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self.callbacks += 1
        return self._queue.call_soon(callback, *args, context=context)

    def _soon(self) -> None:
        self.microtasks += 1

    def _later(self) -> None:
        self.turns_asked += 1

    def end_turn(self) -> None:
        while self.microtasks:
            self.microtasks -= 1
            self._queue.flush()


def engine_on(handle: Any) -> Any:
    """An engine with EfficientNet-Lite0, all of it resident, on a GPU that is none."""
    limits = DeviceLimits(max_binding=1 << 30, max_buffer=1 << 30, subgroup=32, subgroup_max=32)
    probe: Any = SimpleNamespace(device_limits=lambda: limits, tier="high", adapter="Fake", software=False)
    device = Device(handle, probe)
    engine: Any = Engine(device, 1 << 30)
    plan = lower(fuse(build_graph(LITE0), VISION_PASSES), limits)
    size = (plan.memory.peak + 255) // 256 * 256
    engine._activations = Region(Slab("workspace", size, "workspace", FreeList(size)), 0, size, "activations")
    engine.residency.sets[NAME] = SimpleNamespace(placement=SimpleNamespace(streamed=()))
    engine.residency._whole.add(NAME)
    residency: Any = SimpleNamespace(sets=engine.residency.sets, locate=lambda *place: ("weights", 0, 4))
    runner: Any = VisionRunner(plan, device, engine.pool, residency)
    runner._activations, runner._constants, runner._staging = engine._activations, "constants", "staging"
    kernels: Any = SimpleNamespace(pipeline=lambda dispatch: "pipeline", layout=lambda dispatch: ("layout", "layouts"))
    runner.build(kernels)
    engine.vision = runner
    engine.pool_status = dict
    return engine


@contextmanager
def running(loop: asyncio.AbstractEventLoop, queue: Queue) -> Iterator[None]:
    """As Pyodide's loop: it is always the running one, and only what comes from outside makes it run."""
    asyncio._set_running_loop(loop)
    loop.call_soon, usual = queue.call_soon, loop.call_soon  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        loop.call_soon = usual  # type: ignore[method-assign]
        asyncio._set_running_loop(None)


def test_a_warm_picture_waits_for_the_gpu_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Browser(monkeypatch)
    loop = asyncio.new_event_loop()
    posted: list[tuple[Any, ...]] = []

    async def opened() -> tuple[Door, Any]:
        handle = SimpleNamespace(
            queue="queue", lost=loop.create_future(), addEventListener=lambda *args: None,
            createBindGroup=lambda descriptor: "group",
        )  # fmt: skip
        world = World(engine=engine_on(handle))
        door = Door(lambda *message: posted.append(message), attach=lambda array: array, services=world.services())
        door.receive(json.dumps({"op": "open", "id": 1, "options": {}, "base": "/"}))
        async with asyncio.timeout(5):
            while not any('"re": 1' in line for line, *_ in posted):  # noqa: ASYNC110 - the door only posts
                await asyncio.sleep(0)
        return door, world.engine

    door, engine = loop.run_until_complete(opened())
    for ident in (2, 3):
        queue = Queue(loop)
        for kept in (browser.calls, browser.submits, browser.told, posted):
            kept.clear()
        with running(loop, queue):
            # The turn in which the message comes.
            door.receive(json.dumps({"op": "call", "id": ident, "method": "vision", "args": {}}), PICTURE)
            queue.end_turn()
            assert browser.calls == ["write", "submit", "hasten", "tell"]
            # The turn in which the logits come.
            [(hear, number)] = browser.told
            hear(number, SimpleNamespace(to_bytes=LOGITS.tobytes), "")
            queue.end_turn()
        [(line, logits)] = posted
        assert json.loads(line) == {"re": ident, "value": None}
        assert np.array_equal(logits, LOGITS)
        assert len(browser.calls) == 4, "nothing is left to do after the answer, or before it"
        assert queue.callbacks <= 4
        # All in one submit: the plan, the copy of its logits, and zeros over what it left.
        [[_, spans, tiles, repeat, source, _, nbytes, staging, _, cleared]] = browser.submits
        assert (spans, tiles, repeat) == ([0, len(engine.vision.plan.dispatches)], 1, 1)
        assert (source, nbytes, staging) == ("workspace", 4 * CLASSES, "staging")
        assert cleared == (["workspace"], [0, 0, engine.vision.plan.memory.peak])
        assert engine.leases.current is None

    async def leave_something() -> None:
        async with engine.leases.lease(NAME):
            pass

    browser.calls.clear()
    loop.run_until_complete(leave_something())
    assert browser.calls == ["clear"], "who ran something else than a picture leaves the clearing to the lease"
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
