"""All GPU memory of the application: a few large buffers ("slabs") taken at load, and regions within them.

This module alone calls ``createBuffer``. Beside the slabs it makes, and counts, the 256-byte step-state buffers, the
plans' constants, the read-back ring and, where times are taken, what timestamps are kept in. WebGPU refuses a dispatch
that binds one buffer both read-only and writable, so a slab has a role: ``weights`` (bound read-only; ``residency.py``
says who holds which bytes) or ``workspace`` (bound writable: regions for activations and KV cache).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import OutOfMemory, OutOfPool
from .allocator import ALIGNMENT, FreeList, aligned
from .device import Device
from .occupancy import Occupancy
from .timestamps import COUNT, FEATURE, NBYTES, Timestamps

Role = Literal["weights", "workspace"]

# GPUBufferUsage and GPUMapMode, as the specification numbers them.
MAP_READ, COPY_SRC, COPY_DST, UNIFORM, STORAGE, QUERY_RESOLVE = 0x1, 0x4, 0x8, 0x40, 0x80, 0x200
STATE_BYTES = 256
RING_SLOTS = 8


@dataclass(eq=False)
class Slab:
    """One large buffer, and what lies in it: regions in a workspace, the models' bytes among the weights."""

    role: Role
    size: int
    buffer: Any
    free: FreeList
    held: Occupancy = field(default_factory=Occupancy)

    @property
    def used(self) -> int:
        return self.free.used + self.held.used


@dataclass(frozen=True)
class Region:
    """A range of a slab that belongs to one tenant: bytes [offset, offset + size)."""

    slab: Slab = field(repr=False)
    offset: int
    size: int
    tenant: str
    label: str = ""

    def slice(self, offset: int, nbytes: int) -> tuple[Any, int, int]:
        """(buffer, offset, size) of a part of the region. Raises ``OutOfPool`` for one that reaches past it."""
        if offset < 0 or nbytes <= 0 or offset + nbytes > self.size:
            raise OutOfPool(
                f"Bytes {offset} to {offset + nbytes} lie outside the {self.size} bytes of {self.tenant}/{self.label}.",
                offset=offset,
                nbytes=nbytes,
                size=self.size,
            )
        return self.slab.buffer, self.offset + offset, nbytes


def slab_sizes(nbytes: int, largest: int) -> list[int]:
    """The slabs that ``nbytes`` are taken in: as large as they may be, the last one with what is left."""
    largest = largest // ALIGNMENT * ALIGNMENT
    whole, rest = divmod(aligned(nbytes), largest)
    return [largest] * whole + ([rest] if rest else [])


