"""Runs dispatches outside a browser: PyPI's wgpu on Mesa's lavapipe, the same WGSL, subgroups of 4, 8 or 16.

Chromium's SwiftShader has subgroups of 4 only; this is how the kernels meet other sizes without such hardware. A
developer's tool, not part of the test run. With PyPI's wgpu 0.32.0 and Debian's mesa-vulkan-drivers:

    python -m tests.kernels.native 16       every case, sampling too, with the kernels of a GPU with subgroups of 16
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pyapp.compiler.lowering import lower
from pyapp.compiler.memory import aligned
from pyapp.gpu.limits import DeviceLimits
from pyapp.gpu.plan import Dispatch
from pyapp.gpu.preprocess import preprocess

SHADERS = Path(__file__).parents[2] / "shaders"
WORKGROUP_STORAGE = 32768
"""Bytes: what most GPUs have."""
Value = np.ndarray | tuple[np.ndarray, np.ndarray]


class Native:
    """A lavapipe device. ``bits``: the vector width in bits, 32 times the subgroup size (set before the first device
    of the process). Weights are (quants, scales) pairs of uint8 or plain arrays; the rest are plain arrays.
    """

    def __init__(self, bits: int = 128) -> None:
        os.environ["LP_NATIVE_VECTOR_WIDTH"] = str(bits)
        os.environ.setdefault("WGPU_BACKEND_TYPE", "Vulkan")
        import wgpu

        self._wgpu = wgpu
        adapter = next(a for a in wgpu.gpu.enumerate_adapters_sync() if "llvmpipe" in a.info["device"])
        wanted = ["subgroup"] if "subgroup" in adapter.features else []
        self.device = adapter.request_device_sync(
            required_features=wanted,
            required_limits={
                "max-storage-buffer-binding-size": adapter.limits["max-storage-buffer-binding-size"],
                "max-buffer-size": adapter.limits["max-buffer-size"],
                "max-storage-buffers-per-shader-stage": 8,
                "max-compute-workgroup-storage-size": WORKGROUP_STORAGE,
            },
        )
        self.limits = DeviceLimits(
            subgroup=bits // 32, subgroup_max=bits // 32, max_workgroup_storage=WORKGROUP_STORAGE, software=True
        )
        self._pipelines: dict[Any, Any] = {}
        self.buffers: dict[tuple[str, str], tuple[Any, int, int]] = {}
        self._workspace: Any = None

    def pipeline(self, dispatch: Dispatch) -> Any:
        shader = dispatch.shader
        if shader not in self._pipelines:
            text = (SHADERS / f"{shader.file}.wgsl").read_text()
            code = preprocess(text, dict(shader.params), lambda name: (SHADERS / name).read_text())
            code = code.replace("enable subgroups;", "").replace("diagnostic(off, subgroup_uniformity);", "")
            module = self.device.create_shader_module(code=code, label=shader.label)
            group = self.device.create_bind_group_layout(
                entries=[
                    {"binding": b.slot, "visibility": self._wgpu.ShaderStage.COMPUTE, "buffer": {"type": b.buffer_type}}
                    for b in dispatch.bindings
                ]
            )
            self._pipelines[shader] = self.device.create_compute_pipeline(
                layout=self.device.create_pipeline_layout(bind_group_layouts=[group]),
                compute={"module": module, "entry_point": "main"},
            )
        return self._pipelines[shader]

    def load(self, weights: Mapping[str, Value], workspace: Mapping[str, np.ndarray]) -> None:
        """Weights into one read-only buffer, everything else (with its initial contents) into one writable buffer."""
        usage = self._wgpu.BufferUsage
        for values, flags in ((weights, usage.STORAGE), (workspace, usage.STORAGE | usage.COPY_SRC)):
            places: list[tuple[tuple[str, str], int, np.ndarray]] = []
            at = 0
            for name, value in values.items():
                parts = {"quants": value[0], "scales": value[1]} if isinstance(value, tuple) else {"data": value}
                for section, array in parts.items():
                    raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
                    places.append(((name, section), at, raw))
                    at += aligned(max(raw.size, 4))
            buffer = self.device.create_buffer(size=max(at, 256), usage=flags | usage.COPY_DST)
            for key, offset, raw in places:
                if raw.size:
                    padded = np.zeros((raw.size + 3) // 4 * 4, np.uint8)
                    padded[: raw.size] = raw
                    self.device.queue.write_buffer(buffer, offset, padded)
                self.buffers[key] = (buffer, offset, (raw.size + 3) // 4 * 4)
        self.state = self.device.create_buffer(
            size=256, usage=usage.STORAGE | usage.UNIFORM | usage.COPY_DST | usage.COPY_SRC
        )

    def set_state(self, words: np.ndarray) -> None:
        self.device.queue.write_buffer(self.state, 0, np.ascontiguousarray(words))

    def _resource(self, binding: Any) -> dict[str, Any]:
        if binding.tensor == "state":
            return {"buffer": self.state, "offset": 0, "size": 256}
        key = (binding.tensor, binding.section)
        if key not in self.buffers and binding.section == "quants":
            key = (binding.tensor, "data")
        buffer, offset, size = self.buffers[key]
        return {
            "buffer": buffer,
            "offset": offset + binding.offset,
            "size": binding.nbytes or size - binding.offset,
        }

    def run(self, dispatches: Iterable[Dispatch], tiles: int | None = None, full_tiles: int = 1) -> None:
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for dispatch in dispatches:
            pipeline = self.pipeline(dispatch)
            group = self.device.create_bind_group(
                layout=pipeline.get_bind_group_layout(0),
                entries=[{"binding": b.slot, "resource": self._resource(b)} for b in dispatch.bindings],
            )
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            x, y, z = dispatch.workgroups
            if dispatch.per_tile and tiles is not None:
                y = y // full_tiles * tiles
            compute.dispatch_workgroups(x, y, z)
        compute.end()
        self.device.queue.submit([encoder.finish()])

    def read(self, name: str, dtype: Any = np.float32) -> np.ndarray:
        if name == "state":
            return np.frombuffer(self.device.queue.read_buffer(self.state), np.uint32).copy()
        buffer, offset, size = self.buffers[name, "data"]
        return np.frombuffer(self.device.queue.read_buffer(buffer, offset, size), dtype).copy()


def main(subgroup: int) -> int:
    """Runs every case; prints the largest error and whatever is wrong. Returns the exit status."""

    from .case import TOLERANCE
    from .decoder_cases import cases
    from .expected import compared, initial, words_of

    native = Native(subgroup * 32)
    worst, wrong = 0.0, sampled(native)
    for case in cases():
        # As on hardware with such subgroups, whatever the case asks for; its limits of memory stay.
        subgroup = native.limits.subgroup
        limits = replace(case.limits(native.limits), software=False, subgroup=subgroup, subgroup_max=subgroup)
        plan = lower(case.graph, limits)
        for state in case.states:
            native.load({name: (w.quants, w.scales) for name, w in case.weights.items()}, initial(case))
            native.set_state(words_of(state))
            tokens = max((d.workgroups[1] for d in plan.dispatches if d.per_tile), default=1)
            native.run(plan.dispatches, -(-state.count // plan.tile), max(1, tokens // plan.tile))
            error, faults = compared(case, state, {name: native.read(name, np.uint32) for name in initial(case)})
            worst = max(worst, error)
            if faults or not error <= TOLERANCE:
                wrong += 1
                print(f"{case.name}, position {state.position}: error {error:.1e} {'; '.join(faults)}")
    print(f"subgroups of {subgroup}: largest error {worst:.1e}, {wrong} wrong")
    return 1 if wrong else 0


def sampled(native: Native) -> int:
    """Runs every case of the samplers, as lowered for hardware; prints and counts those that end in a wrong state."""
    from .expected import words_after, words_of
    from .sampling_cases import greedy_cases, random_cases

    wrong = 0
    for draws in (*greedy_cases(), *random_cases()):
        plan = lower(draws.graph, replace(native.limits, software=False))
        walk = dict(plan.dispatches[0].shader.params)["WG"]
        draws = replace(draws, states=tuple(replace(state, walk=walk) for state in draws.states))
        native.load({}, {"logits": draws.words})
        for begin, after in zip(draws.states, draws.expected(), strict=True):
            native.set_state(words_of(begin))
            native.run(plan.dispatches * draws.steps)
            if not np.array_equal(native.read("state"), words_after(after, after.ids, begin.step)):
                wrong += 1
                print(f"{draws.name}, seed {begin.seed}: {native.read('state')}, not {after}")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 16))
