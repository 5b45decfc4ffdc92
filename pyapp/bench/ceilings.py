"""What an adapter can do at best, measured by kernels that do one thing only: read, compute, or nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from ..engine.assets import shader_text
from ..engine.timing import Stopwatch, Timing, measure
from ..errors import OutOfMemory
from ..gpu.device import Device
from ..gpu.kernels import Kernels
from ..gpu.plan import Binding, Dispatch, MemoryPlan, Plan, Shader
from ..gpu.pool import STATE_BYTES, Pool, Region
from ..gpu.probe import Probe
from ..gpu.replay import Replay, arrived
from .kernel_options import KernelOptions

Row = dict[str, Any]
MIB = 1 << 20
LOADS = 8
"""vec4 that an invocation of ``bench_read.wgsl`` reads."""
SIZES = (8 * MIB, 32 * MIB, 256 * MIB, 1024 * MIB)
"""Bytes that are read over and over. The first lie in a large GPU's cache; of the last, at most a small share does."""
WALKED = (4 * MIB, 16 * MIB, 128 * MIB)
"""Bytes of a dispatch that reads its range after all the others, as a step does with a layer's weights."""
CHAINS, TRIPS = 4, 256
"""Of ``bench_fma.wgsl``: vec4 that do not wait for each other, and how often each is multiplied."""
FEW, MANY, MORE = 16, 16384, 4
"""Workgroups of ``bench_fma.wgsl``: so many times more until they take ``ENOUGH``."""
ENOUGH = 200.0
"""Microseconds."""
EMPTY = 1000
"""Dispatches of the chain of empty kernels."""
PIECE = 4 * MIB
"""Bytes of a call of ``writeBuffer``."""
TRIPS_BACK = 15
NOWHERE = MemoryPlan({}, {}, 0, 0)


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second from memory, float32 operations a second, and seconds a dispatch costs; 0: not measured."""

    bandwidth: float = 0.0
    flops: float = 0.0
    dispatch: float = 0.0
    reads: tuple[tuple[float, float], ...] = ()
    """(bytes, us) of plain reads from memory, smaller ones first."""

    def least_us(self, nbytes: float, flops: float) -> tuple[float, str]:
        """The microseconds that a kernel takes at least, and what says so: memory, arithmetic or dispatch."""
        bounds = {
            "memory": nbytes / self.bandwidth * 1e6 if self.bandwidth else 0.0,
            "arithmetic": flops / self.flops * 1e6 if self.flops else 0.0,
            "dispatch": self.dispatch * 1e6,
        }
        name = max(bounds, key=lambda each: bounds[each])
        return bounds[name], name

    def read_us(self, nbytes: float) -> float:
        """The microseconds that a plain read of as many bytes takes: on the straight line between its measured
        neighbours, of which an empty dispatch is the first; past the last one, at that one's pace. 0: not measured."""
        if not self.reads:
            return 0.0
        sizes, times = zip((0.0, self.dispatch * 1e6), *self.reads, strict=True)
        return float(np.interp(nbytes, sizes, times)) * max(1.0, nbytes / sizes[-1])