class Pool:
    """One budget of GPU bytes for every model on the page."""

    def __init__(self, device: Device, budget: int) -> None:
        self.device = device
        self.budget = budget
        self.slabs: list[Slab] = []
        self.asked = 0
        """Bytes asked of the device since the start."""
        self.live = 0
        """Bytes of buffers that were not destroyed."""
        self.peak = 0
        self.objects = {"slab": 0, "state": 0, "constants": 0, "readback": 0, "queries": 0}
        self._regions: dict[int, Region] = {}
        self._other: list[tuple[str, Any, int]] = []
        self._timestamps: Timestamps | None = None

    # -- buffers ------------------------------------------------------------------------------------------------

    def _create(self, kind: str, size: int, usage: int) -> Any:
        self.device.check()
        buffer = self.device.handle.createBuffer(size=size, usage=usage, label=f"tandem {kind}")
        self.asked += size
        self.live += size
        self.peak = max(self.peak, self.live)
        self.objects[kind] += 1
        return buffer

    def _forget(self, kind: str, buffer: Any, size: int) -> None:
        buffer.destroy()
        self.live -= size
        self.objects[kind] -= 1

    async def add_slabs(self, role: Role, nbytes: int, piece: int) -> None:
        """Takes ``nbytes`` for a role in as few slabs as the device allows, each able to hold ``piece`` bytes.

        Raises ``OutOfMemory`` when the budget or the device has not that much; slabs made by the call are then
        given back.
        """
        largest = self.device.limits.max_buffer // ALIGNMENT * ALIGNMENT
        if self.slab_bytes + nbytes > self.budget:
            raise OutOfMemory(
                f"{nbytes} bytes of {role} do not fit the pool: {self.slab_bytes} of {self.budget} bytes are taken.",
                need=nbytes,
                budget=self.budget,
            )
        if max(piece, 256) > largest:
            raise OutOfMemory(
                f"A piece of {piece} bytes is larger than the largest buffer of this GPU ({largest} bytes).",
                need=piece,
                limit=largest,
            )
        made: list[Slab] = []
        try:
            for size in slab_sizes(nbytes, largest):
                async with self.device.guarded(f"taking a slab of {size} bytes for {role}"):
                    buffer = self._create("slab", size, STORAGE | COPY_SRC | COPY_DST)
                    made.append(Slab(role, size, buffer, FreeList(size)))
        except BaseException:
            for slab in made:
                self._forget("slab", slab.buffer, slab.size)
            raise
        self.slabs += made

    @property
    def slab_bytes(self) -> int:
        return sum(slab.size for slab in self.slabs)

    async def state_buffer(self) -> Any:
        """A 256-byte step-state buffer: a uniform to most kernels, writable to the sampler. Raises ``OutOfMemory``."""
        async with self.device.guarded("taking the step state's buffer"):
            buffer = self._create("state", STATE_BYTES, STORAGE | UNIFORM | COPY_SRC | COPY_DST)
            self._other.append(("state", buffer, STATE_BYTES))
        return buffer

    async def constants_buffer(self, nbytes: int) -> Any:
        """A buffer for a plan's constants, which are uniforms to its kernels. Raises ``OutOfMemory``."""
        async with self.device.guarded(f"taking a buffer of {nbytes} bytes for constants"):
            buffer = self._create("constants", nbytes, UNIFORM | COPY_DST)
            self._other.append(("constants", buffer, nbytes))
        return buffer

    async def readback_ring(self, nbytes: int, slots: int = RING_SLOTS) -> list[Any]:
        """Staging buffers that results are copied to and read from. Raises ``OutOfMemory``."""
        async with self.device.guarded(f"taking {slots} buffers of {nbytes} bytes to read back from"):
            ring = [self._create("readback", aligned(nbytes), MAP_READ | COPY_DST) for _ in range(slots)]
            self._other += [("readback", buffer, aligned(nbytes)) for buffer in ring]
        return ring

    async def timestamps(self) -> Timestamps | None:
        """What the GPU's own clock is read with, made when it is first asked for; None where the device has no such
        clock. Raises ``OutOfMemory``."""
        if self._timestamps is None and FEATURE in self.device.probe.features:
            async with self.device.guarded("taking what timestamps are kept in"):
                queries = self.device.handle.createQuerySet(type="timestamp", count=COUNT)
                self.objects["queries"] += 1
                self._other.append(("queries", queries, 0))
                resolved = self._create("readback", aligned(NBYTES), QUERY_RESOLVE | COPY_SRC)
                self._other.append(("readback", resolved, aligned(NBYTES)))
            self._timestamps = Timestamps(queries, resolved, (await self.readback_ring(NBYTES, slots=1))[0])
        return self._timestamps

    # -- regions ------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> list[Slab]:
        return [slab for slab in self.slabs if slab.role == "weights"]

    def take(self, role: Role, nbytes: int, tenant: str, label: str = "") -> Region | None:
        """A region of a role's slabs, or None when no gap is large enough."""
        for slab in self.slabs:
            if slab.role == role:
                offset = slab.free.take(nbytes)
                if offset is not None:
                    region = Region(slab, offset, aligned(max(nbytes, 1)), tenant, label)
                    self._regions[id(region)] = region
                    return region
        return None

    def give_back(self, region: Region) -> None:
        """Frees a region. KeyError for one that is not held."""
        del self._regions[id(region)]
        region.slab.free.give_back(region.offset)

    # -- figures ------------------------------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        """The figures of ``inspect.memory()``; bytes."""
        slabs: list[dict[str, Any]] = [
            {"size": slab.size, "used": slab.used, "role": slab.role, "spans": self._spans(slab)} for slab in self.slabs
        ]
        tenants: dict[str, int] = {}
        for span in (span for slab in slabs for span in slab["spans"]):
            tenants[span["tenant"]] = tenants.get(span["tenant"], 0) + span["size"]
        return {
            "asked": self.asked,
            "live": self.live,
            "peak": self.peak,
            "budget": self.budget,
            "slabs": slabs,
            "tenants": tenants,
            "objects": dict(self.objects),
        }

    def _spans(self, slab: Slab) -> list[dict[str, Any]]:
        """What lies where in a slab, by offset."""
        found = [(region.offset, region.size, region.tenant, region.label) for region in self._regions.values()
                 if region.slab is slab]  # fmt: skip
        found += [(start, end - start, owner.tenant, owner.label) for start, end, owner in slab.held.spans()]
        return [dict(zip(("offset", "size", "tenant", "label"), each, strict=True)) for each in sorted(found)]

    def give_back_slabs(self) -> None:
        """Destroys the slabs, which nothing may use any more; a smaller pool can then be taken."""
        for slab in self.slabs:
            self._forget("slab", slab.buffer, slab.size)
        self.slabs = []
        self._regions.clear()

    def close(self) -> None:
        """Destroys every buffer; the counters end where they began."""
        self.give_back_slabs()
        for kind, buffer, size in self._other:
            self._forget(kind, buffer, size)
        self._other = []
        self._timestamps = None
