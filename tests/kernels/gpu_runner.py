"""Runs small graphs on the browser's GPU from Pyodide, by the same modules that run the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.compiler.graph import Graph
from pyapp.compiler.lowering import lower
from pyapp.engine.assets import shader_text
from pyapp.gpu.device import Device
from pyapp.gpu.kernels import Kernels
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.plan import FIGURES, Binding
from pyapp.gpu.pool import Pool, Region
from pyapp.gpu.probe import probe
from pyapp.gpu.replay import Replay

Array = NDArray[Any]
SLAB = 16 << 20
READBACK = 4 << 20
TAIL = 256
"""Bytes of NaN that are bound behind every tensor: a kernel that reads past its end takes one along."""


class GpuRunner:
    """A device with a small pool. Every tensor of a graph gets a region of its own, weights in a read-only slab."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool = Pool(device, 4 * SLAB)
        self.kernels = Kernels(device, shader_text)

    @classmethod
    async def open(cls, adapter: str = "software") -> GpuRunner:
        runner = cls(await Device.open(await probe(adapter)))
        for role in ("weights", "workspace"):
            await runner.pool.add_slabs(role, SLAB, SLAB)  # type: ignore[arg-type]
        runner._staging = (await runner.pool.readback_ring(READBACK, slots=1))[0]
        return runner

    _staging: Any

    async def run(
        self, graph: Graph, limits: DeviceLimits, inputs: Mapping[str, Array], weights: Mapping[str, Array], output: str
    ) -> Array:
        """The float32 values of ``output``. It and all activations hold NaN before the run, so that a value which no
        kernel writes cannot pass for one.
        """
        plan = lower(graph, limits)
        await self.kernels.prepare(plan.dispatches)
        regions: dict[str, Region] = {}
        try:
            for name, tensor in graph.tensors.items():
                weight = tensor.kind == "weight"
                value = weights[name] if weight else inputs.get(name, np.full(tensor.shape, np.nan, np.float32))
                regions[name] = self._place("weights" if weight else "workspace", name, value)

            constants = await self._constants(plan.constants)

            def resolve(binding: Binding) -> tuple[Any, int, int]:
                if binding.tensor == FIGURES:
                    return constants, binding.offset, binding.nbytes or 0
                region = regions[binding.tensor]
                size = binding.nbytes or region.size - binding.offset
                return region.slice(binding.offset, size)

            async with self.device.guarded(f"running {graph.name}"):
                replay = Replay(self.device, self.kernels, plan, resolve)
                source = regions[output].slice(0, graph.tensors[output].nbytes)
                span = ((0, len(plan.dispatches)),)
                result = await replay.submit(span, copy=source, staging=self._staging)
            return np.frombuffer(result.to_bytes(), np.float32).reshape(graph.tensors[output].shape)
        finally:
            for region in regions.values():
                self.pool.give_back(region)

    async def _constants(self, data: bytes) -> Any:
        if not data:
            return None
        buffer = await self.pool.constants_buffer(len(data))
        self.device.write(buffer, 0, np.frombuffer(data, np.uint8))
        return buffer

    def _place(self, role: Any, name: str, value: Array) -> Region:
        padded = np.full((value.nbytes + 3) // 4 * 4 + TAIL, 0xFF, np.uint8)  # writeBuffer takes whole words
        region = self.pool.take(role, padded.nbytes, "test", name)
        assert region is not None, f"{name} does not fit the test's slab"
        padded[: value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        buffer, offset, _ = region.slice(0, padded.nbytes)
        self.device.write(buffer, offset, padded)
        return region

    def close(self) -> list[str]:
        """Gives everything back; returns the errors that no scope caught."""
        self.pool.close()
        errors = list(self.device.errors)
        self.device.close()
        return errors
