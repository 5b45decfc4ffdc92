"""Pipelines, compiled asynchronously and all at once, each with the layout that its bindings ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import NoDevice
from .device import Device, one_line
from .ffi import js_object
from .plan import Dispatch, Shader
from .preprocess import preprocess

COMPUTE_STAGE = 0x4
Layout = tuple[tuple[int, str], ...]


class Kernels:
    """The pipelines of one device by shader. ``load`` gives the text of a WGSL file by name."""

    def __init__(self, device: Device, load: Callable[[str], str]) -> None:
        self.device = device
        self._load = load
        self._pipelines: dict[Shader, Any] = {}
        self._layouts: dict[Layout, tuple[Any, Any]] = {}

    def layout(self, dispatch: Dispatch) -> tuple[Any, Any]:
        """(bind group layout, pipeline layout) for a dispatch's bindings; equal ones are shared."""
        key = tuple((b.slot, b.buffer_type) for b in dispatch.bindings)
        if key not in self._layouts:
            entries = [{"binding": slot, "visibility": COMPUTE_STAGE, "buffer": {"type": kind}} for slot, kind in key]
            group = self.device.handle.createBindGroupLayout(js_object({"entries": entries}))
            whole = self.device.handle.createPipelineLayout(js_object({"bindGroupLayouts": [group]}))
            self._layouts[key] = (group, whole)
        return self._layouts[key]

    def pipeline(self, dispatch: Dispatch) -> Any:
        """The compiled pipeline. KeyError when ``prepare`` has not seen the dispatch: nothing is compiled late."""
        return self._pipelines[dispatch.shader]

    def discard(self, shaders: Iterable[Shader]) -> None:
        """Lets go of pipelines that nothing will run any more."""
        for shader in shaders:
            self._pipelines.pop(shader, None)

    @property
    def count(self) -> int:
        return len(self._pipelines)

    async def prepare(self, dispatches: Iterable[Dispatch], progress: Callable[[int, int], None] | None = None) -> None:
        """Compiles what is missing, in parallel. ``progress(done, total)`` counts pipelines.

        Raises ``NoDevice`` with the driver's words when it refuses a kernel.
        """
        missing = {d.shader: d for d in dispatches if d.shader not in self._pipelines}
        done = 0

        async def compile_one(shader: Shader, dispatch: Dispatch) -> None:
            nonlocal done
            self._pipelines[shader] = await self._compile(shader, dispatch)
            done += 1
            if progress:
                progress(done, len(missing))

        # Layouts first: they are made synchronously, within one scope.
        async with self.device.guarded("making bind group layouts"):
            for dispatch in missing.values():
                self.layout(dispatch)
        await asyncio.gather(*(compile_one(shader, dispatch) for shader, dispatch in missing.items()))

    async def _compile(self, shader: Shader, dispatch: Dispatch) -> Any:
        code = preprocess(self._load(f"{shader.file}.wgsl"), dict(shader.params), self._load)
        handle = self.device.handle
        # In a scope of its own: an error that nobody catches would count as a call that the device has left out.
        handle.pushErrorScope("validation")
        module = handle.createShaderModule(code=code, label=shader.label)
        unsound = asyncio.ensure_future(handle.popErrorScope())
        descriptor = {
            "label": shader.label,
            "layout": self.layout(dispatch)[1],
            "compute": {"module": module, "entryPoint": "main"},
        }
        try:
            return await handle.createComputePipelineAsync(js_object(descriptor))
        except Exception as error:
            self.device.check()
            info = await module.getCompilationInfo()
            lines = [f"line {m.lineNum}: {m.message}" for m in info.messages if str(m.type) == "error"]
            raise NoDevice(
                f"The GPU's driver refused the kernel {shader.label} ({one_line('; '.join(lines) or error)}).",
                kernel=shader.label,
            ) from None
        finally:
            await asyncio.wait([unsound])  # what it says the pipeline says as well
