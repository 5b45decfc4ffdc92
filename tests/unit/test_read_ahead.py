"""Packed weights that are read ahead: the same bytes and the same checks, whoever reads them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from pyapp.engine.assets import reading_ahead
from pyapp.errors import BadModel, BadWeights, Closed
from pyapp.weights.packed import READ_BYTES, SEGMENT_BYTES, PackedBlob, ReadAhead
from tests.unit.store_fakes import FakeDisk, FakeFile, FakeServer, layout_of, new_store

LAYOUT = layout_of(rows=18_000)
CONTENT = np.random.default_rng(9).integers(0, 256, LAYOUT.total, np.uint8)
KEY = "k" * 32


class FakeAhead:
    """Reads a file of the disk, which it has open until it is closed; ``gives`` pieces, and then nothing. Pieces at
    ``held`` do not come before the end."""

    def __init__(self, disk: FakeDisk, name: str, gives: int) -> None:
        self.data = bytes(disk.content[name])
        self.gives, self.taken, self.closed = gives, 0, asyncio.Event()
        self.held: set[int] = set()
        self.file = FakeFile(disk, name, writes=False)
        disk.handles.append(self.file)

    async def take(self, offset: int, length: int) -> tuple[np.ndarray, list[str]] | None:
        await asyncio.sleep(0)
        if offset in self.held:
            await self.closed.wait()
        if self.closed.is_set() or self.taken == self.gives:
            return None
        self.taken += 1
        piece = self.data[offset : offset + length]
        starts = range(0, length, SEGMENT_BYTES)
        hashes = [hashlib.sha256(piece[at : at + SEGMENT_BYTES]).hexdigest() for at in starts]
        return np.frombuffer(piece, np.uint8), hashes

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed.set()
        self.file.close()


class Visit:
    """A store on a disk, and what was read ahead in it."""

    def __init__(self, disk: FakeDisk, gives: int = 99) -> None:
        self.disk, self.gives, self.begun = disk, gives, []  # type: ignore[var-annotated]
        self.store = new_store(FakeServer(), disk, self._begin)

    def _begin(self, name: str, piece: int, segment: int) -> ReadAhead | None:
        assert (piece, segment) == (READ_BYTES, SEGMENT_BYTES)
        self.begun.append(FakeAhead(self.disk, name, self.gives))
        return self.begun[-1]

    async def opened(self) -> PackedBlob:
        await self.store.shelf.read_ahead(KEY)
        blob = await self.store.open_packed(KEY, LAYOUT)
        assert blob is not None
        return blob


@pytest.fixture
async def disk() -> AsyncIterator[FakeDisk]:
    """A disk with one finished blob on it."""
    disk = FakeDisk()
    blob = await Visit(disk).store.create_packed(KEY, LAYOUT)
    await blob.write(0, CONTENT)
    await blob.commit()
    await blob.close()
    yield disk
    assert disk.handles == [], "a file was left open"


async def whole(blob: PackedBlob) -> np.ndarray:
    """As the pool reads: pieces at multiples of their size, four at a time."""
    starts = range(0, blob.total, READ_BYTES)
    limit = asyncio.Semaphore(4)

    async def read(start: int) -> np.ndarray:
        async with limit:
            return np.asarray(await blob.read_js(start, min(READ_BYTES, blob.total - start)))

    return np.concatenate(await asyncio.gather(*map(read, starts)))


def test_the_layout_spans_several_pieces() -> None:
    assert LAYOUT.total > 2 * READ_BYTES
    assert LAYOUT.total % READ_BYTES


@pytest.mark.parametrize("gives", [99, 0, 1, 2])
async def test_the_bytes_are_the_same_however_many_come_that_way(disk: FakeDisk, gives: int) -> None:
    visit = Visit(disk, gives)
    blob = await visit.opened()
    np.testing.assert_array_equal(await whole(blob), CONTENT)
    (ahead,) = visit.begun
    assert ahead.taken == min(gives, -(-LAYOUT.total // READ_BYTES))
    np.testing.assert_array_equal(await whole(blob), CONTENT)  # once more, without it
    await blob.close()
    assert ahead.closed.is_set()


async def test_damage_is_found_in_what_was_read_ahead(disk: FakeDisk) -> None:
    (name,) = [name for name in disk.content if name.endswith(".packed")]
    disk.content[name][READ_BYTES + 5] ^= 1
    visit = Visit(disk)
    blob = await visit.opened()
    np.testing.assert_array_equal(await blob.read_js(0, READ_BYTES), CONTENT[:READ_BYTES])
    with pytest.raises(BadWeights, match="damaged"):
        await blob.read_js(READ_BYTES, READ_BYTES)
    assert visit.begun[0].closed.is_set()
    assert not disk.content


async def test_a_blob_of_another_layout_is_let_go_of_before_it_is_deleted(disk: FakeDisk) -> None:
    visit = Visit(disk)
    await visit.store.shelf.read_ahead(KEY)
    assert await visit.store.open_packed(KEY, layout_of(rows=100)) is None
    assert visit.begun[0].closed.is_set()


async def test_nothing_is_read_ahead_that_is_not_there(disk: FakeDisk) -> None:
    visit = Visit(disk)
    await visit.store.shelf.read_ahead("another key".ljust(32, "k"))
    assert visit.begun == []
    (index,) = [name for name in disk.content if name.endswith(".index")]
    del disk.content[index]
    await visit.store.shelf.read_ahead(KEY)
    assert visit.begun == []


async def test_of_two_blobs_nobody_knows_which_will_be_wanted(disk: FakeDisk) -> None:
    for name, content in list(disk.content.items()):
        disk.content[name.replace(".pack-", ".pack-0")] = content
    visit = Visit(disk)
    blob = await visit.opened()
    assert visit.begun == []
    np.testing.assert_array_equal(await whole(blob), CONTENT)
    await blob.close()


async def test_asked_for_twice_it_is_read_once(disk: FakeDisk) -> None:
    visit = Visit(disk)
    await visit.store.shelf.read_ahead(KEY)
    blob = await visit.opened()
    assert len(visit.begun) == 1
    await blob.close()


async def test_a_second_opening_reads_by_itself(disk: FakeDisk) -> None:
    visit = Visit(disk)
    first = await visit.opened()
    second = await visit.store.open_packed(KEY, LAYOUT)
    assert second is not None
    np.testing.assert_array_equal(await whole(second), CONTENT)
    assert visit.begun[0].taken == 0
    await first.close()
    await second.close()


@pytest.mark.parametrize("offset", [0, 700_000])
async def test_a_blob_that_is_closed_while_it_is_read_is_not_thrown_away(disk: FakeDisk, offset: int) -> None:
    """Its engine was closed: that is no damage."""
    visit = Visit(disk)
    blob = await visit.opened()
    visit.begun[0].held = {0}
    reading = asyncio.ensure_future(blob.read_js(offset, READ_BYTES))
    for _ in range(3):
        await asyncio.sleep(0)
    before = dict(disk.content)
    await blob.close()
    with pytest.raises(Closed):
        await reading
    assert disk.content == before


async def test_all_who_read_are_told_of_the_damage(disk: FakeDisk) -> None:
    """The pool hears of its first read first, whichever of them met the damage."""
    (name,) = [name for name in disk.content if name.endswith(".packed")]
    disk.content[name][READ_BYTES + 5] ^= 1
    visit = Visit(disk)
    blob = await visit.opened()
    visit.begun[0].held = {0}
    first = asyncio.ensure_future(blob.read_js(0, READ_BYTES))
    with pytest.raises(BadWeights, match="have changed"):
        await blob.read_js(READ_BYTES, READ_BYTES)
    with pytest.raises(BadWeights, match="have changed"):
        await first
    with pytest.raises(BadWeights, match="have changed"):
        await blob.read_js(0, 10)


async def test_a_file_of_a_wrong_length_can_be_deleted(disk: FakeDisk) -> None:
    (name,) = [name for name in disk.content if name.endswith(".packed")]
    disk.content[name].append(0)
    visit = Visit(disk)
    await visit.store.shelf.read_ahead(KEY)
    assert await visit.store.open_packed(KEY, LAYOUT) is None
    assert visit.begun[0].closed.is_set()
    assert not disk.content


async def test_what_nobody_opened_is_let_go_of_and_may_be_read_again(disk: FakeDisk) -> None:
    visit = Visit(disk)
    await visit.store.shelf.read_ahead(KEY)
    await visit.store.shelf.stop_reading_ahead(KEY)
    assert visit.begun[0].closed.is_set()
    blob = await visit.opened()
    np.testing.assert_array_equal(await whole(blob), CONTENT)
    assert visit.begun[1].taken == 3
    await blob.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_while_an_engine_is_made_its_models_are_read(disk: FakeDisk, fails: bool) -> None:
    """The one that was not opened, since the engine failed or went without it, is let go of."""
    visit = Visit(disk)
    model = SimpleNamespace(
        read_ahead=lambda: visit.store.shelf.read_ahead(KEY),
        stop_reading_ahead=lambda: visit.store.shelf.stop_reading_ahead(KEY),
    )
    with pytest.raises(BadModel) if fails else nullcontext():
        async with reading_ahead(None, model):
            for _ in range(5):
                await asyncio.sleep(0)
            assert not visit.begun[0].closed.is_set()
            if fails:
                raise BadModel("The head is none.")
    assert visit.begun[0].closed.is_set()
