"""Which bytes of which model's weights lie in the pool, and what moves when a model takes its turn.

Every block of a model has a fixed home (``placement.py``). To make a block resident is to upload those bytes of its
home that are not its own, from a reader (anything with ``read_js``); whoever held them loses them, and only them. Two
models that fit together switch for nothing, two that overlap by some bytes move these, and the blocks of a model that
is larger than its room take turns in its window. One mechanism, and exact to the byte.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from ..errors import OutOfPool
from .device import Device
from .occupancy import Owner
from .placement import Block, Placement
from .pool import Pool, Slab

UPLOAD_BYTES = 4 << 20
READS_AHEAD = 4
"""Reads of a model that comes in as a whole that are under way at once: hashes are made by other threads meanwhile."""
MOVES_KEPT = 64
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


class Reader(Protocol):
    """Gives packed bytes as a JavaScript Uint8Array, without a detour through Python's heap."""

    async def read_js(self, offset: int, length: int) -> Any: ...

    async def close(self) -> None:
        """Lets go of what it reads from."""
        ...


@dataclass(frozen=True)
class _Part:
    """Bytes of a block that move together: where to (a slab and an offset in it), and where from (``blob``)."""

    block: int
    slab: int
    offset: int
    blob: int
    nbytes: int


def _reads(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Parts that lie together in the blob, ``UPLOAD_BYTES`` at most between two of its multiples."""
    read: list[_Part] = []
    for part in parts:
        together = read and read[-1].blob + read[-1].nbytes == part.blob and part.blob % UPLOAD_BYTES
        if read and not (together and part.blob + part.nbytes - read[0].blob <= UPLOAD_BYTES):
            yield read
            read = []
        read.append(part)
    if read:
        yield read


@dataclass
class WeightSet:
    """One model's blocks, their homes, and the reader of its blob."""

    name: str
    blocks: Sequence[Block]
    placement: Placement
    entries: Mapping[str, Entry]
    reader: Reader
    runs: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(blob, slab, offset, bytes) of what lies together in a slab, by blob offset."""

    def __post_init__(self) -> None:
        streamed = {home for index in self.placement.streamed for home in self.placement.homes[index]}
        for home in sorted((home for homes in self.placement.homes for home in homes), key=lambda home: home.blob):
            blob, slab, offset, nbytes = self.runs[-1] if self.runs else (0, -1, 0, 0)
            together = (blob + nbytes, slab, offset + nbytes) == (home.blob, home.slab, home.offset)
            if together and home not in streamed:
                self.runs[-1] = (blob, slab, offset, nbytes + home.nbytes)
            else:
                self.runs.append((home.blob, home.slab, home.offset, home.nbytes))

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    @property
    def pinned(self) -> list[int]:
        """The blocks that stay while the model has its turn, in the order of use."""
        return [index for index in range(len(self.blocks)) if index not in self.placement.streamed]

    def owner(self, block: int) -> Owner:
        return Owner(self.name, self.blocks[block].name)

    def section(self, tensor: str, section: str) -> tuple[int, int]:
        """(offset in the blob, bytes) of a section of a tensor."""
        entry = self.entries[tensor]
        if section == "scales":
            return entry.scales_offset, entry.scales_bytes
        return entry.quants_offset, entry.quants_bytes

    def streamed_block(self, tensor: str, section: str, offset: int) -> int | None:
        """The block of the window that holds the byte ``offset`` of a section, None where that is pinned."""
        at = self.section(tensor, section)[0] + offset
        for index in self.placement.streamed:
            if any(blob <= at < blob + nbytes for blob, nbytes in self.blocks[index].extents):
                return index
        return None


class Residency:
    """Every model's weights in one pool."""

    def __init__(self, device: Device, pool: Pool) -> None:
        self.device = device
        self.pool = pool
        self.sets: dict[str, WeightSet] = {}
        self.moved_bytes = 0
        """Bytes uploaded since the start."""
        self.uploads = 0
        self._whole: set[str] = set()
        """Models whose pinned blocks are all there: a turn of theirs costs nothing, however many blocks they have."""
        self.moves: deque[dict[str, Any]] = deque(maxlen=MOVES_KEPT)
        """The last moves, oldest first: {at (ms since the epoch), tenant, label, slab, offset, bytes, direction}."""

    def register(
        self, name: str, blocks: Sequence[Block], placement: Placement, entries: Mapping[str, Entry], reader: Reader
    ) -> WeightSet:
        """Adds a model; nothing moves until ``ensure``."""
        self.sets[name] = WeightSet(name, blocks, placement, entries, reader)
        return self.sets[name]

    async def ensure(self, name: str, progress: Progress | None = None) -> None:
        """Makes a model's pinned blocks resident. ``progress(bytes there, bytes of them all)``.

        Callers hold the model's lease, or are the only ones yet (while the models are loaded): of two calls at a time
        one would take the room of what the other has just moved.

        They come in the order of the blob, in which they may have been read ahead (``weights/packed.py``). While a part
        is read and checked the next ones are asked for, across the borders of blocks and at multiples of
        ``UPLOAD_BYTES`` of the blob. A call that fails or is cancelled leaves what it had moved, and nothing half.
        """
        if self.whole(name):
            return
        weights = self.sets[name]
        pinned = weights.pinned
        total = sum(weights.blocks[index].nbytes for index in pinned)
        parts = [part for index in pinned for part in self._missing(weights, index, aligned=True)]
        parts.sort(key=lambda part: part.blob)
        done = total - sum(part.nbytes for part in parts)
        coming: deque[tuple[list[_Part], asyncio.Future[Any]]] = deque()
        reads = iter(_reads(parts))
        try:
            while True:
                for read in islice(reads, READS_AHEAD - len(coming)):
                    coming.append((read, asyncio.ensure_future(self._read(weights, read))))
                if not coming:
                    break
                read, data = coming[0]
                self._put(weights, read, await data)
                coming.popleft()
                done += sum(part.nbytes for part in read)
                if progress:
                    progress(done, total)
        finally:
            for _, data in coming:
                data.cancel()
            await asyncio.gather(*(data for _, data in coming), return_exceptions=True)
        self._whole.add(name)

    def whole(self, name: str) -> bool:
        """Whether a model's pinned blocks are known to be there."""
        return name in self._whole

    async def bring(self, name: str, block: int) -> None:
        """Makes one block resident: in queue order, so what was submitted before still sees what lay there.

        Callers hold the model's lease.
        """
        weights = self.sets[name]
        for read in _reads(self._missing(weights, block, aligned=False)):
            self._put(weights, read, await self._read(weights, read))

    def _missing(self, weights: WeightSet, block: int, *, aligned: bool) -> Iterator[_Part]:
        """The parts of a block that are not there, cut every ``UPLOAD_BYTES``: of the blob, or from where it begins."""
        for home in weights.placement.homes[block]:
            held = self.pool.weights[home.slab].held
            for start, end in held.missing(home.offset, home.offset + home.nbytes, weights.owner(block)):
                blob = home.blob + start - home.offset
                while start < end:
                    step = min(end - start, UPLOAD_BYTES - (blob % UPLOAD_BYTES if aligned else 0))
                    yield _Part(block, home.slab, start, blob, step)
                    start, blob = start + step, blob + step

    async def _read(self, weights: WeightSet, read: Sequence[_Part]) -> Any:
        self.device.check()  # once it is closed the reader is too, which is not what went wrong
        try:
            return await weights.reader.read_js(read[0].blob, read[-1].blob + read[-1].nbytes - read[0].blob)
        except Exception:
            self.device.check()
            raise

    def _put(self, weights: WeightSet, read: Sequence[_Part], data: Any) -> None:
        self.device.check()
        for part in read:
            slab, at, stop = self.pool.weights[part.slab], part.offset, part.offset + part.nbytes
            for begin, finish, owner in slab.held.clear(at, stop):
                self._note(owner, slab, begin, finish - begin, "out")
                if owner.tenant != weights.name:
                    self._whole.discard(owner.tenant)
            self.device.queue.writeBuffer(slab.buffer, at, data, part.blob - read[0].blob, part.nbytes)
            slab.held.put(at, stop, weights.owner(part.block))
            self.moved_bytes += part.nbytes
            self.uploads += 1
            self._note(weights.owner(part.block), slab, at, part.nbytes, "in")

    def evict(self) -> None:
        """Forgets what lies in the pool, whosever it is: the next ``ensure`` moves everything."""
        self._whole.clear()
        for slab in self.pool.weights:
            for begin, end, owner in slab.held.clear(0, slab.size):
                self._note(owner, slab, begin, end - begin, "out")

    def _note(self, owner: Owner, slab: Slab, offset: int, nbytes: int, direction: str) -> None:
        number = self.pool.slabs.index(slab)
        self.moves.append(
            {"at": int(time.time() * 1000), "tenant": owner.tenant, "label": owner.label, "slab": number,
             "offset": offset, "bytes": nbytes, "direction": direction}
        )  # fmt: skip

    def locate(self, name: str, tensor: str, section: str, offset: int, nbytes: int | None) -> tuple[Any, int, int]:
        """(buffer, offset, bytes) of the home of a part of a section, for a bind group.

        Raises ``OutOfPool`` for a part that does not lie together.
        """
        weights = self.sets[name]
        begin, size = weights.section(tensor, section)
        # Bindings are whole words; sections are padded to 256 bytes, so rounding up stays inside.
        length = ((size - offset if nbytes is None else nbytes) + 3) // 4 * 4
        blob, slab, at, together = weights.runs[bisect_right(weights.runs, begin + offset, key=lambda run: run[0]) - 1]
        within = begin + offset - blob
        if within < 0 or within + length > together:
            raise OutOfPool(
                f"{length} bytes from {offset} of {name}/{tensor} do not lie together in the pool.",
                offset=offset,
                nbytes=length,
                size=together,
            )
        return self.pool.weights[slab].buffer, at + within, length

    def passing(self) -> set[Owner]:
        """The blocks of all models that take turns in a window."""
        return {weights.owner(index) for weights in self.sets.values() for index in weights.placement.streamed}

    def resident(self, name: str) -> int:
        """How many of a model's bytes lie in the pool."""
        return sum(
            end - start for slab in self.pool.weights for start, end, owner in slab.held.spans() if owner.tenant == name
        )

    async def close(self) -> None:
        """Closes the readers; nothing can be made resident afterwards."""
        for weights in self.sets.values():
            await weights.reader.close()

    def tenants(self) -> list[dict[str, Any]]:
        """For ``status.pool``: each model's bytes and how many of them are resident."""
        return [{"name": w.name, "bytes": w.nbytes, "resident": self.resident(w.name)} for w in self.sets.values()]