class Bed:
    """A device, and what its ceilings are measured in: ``data`` to read from, in pieces of a binding, and ``out``."""

    def __init__(self, device: Device, options: KernelOptions) -> None:
        self.device = device
        self.options = options
        self.pool = Pool(device, options.room * MIB + 2 * MIB)
        self.kernels = Kernels(device, shader_text)
        limits = device.limits
        self.wide = min(256, limits.max_invocations)
        self.line = self.wide * LOADS * 16
        """Bytes that a workgroup of ``bench_read.wgsl`` reads."""
        most = min(limits.max_binding, limits.max_buffer, limits.max_workgroups * self.line, SIZES[-1])
        self.piece = most // self.line * self.line
        self.data: list[Region] = []

    async def take(self) -> None:
        """Takes the memory: as much of ``room`` as there is. Raises ``OutOfMemory`` where there is not even a piece."""
        await self.pool.add_slabs("workspace", MIB, MIB)
        out = self.pool.take("workspace", MIB, "bench", "out")
        assert out is not None
        self.out = out
        self.watch = await Stopwatch.of(self.pool)
        room = self.options.room * MIB
        while True:
            piece = min(self.piece, room // self.line * self.line)
            try:
                await self.pool.add_slabs("weights", room // piece * piece, piece)
                break
            except OutOfMemory:
                if room <= SIZES[0]:
                    raise
                room //= 2
        self.piece = piece
        while region := self.pool.take("weights", piece, "bench", "data"):
            self.data.append(region)

    @property
    def nbytes(self) -> int:
        return sum(region.size for region in self.data)

    async def replay(self, dispatches: Sequence[Dispatch]) -> Replay:
        """``dispatches`` bound to the memory: the tensor ``out``, and a number for a piece of ``data``."""
        await self.kernels.prepare(dispatches)
        return Replay(self.device, self.kernels, Plan("bench", tuple(dispatches), NOWHERE), self._place)

    def _place(self, binding: Binding) -> tuple[Any, int, int]:
        if binding.tensor == "out":
            return self.out.slice(0, 4096)
        region = self.data[int(binding.tensor)]
        return region.slice(binding.offset, binding.nbytes or region.size)

    async def time(self, dispatches: Sequence[Dispatch]) -> Timing:
        """Of a run through all of them."""
        replay = await self.replay(dispatches)
        run = self.watch.submits(replay, ((0, len(dispatches)),))
        options = self.options
        most = max(1, 16 * EMPTY // len(dispatches))
        return await measure(run, rounds=options.reps, seconds=options.submit_seconds, most=most)


async def measure_ceilings(
    found: Probe, options: KernelOptions, post: Callable[[Row], Any], failed: Callable[[str, Exception], Any]
) -> Ceilings:
    """Measures each ceiling and posts its rows; what fails is told to ``failed`` (name, error) and is 0."""
    device = await Device.open(found)
    bed = Bed(device, options)
    values: dict[str, Any] = {}
    measures: dict[str, Callable[[Bed, Callable[[Row], Any]], Awaitable[Any]]] = {
        "upload": _upload, "read": _read, "dispatch": _dispatch, "arithmetic": _arithmetic, "round trip": _round_trip,
    }  # fmt: skip
    try:
        await bed.take()
        for name, each in measures.items():
            try:
                values[name] = await each(bed, lambda row, name=name: post({"ceiling": name, **row}))  # type: ignore[misc]
            except Exception as error:
                failed(name, error)
    finally:
        bed.pool.close()
        device.close()
    reads = values.get("read", ())
    bandwidth = reads[-1][0] / reads[-1][1] * 1e6 if reads else 0.0
    return Ceilings(bandwidth, values.get("arithmetic", 0.0), values.get("dispatch", 0.0), reads)


def figures(timing: Timing) -> Row:
    """What every row of a time has."""
    return {"us": timing.us, "us_min": timing.us_min, "clock": timing.clock}


async def _upload(bed: Bed, post: Callable[[Row], Any]) -> float:
    """Bytes a second that ``writeBuffer`` moves; fills ``data`` with random numbers, which nothing can compress."""
    random = np.random.default_rng(3).integers(0, 256, PIECE, np.uint8)
    rates = []
    for region in bed.data:
        for begin in range(0, region.size, 16 * PIECE):
            await bed.device.idle()
            start = time.perf_counter()
            end = min(begin + 16 * PIECE, region.size)
            for at in range(begin, end, PIECE):
                buffer, offset, size = region.slice(at, min(PIECE, end - at))
                bed.device.write(buffer, offset, random[:size])
            await bed.device.idle()
            rates.append((end - begin) / max(time.perf_counter() - start, 1e-6))
    post({"bytes": bed.nbytes, "GBps": median(rates) / 1e9, "GBps_best": max(rates) / 1e9, "clock": "wall"})
    return float(median(rates))


async def _read(bed: Bed, post: Callable[[Row], Any]) -> tuple[tuple[float, float], ...]:
    """(bytes, us) of reads that come from memory: of ranges in turn, and of the largest one."""
    found = []
    for size in WALKED:
        walk = walks(size, [region.size for region in bed.data], bed.wide)
        if len(walk) > 1:
            timing = (await bed.time(walk)).over(len(walk))
            post({"bytes": size, "ranges": len(walk), **figures(timing), "GBps": size / timing.us / 1e3})
            found.append((float(size), timing.us))
    for size in sorted({min(size // bed.line * bed.line, bed.nbytes) for size in SIZES}):
        timing = await bed.time(reads(size, bed.piece, bed.wide))
        post({"bytes": size, **figures(timing), "GBps": size / timing.us / 1e3})
    return (*found, (float(size), timing.us))


def walks(size: int, regions: Sequence[int], wide: int) -> list[Dispatch]:
    """Dispatches of ``bench_read.wgsl`` over all ranges of ``size`` bytes that regions of so many bytes have."""
    return [
        replace(each, bindings=(replace(each.bindings[0], tensor=str(number), offset=begin), each.bindings[1]))
        for number, room in enumerate(regions)
        for begin in range(0, room - size + 1, size)
        for each in reads(size, size, wide)
    ]


def reads(size: int, piece: int, wide: int) -> list[Dispatch]:
    """Dispatches of ``bench_read.wgsl`` that read ``size`` bytes, ``piece`` of them at most in each."""
    shader = Shader.of("bench_read", WG=wide, LOADS=LOADS)
    line = wide * LOADS * 16
    out = []
    for number, begin in enumerate(range(0, size, piece)):
        nbytes = min(piece, size - begin)
        bindings = (Binding(0, str(number), "read", nbytes=nbytes), Binding(1, "out", "read_write"))
        out.append(Dispatch("read", shader, bindings, (nbytes // line, 1, 1), bytes=nbytes, flops=0))
    return out


async def _dispatch(bed: Bed, post: Callable[[Row], Any]) -> float:
    """Seconds of an empty dispatch in a chain, each with another pipeline than the one before, as in a step."""
    each = 0.0
    for pipelines in (1, 2):
        shaders = [Shader.of("bench_empty", VARIANT=number, WG=64) for number in range(pipelines)]
        bindings = (Binding(0, "out", "read_write"),)
        chain = [Dispatch("empty", shaders[i % pipelines], bindings, (1, 1, 1), 0, 0) for i in range(EMPTY)]
        timing = (await bed.time(chain)).over(EMPTY)
        each = timing.us / 1e6
        post({"dispatches": EMPTY, "pipelines": pipelines, **figures(timing), "wall_us": timing.wall_us})
    return each


async def _arithmetic(bed: Bed, post: Callable[[Row], Any]) -> float:
    """float32 operations a second; a multiplication and addition counts as two."""
    few = Dispatch("fma", Shader.of("bench_fma", WG=bed.wide, CHAINS=CHAINS, TRIPS=TRIPS),
                   (Binding(0, "out", "read_write"),), (FEW, 1, 1), 0, 0)  # fmt: skip
    groups, timing = FEW, await bed.time([few])
    while timing.us < ENOUGH and groups < MANY:
        groups *= MORE
        timing = await bed.time([replace(few, workgroups=(groups, 1, 1))])
    flops = groups * bed.wide * CHAINS * TRIPS * 4 * 2
    rate = flops / timing.us * 1e6
    post({"flops": flops, **figures(timing), "GFLOPs": rate / 1e9})
    return rate


async def _round_trip(bed: Bed, post: Callable[[Row], Any]) -> float:
    """Seconds until one empty dispatch is known to be done, and until the 256 bytes that it left are here."""
    shader = Shader.of("bench_empty", VARIANT=0, WG=64)
    replay = await bed.replay([Dispatch("empty", shader, (Binding(0, "out", "read_write"),), (1, 1, 1), 0, 0)])
    staging = (await bed.pool.readback_ring(STATE_BYTES, slots=1))[0]
    buffer, offset, _ = bed.out.slice(0, STATE_BYTES)

    async def done() -> None:
        replay.submit(((0, 1),))
        await bed.device.idle()

    async def back() -> None:
        promise = replay.submit(((0, 1),), copy=(buffer, offset, STATE_BYTES), staging=staging)
        await arrived(bed.device, promise, "measuring a round trip")

    for via, trip in (("onSubmittedWorkDone", done), ("mapAsync", back)):
        times = []
        for _ in range(TRIPS_BACK):
            start = time.perf_counter()
            await trip()
            times.append((time.perf_counter() - start) * 1e6)
        post({"via": via, "us": median(times), "us_min": min(times), "clock": "wall"})
    return 0.0
