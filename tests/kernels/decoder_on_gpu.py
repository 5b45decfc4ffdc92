"""Runs in Pyodide, in a worker of the page: the decoder cases on the GPU against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.compiler.lowering import lower
from pyapp.compiler.reference import StepState
from pyapp.engine.assets import shader_text
from pyapp.gpu.device import Device
from pyapp.gpu.kernels import Kernels
from pyapp.gpu.plan import Binding, Plan
from pyapp.gpu.pool import Pool, Region
from pyapp.gpu.probe import probe
from pyapp.gpu.replay import Replay

from .case import Case
from .decoder_cases import cases
from .expected import compared, guarded, initial, words_of

Array = NDArray[Any]
SLAB = 16 << 20
READBACK = 8 << 20
STATE_BYTES = 256


class DecoderRunner:
    """A device with a small pool and one step state. Every tensor gets a region of its own."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool = Pool(device, 4 * SLAB)
        self.kernels = Kernels(device, shader_text)

    @classmethod
    async def open(cls) -> DecoderRunner:
        runner = cls(await Device.open(await probe("software")))
        for role in ("weights", "workspace"):
            await runner.pool.add_slabs(role, SLAB, SLAB)  # type: ignore[arg-type]
        runner.state = await runner.pool.state_buffer()
        runner.staging = (await runner.pool.readback_ring(READBACK, slots=1))[0]
        return runner

    state: Any
    staging: Any

    def plan(self, case: Case) -> Plan:
        return lower(case.graph, case.limits(self.device.limits))

    def write_state(self, state: StepState) -> None:
        self.device.write(self.state, 0, words_of(state))

    async def read_state(self) -> Array:
        return await self.read(self.state, 0, STATE_BYTES)

    async def read(self, buffer: Any, offset: int, size: int) -> Array:
        import tandem_replay

        data = await tandem_replay.readBack(self.device.handle, buffer, offset, size, self.staging)
        return np.frombuffer(data.to_bytes(), np.uint32)

    def close(self) -> list[str]:
        """Gives everything back; returns the errors that no scope caught."""
        self.pool.close()
        errors = list(self.device.errors)
        if self.pool.live or any(self.pool.objects.values()):
            errors.append(f"left behind: {self.pool.live} bytes, {self.pool.objects}")
        self.device.close()
        return errors


class Bound:
    """A case's tensors in the pool and its plan bound to them. Close it."""

    def __init__(self, runner: DecoderRunner, case: Case) -> None:
        self.runner, self.case = runner, case
        self.regions: dict[tuple[str, str], Region] = {}
        for name, weight in case.weights.items():
            for section, data in (("quants", weight.quants), ("scales", weight.scales)):
                if data.size:
                    self._place("weights", name, section, guarded(data))
        self.initial = initial(case)
        for name, data in self.initial.items():
            self._place("workspace", name, "data", data)
        self.plan = runner.plan(case)
        self._replay = Replay(runner.device, runner.kernels, self.plan, self._resolve)

    def _place(self, role: Any, name: str, section: str, data: Array) -> None:
        region = self.runner.pool.take(role, data.nbytes, "test", f"{name} {section}")
        assert region is not None, f"{name} does not fit the test's slab"
        self.regions[name, section] = region
        self._fill(region, data)

    def _fill(self, region: Region, data: Array) -> None:
        buffer, offset, _ = region.slice(0, data.nbytes)
        self.runner.device.write(buffer, offset, data)

    def _resolve(self, binding: Binding) -> tuple[Any, int, int]:
        if binding.tensor == "state":
            return self.runner.state, 0, STATE_BYTES
        region = self.regions[binding.tensor, binding.section]
        return region.slice(binding.offset, binding.nbytes or region.size - binding.offset)

    async def run(self, state: StepState, repeat: int = 1) -> None:
        """Fills everything with what it held at first, and replays the plan from ``state``."""
        for name, data in self.initial.items():
            self._fill(self.regions[name, "data"], data)
        self.runner.write_state(state)
        tiles = -(-state.count // self.plan.tile)
        self._replay.submit(((0, len(self.plan.dispatches)),), tiles=tiles, repeat=repeat)
        await self.runner.device.idle()

    async def words(self) -> dict[str, Array]:
        """Every tensor's words, with the guards behind them."""
        found = {}
        for name, data in self.initial.items():
            found[name] = await self.runner.read(*self.regions[name, "data"].slice(0, data.nbytes))
        return found

    def close(self) -> None:
        for region in self.regions.values():
            self.runner.pool.give_back(region)


async def compare() -> dict[str, Any]:
    """Every case: its largest normalised squared error, and what else was wrong with it, by name."""
    runner = await DecoderRunner.open()
    todo = list(cases())
    await runner.kernels.prepare(dispatch for case in todo for dispatch in runner.plan(case).dispatches)
    errors: dict[str, float] = {}
    faults: list[str] = []
    for case in todo:
        bound = Bound(runner, case)
        try:
            async with runner.device.guarded(case.name):
                faults += [f"{case.name}: {fault}" for fault in await _stopped(bound)]
                found = []
                for state in case.states:
                    await bound.run(state)
                    found.append(compared(case, state, await bound.words()))
        finally:
            bound.close()
        errors[case.name] = max(error for error, _ in found)
        faults += [f"{case.name}: {fault}" for _, each in found for fault in each]
    pipelines = runner.kernels.count
    return {"errors": errors, "faults": faults, "pipelines": pipelines, "uncaught": runner.close()}


async def _stopped(bound: Bound) -> list[str]:
    """After a stop nothing is written: every tensor and the state itself stay as they were, bit by bit."""
    state = replace(bound.case.states[0], stop=True)
    await bound.run(state, repeat=2)
    words = await bound.words()
    faults = [
        f"a stopped step wrote to {name}"
        for name, data in bound.initial.items()
        if not np.array_equal(words[name], data)
    ]
    if not np.array_equal(await bound.runner.read_state(), words_of(state)):
        faults.append("a stopped step changed the state")
    return faults
