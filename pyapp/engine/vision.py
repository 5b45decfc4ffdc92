"""The vision model on the device: one plan, one submit a picture."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..compiler.lowering import lower
from ..compiler.passes import fuse
from ..compiler.passes_vision import VISION_PASSES
from ..gpu.device import Device
from ..gpu.kernels import Kernels
from ..gpu.lease import Lease
from ..gpu.limits import DeviceLimits
from ..gpu.plan import FIGURES, Binding, Plan
from ..gpu.pool import Pool, Region
from ..gpu.replay import Ranges, Replay, arrived, hasten
from ..gpu.residency import Residency
from ..models.efficientnet import CLASSES, LITE0, SIDE, Scale, build_graph, pack_layout, pack_vision
from ..weights.blocks import blocks_of
from ..weights.safetensors import SafetensorsFile, read_safetensors
from .assets import Progress, packed_blob
from .sizing import Weights
from .steps import steps_for

NAME = "vision"


class VisionModel:
    """What is known of the model before it has a device: file, graph, packed layout."""

    def __init__(self, stored: Any, file: SafetensorsFile, scale: Scale = LITE0) -> None:
        self.stored = stored
        self.file = file
        self.graph = build_graph(scale)
        self.layout = pack_layout(self.graph)

    @classmethod
    async def open(cls, stored: Any, scale: Scale = LITE0) -> VisionModel:
        """Reads the file's head. Raises ``BadModel``."""
        return cls(stored, await read_safetensors(stored.source), scale)

    def weights(self) -> Weights:
        """The blocks that the weights move in; its kernels need all of a weight at once."""
        return Weights(blocks_of(self.layout, by_rows=False), downward=True)

    def lowered(self, limits: DeviceLimits) -> Plan:
        """The plan for a device. Raises ``BadModel`` where its bindings are too small."""
        return lower(fuse(self.graph, VISION_PASSES), limits)

    async def blob(self, progress: Progress) -> Any:
        async def fill(sink: Any) -> None:
            report = lambda _, done, total: progress("prepare", done, total)  # noqa: E731
            await pack_vision(self.graph, self.file, self.stored.source, self.layout, sink, report)

        return await packed_blob(self.stored.key, self.layout, fill, progress)


class VisionRunner:
    """The model bound to a pool. Callers hold the lease of ``vision`` while they use it."""

    def __init__(self, plan: Plan, device: Device, pool: Pool, residency: Residency) -> None:
        self.plan = plan
        self.device = device
        self._pool = pool
        self._residency = residency
        self.cleared = False
        """Whether the last submit has left nothing in the activations. Who ends the lease looks, and takes it back."""

    async def bind_memory(self, activations: Region) -> None:
        self._activations = activations
        self._constants = await self._pool.constants_buffer(len(self.plan.constants))
        self.device.write(self._constants, 0, np.frombuffer(self.plan.constants, np.uint8))
        self._staging = (await self._pool.readback_ring(CLASSES * 4, slots=1))[0]

    def build(self, kernels: Kernels) -> None:
        """Binds the plan to its fixed homes."""
        replay = Replay(self.device, kernels, self.plan, self._resolve)
        self.steps = steps_for(replay, self.device, self._residency, NAME)
        self._spans = ((0, len(self.plan.dispatches)),)
        self._pixels = self._resolve(Binding(0, "pixels", "read_write"))
        buffer, offset, _ = self._resolve(Binding(0, "logits", "read_write"))
        self._logits = buffer, offset, CLASSES * 4
        self._used = Ranges(self.device, [self._activations.slice(0, self.plan.memory.peak)])

    def _resolve(self, b: Binding) -> tuple[Any, int, int]:
        if b.tensor == FIGURES:
            return self._constants, b.offset, b.nbytes or 0
        if b.section != "data":
            return self._residency.locate(NAME, b.tensor, b.section, b.offset, b.nbytes)
        offset, size = self.plan.memory.offsets[b.tensor], self.plan.memory.sizes[b.tensor]
        return self._activations.slice(offset + b.offset, b.nbytes or size - b.offset)

    async def classify(self, lease: Lease, pixels: np.ndarray) -> np.ndarray:
        """Logits float32 [1000] of an RGB picture uint8 [224, 224, 3]. Raises ``DeviceLost``, ``StaleLease``."""
        lease.check()
        self._put(pixels)
        return await self._answer(await self._run())

    async def times(self, lease: Lease, pixels: np.ndarray, count: int) -> list[float]:
        """Seconds from the submit of a picture that is on the GPU until its logits are here, ``count`` times over."""
        seconds = []
        for _ in range(count):
            lease.check()
            self._put(pixels)
            await self.device.idle()
            start = time.perf_counter()
            await self._answer(await self._run())
            seconds.append(time.perf_counter() - start)
        return seconds

    def _put(self, pixels: np.ndarray) -> None:
        buffer, offset, _ = self._pixels
        data = np.ascontiguousarray(pixels, np.uint8).reshape(SIDE * SIDE * 3)
        self.device.check()
        self.cleared = False
        self.device.write(buffer, offset, data)

    async def _run(self) -> Any:
        """Submits the picture, its answer's copy and the clearing behind it; returns the promise of the copy."""
        promise = await self.steps.run(self._spans, copy=self._logits, staging=self._staging, clear=self._used)
        self.cleared = True
        hasten(self.device, promise)
        return promise

    async def _answer(self, promise: Any) -> np.ndarray:
        return np.frombuffer(await arrived(self.device, promise, "running the vision model"), np.float32)
