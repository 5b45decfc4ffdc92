"""Which blocks of which model's weights lie in the pool, and what moves when a model takes its turn.

A model's weights are a list of blocks in the order of use. Making a model resident uploads its missing blocks from a
reader (anything with ``read_js``); room is made by evicting other models' blocks, those used furthest in the future
first: a model that does not run now starts again at its first block, so its last ones go first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import OutOfMemory
from .device import Device
from .pool import Pool, Region

UPLOAD_BYTES = 4 << 20
Progress = Callable[[int, int], None]


class Entry(Protocol):
    """Where a packed tensor's sections lie in the blob (bytes)."""

    @property
    def quants_offset(self) -> int: ...
    @property
    def quants_bytes(self) -> int: ...
    @property
    def scales_offset(self) -> int: ...
    @property
    def scales_bytes(self) -> int: ...


class Block(Protocol):
    """A run of the blob that moves as one."""

    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def entries(self) -> Mapping[str, Any]: ...


class Reader(Protocol):
    """Gives packed bytes as a JavaScript Uint8Array, without a detour through Python's heap."""

    async def read_js(self, offset: int, length: int) -> Any: ...

    async def close(self) -> None:
        """Lets go of what it reads from."""
        ...


@dataclass
class WeightSet:
    """One model's blocks, its reader, and where its resident blocks lie."""

    name: str
    blocks: Sequence[Block]
    reader: Reader
    regions: dict[int, Region] = field(default_factory=dict)
    home: dict[str, int] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    """Tensors that lie somewhere else than those who bound them last were told."""

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    @property
    def missing(self) -> int | None:
        """The first block that is not resident."""
        return next((index for index in range(len(self.blocks)) if index not in self.regions), None)

    @property
    def resident_bytes(self) -> int:
        return sum(self.blocks[index].nbytes for index in self.regions)


class Residency:
    """Every model's weights in one pool."""

    def __init__(self, device: Device, pool: Pool) -> None:
        self.device = device
        self.pool = pool
        self.sets: dict[str, WeightSet] = {}

    def register(self, name: str, blocks: Sequence[Block], reader: Reader) -> WeightSet:
        """Adds a model; nothing moves until ``ensure``."""
        weights = WeightSet(name, blocks, reader)
        weights.home = {tensor: index for index, block in enumerate(blocks) for tensor in block.entries}
        self.sets[name] = weights
        return weights

    async def ensure(self, name: str, progress: Progress | None = None) -> set[str]:
        """Makes every block of a model resident; returns the tensors whose place changed.

        After a call that fails or is cancelled, the next one returns those that had moved by then as well.

        Raises ``OutOfMemory`` when the model does not fit even alone.
        """
        weights = self.sets[name]
        anew = False
        while (index := weights.missing) is not None:
            block = weights.blocks[index]
            region = self._room_for(weights, block)
            if region is None and (anew or not weights.regions):
                raise OutOfMemory(
                    f"{weights.name} needs {weights.nbytes} bytes of weights; the pool's weights slabs hold "
                    f"{sum(s.size for s in self.pool.slabs if s.role == 'weights')}. Give the pool more MiB.",
                    need=weights.nbytes,
                    budget=self.pool.budget,
                )
            if region is None:
                # Alone in the pool and still no gap is large enough: this model's own blocks lie between the gaps.
                anew = True
                while weights.regions:
                    self._evict(weights)
                continue
            try:
                await self._upload(weights, block, region)
            except BaseException:
                # A block counts as resident only once it is whole.
                self.pool.give_back(region)
                raise
            weights.regions[index] = region
            weights.moved |= set(block.entries)
            if progress:
                progress(weights.resident_bytes, weights.nbytes)
        moved, weights.moved = weights.moved, set()
        return moved

    def _room_for(self, weights: WeightSet, block: Block) -> Region | None:
        """A region for a block, made by evicting other models' blocks; None when none are left and it does not fit."""
        while True:
            region = self.pool.take("weights", block.nbytes, weights.name, block.name)
            victim = next((other for other in self.sets.values() if other is not weights and other.regions), None)
            if region is not None or victim is None:
                return region
            self._evict(victim)

    def _evict(self, weights: WeightSet) -> None:
        """Gives up the block whose next use is the furthest."""
        self.pool.give_back(weights.regions.pop(max(weights.regions)))

    async def _upload(self, weights: WeightSet, block: Block, region: Region) -> None:
        for start in range(0, block.nbytes, UPLOAD_BYTES):
            length = min(UPLOAD_BYTES, block.nbytes - start)
            self.device.check()  # once it is closed the reader is too, which is not what went wrong
            data = await weights.reader.read_js(block.offset + start, length)
            self.device.check()
            buffer, offset, _ = region.slice(start, length)
            self.device.queue.writeBuffer(buffer, offset, data)

    def locate(self, name: str, tensor: str, section: str, offset: int, nbytes: int | None) -> tuple[Any, int, int]:
        """(buffer, offset, bytes) of a section of a resident tensor, for a bind group."""
        weights = self.sets[name]
        index = weights.home[tensor]
        entry = weights.blocks[index].entries[tensor]
        begin, size = (
            (entry.scales_offset, entry.scales_bytes)
            if section == "scales"
            else (entry.quants_offset, entry.quants_bytes)
        )
        within = begin - weights.blocks[index].offset + offset
        # Bindings are whole words; sections are padded to 256 bytes, so rounding up stays inside.
        return weights.regions[index].slice(within, (((nbytes or size - offset) + 3) // 4) * 4)

    async def close(self) -> None:
        """Closes the readers; nothing can be made resident afterwards."""
        for weights in self.sets.values():
            await weights.reader.close()

    def tenants(self) -> list[dict[str, Any]]:
        """For ``status.pool``: each model's bytes and how many of them are resident."""
        return [{"name": w.name, "bytes": w.nbytes, "resident": w.resident_bytes} for w in self.sets.values()]
