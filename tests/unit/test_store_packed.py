"""Packed blobs: kept, checked when first read, thrown away when damaged, moved to memory when storage fails."""

import asyncio

import numpy as np
import pytest

from pyapp.errors import BadArgument, BadWeights, Closed
from pyapp.weights.buffers import NumpyBuffers
from pyapp.weights.files import PAGE_BYTES, MemoryFile, StorageError
from pyapp.weights.packed import SEGMENT_BYTES, PackedBlob
from pyapp.weights.packing import PackLayout
from pyapp.weights.store import Store
from tests.unit.store_fakes import FakeDisk, FakeServer, layout_of, new_store

LAYOUT = layout_of(rows=5000)
CONTENT = np.random.default_rng(8).integers(0, 256, LAYOUT.total, np.uint8)
KEY = "k" * 32


def store_on(disk: FakeDisk | None) -> Store:
    return new_store(FakeServer(), disk)


async def write(blob: PackedBlob, start: int = 0, end: int = LAYOUT.total, step: int = 300_000) -> None:
    """In pieces, the last one first, as packing writes in any order."""
    for at in reversed(range(start, end, step)):
        await blob.write(at, CONTENT[at : min(at + step, end)])


async def make(store: Store, layout: PackLayout = LAYOUT) -> PackedBlob:
    blob = await store.create_packed(KEY, layout)
    await write(blob)
    await blob.commit()
    return blob


async def check(blob: PackedBlob) -> None:
    ranges = [(0, 256), (SEGMENT_BYTES - 7, 14), (0, LAYOUT.total), (LAYOUT.total - 1, 1), (LAYOUT.total, 0)]
    for start, length in ranges:
        np.testing.assert_array_equal(await blob.read_js(start, length), CONTENT[start : start + length])


def test_the_layout_spans_several_segments() -> None:
    assert LAYOUT.total > 2 * SEGMENT_BYTES
    assert LAYOUT.total % SEGMENT_BYTES


async def test_written_once_found_by_every_later_visit(disk: FakeDisk) -> None:
    blob = await make(store_on(disk))
    assert blob.persistent
    assert blob.total == LAYOUT.total
    await check(blob)
    await blob.close()
    for _ in range(2):
        again = await store_on(disk).open_packed(KEY, LAYOUT)
        assert again is not None
        await check(again)
        await again.close()


async def test_two_tabs_read_one_blob(disk: FakeDisk) -> None:
    first = await make(store_on(disk))
    second = await store_on(disk).open_packed(KEY, LAYOUT)
    assert second is not None
    await asyncio.gather(check(first), check(second))
    await first.close()
    await second.close()


async def test_an_unfinished_blob_is_not_found(disk: FakeDisk) -> None:
    blob = await store_on(disk).create_packed(KEY, LAYOUT)
    await write(blob)
    assert await store_on(disk).open_packed(KEY, LAYOUT) is None
    with pytest.raises(BadArgument):
        await blob.read_js(0, 4)
    await blob.close()
    assert await store_on(disk).open_packed(KEY, LAYOUT) is None
    assert not await store_on(disk).shelf.has(KEY)
    await (await make(store_on(disk))).close()
    assert await store_on(disk).shelf.has(KEY)


async def test_other_keys_and_layouts_do_not_match(disk: FakeDisk) -> None:
    await (await make(store_on(disk))).close()
    other = layout_of(rows=5000, name="n")
    assert other.total == LAYOUT.total
    assert await store_on(disk).open_packed(KEY, other) is None
    assert await store_on(disk).open_packed("j" * 32, LAYOUT) is None
    # Making the other layout's blob gives the first one's room back.
    await (await make(store_on(disk), other)).close()
    assert await store_on(disk).open_packed(KEY, LAYOUT) is None
    assert sum(name.endswith(".packed") for name in disk.content) == 1


def packed_name(disk: FakeDisk) -> str:
    return next(name for name in disk.content if name.endswith(".packed"))


async def test_a_damaged_blob_is_thrown_away_when_the_damage_is_read(disk: FakeDisk) -> None:
    await (await make(store_on(disk))).close()
    disk.content[packed_name(disk)][SEGMENT_BYTES + 5] ^= 0x80
    store = store_on(disk)
    blob = await store.open_packed(KEY, LAYOUT)
    assert blob is not None
    # The damage is in the second MiB only.
    np.testing.assert_array_equal(await blob.read_js(0, 1000), CONTENT[:1000])
    with pytest.raises(BadWeights, match=r"damaged .*made again") as caught:
        await blob.read_js(SEGMENT_BYTES + 100, 256)
    assert caught.value.details["repack"] is True
    assert await store.open_packed(KEY, LAYOUT) is None
    again = await make(store)
    await check(again)
    await again.close()


async def test_a_shortened_blob_is_not_opened(disk: FakeDisk) -> None:
    await (await make(store_on(disk))).close()
    del disk.content[packed_name(disk)][-1:]
    assert await store_on(disk).open_packed(KEY, LAYOUT) is None


@pytest.mark.parametrize("index", [b"", b"{}", b"[1]", b'{"version":1,"hashes":[]}'])
async def test_a_torn_index_is_not_believed(disk: FakeDisk, index: bytes) -> None:
    await (await make(store_on(disk))).close()
    name = packed_name(disk).replace(".packed", ".index")
    disk.content[name] = bytearray(index)
    assert await store_on(disk).open_packed(KEY, LAYOUT) is None


async def test_without_storage_the_blob_lives_as_long_as_the_store() -> None:
    store = store_on(None)
    blob = await make(store)
    assert not blob.persistent
    await check(blob)
    again = await store.open_packed(KEY, LAYOUT)
    assert again is not None
    await check(again)
    await again.discard()
    assert await store.open_packed(KEY, LAYOUT) is None
    assert await store_on(None).open_packed(KEY, LAYOUT) is None


async def test_a_quota_too_small_means_memory_from_the_start(disk: FakeDisk) -> None:
    disk.quota = LAYOUT.total - 1
    blob = await make(store_on(disk))
    assert not blob.persistent
    await check(blob)
    assert disk.used == 0, "no half a blob is left behind"


async def test_a_quota_that_shrinks_meanwhile_moves_it_to_memory(disk: FakeDisk) -> None:
    store = store_on(disk)
    blob = await store.create_packed(KEY, LAYOUT)
    await write(blob, LAYOUT.total // 2)
    file = disk.handles[0]

    def full(offset: int, buffer: np.ndarray) -> None:
        raise StorageError("QuotaExceededError: no room")

    file.write = full  # type: ignore[method-assign]
    await write(blob, 0, LAYOUT.total // 2)
    assert not blob.persistent
    await blob.commit()
    await check(blob)
    assert disk.used == 0
    again = await store.open_packed(KEY, LAYOUT)
    assert again is not None
    await check(again)


async def test_no_room_for_the_index_moves_it_to_memory(disk: FakeDisk) -> None:
    disk.quota = LAYOUT.total + 10
    blob = await make(store_on(disk))
    assert not blob.persistent
    await check(blob)


async def test_storage_emptied_while_packing_is_one_clear_error(disk: FakeDisk) -> None:
    store = store_on(disk)
    blob = await store.create_packed(KEY, LAYOUT)
    await write(blob, LAYOUT.total // 2)
    disk.wipe()
    with pytest.raises(BadWeights, match="storage failed") as caught:
        await write(blob, 0, LAYOUT.total // 2)
    assert caught.value.details["repack"] is True
    await check(await make(store))


async def test_storage_emptied_while_reading_is_one_clear_error(disk: FakeDisk) -> None:
    blob = await make(store_on(disk))
    disk.wipe()
    with pytest.raises(BadWeights, match="made again"):
        await blob.read_js(0, 100)


async def test_a_second_tab_that_packs_at_the_same_time_uses_memory(disk: FakeDisk) -> None:
    first = await store_on(disk).create_packed(KEY, LAYOUT)
    second = await make(store_on(disk))
    assert not second.persistent
    await check(second)
    await write(first)
    await first.commit()
    await check(first)
    await first.close()


async def test_ranges_and_states_are_checked(disk: FakeDisk) -> None:
    blob = await make(store_on(disk))
    for offset, length in ((-1, 4), (0, -4), (0, LAYOUT.total + 1), (LAYOUT.total, 1)):
        with pytest.raises(BadArgument):
            await blob.read_js(offset, length)
    with pytest.raises(BadArgument):
        await blob.write(0, CONTENT[:4])
    await blob.close()
    with pytest.raises(Closed):
        await blob.read_js(0, 4)
    assert await store_on(disk).shelf.has(KEY), "reading after the end does no harm"


def test_memory_files_page_as_files_do() -> None:
    """Writes and reads over page borders, growing and shrinking, against one plain array."""
    rng = np.random.default_rng(9)
    file, plain = MemoryFile(NumpyBuffers()), np.zeros(3 * PAGE_BYTES, np.uint8)
    file.resize(2 * PAGE_BYTES + 100)
    for at, length in ((0, 10), (PAGE_BYTES - 5, 10), (10, 2 * PAGE_BYTES), (2 * PAGE_BYTES + 50, 50)):
        piece = rng.integers(0, 256, length, np.uint8)
        file.write(at, piece)
        plain[at : at + length] = piece
    for at, length in ((0, 2 * PAGE_BYTES + 100), (PAGE_BYTES - 1, 2), (5, 5), (PAGE_BYTES, PAGE_BYTES), (7, 0)):
        np.testing.assert_array_equal(file.read(at, length), plain[at : at + length])
    file.resize(PAGE_BYTES + 30)
    with pytest.raises(StorageError):
        file.read(PAGE_BYTES, 31)
    np.testing.assert_array_equal(file.read(0, PAGE_BYTES + 30), plain[: PAGE_BYTES + 30])
    file.write(PAGE_BYTES + 30, np.ones(60, np.uint8))
    np.testing.assert_array_equal(
        file.read(PAGE_BYTES + 25, 10), [*plain[PAGE_BYTES + 25 : PAGE_BYTES + 30], 1, 1, 1, 1, 1]
    )
