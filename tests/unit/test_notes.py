"""Notes for the next visit: kept, forgotten, and done without where storage fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyapp.errors import OutOfMemory
from pyapp.weights.notes import FILE, MOST, Notes
from tests.unit.store_fakes import FakeDisk, FakeServer, new_store


def visit(disk: FakeDisk | None) -> Notes:
    store = new_store(FakeServer(), disk)

    async def given() -> Any:
        return store

    return Notes(given)


async def test_next_visit_finds_what_was_kept() -> None:
    disk = FakeDisk()
    await visit(disk).save("breaker a", {"n": 1, "at": [1.5, None]})
    await visit(disk).save("breaker b", "ü")
    later = visit(disk)
    assert await later.load("breaker a") == {"n": 1, "at": [1.5, None]}
    assert await later.load("breaker b") == "ü"
    assert await later.load("breaker c") is None
    await later.save("breaker a", None)
    assert await visit(disk).load("breaker a") is None
    assert await visit(disk).load("breaker b") == "ü"
    assert disk.handles == []


async def test_notes_written_at_once_all_stay() -> None:
    notes = visit(FakeDisk())
    await asyncio.gather(*(notes.save(str(number), number) for number in range(8)))
    assert [await notes.load(str(number)) for number in range(8)] == list(range(8))


async def test_without_a_disk_they_last_as_long_as_the_store() -> None:
    notes = visit(None)
    await notes.save("a", 1)
    assert await notes.load("a") == 1
    assert await visit(None).load("a") is None


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b"[" * 100_000])
async def test_rubbish_counts_as_none_and_is_written_over(rubbish: bytes) -> None:
    disk = FakeDisk()
    disk.content[FILE] = bytearray(rubbish)
    assert await visit(disk).load("a") is None
    await visit(disk).save("a", 1)
    assert await visit(disk).load("a") == 1


async def test_storage_that_fails_is_done_without() -> None:
    disk = FakeDisk(quota=60)
    await visit(disk).save("a", "short")
    await visit(disk).save("b", "long" * 100)
    assert await visit(disk).load("b") is None
    busy = await disk.open(FILE, write=True)
    assert busy is not None
    assert await visit(disk).load("a") is None
    await visit(disk).save("c", 1)
    busy.close()
    disk.wipe()
    await visit(disk).save("d", 1)
    assert await visit(disk).load("d") is None


async def test_no_memory_to_read_them_into_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = visit(FakeDisk())
    await notes.save("a", 1)
    store = await notes._store()

    def refuse(*_: Any) -> Any:
        raise OutOfMemory("no room")

    monkeypatch.setattr(store.buffers, "from_numpy", refuse)
    monkeypatch.setattr(store.buffers, "copy_out", refuse)
    assert await notes.load("a") is None
    await notes.save("b", 2)


async def test_those_written_longest_ago_give_way() -> None:
    notes = visit(FakeDisk())
    for number in range(MOST):
        await notes.save(f"v{number}", number)
    await notes.save("v0", "again")
    await notes.save("new", 1)
    assert await notes.load("v0") == "again"
    assert await notes.load("v1") is None
    assert await notes.load("v2") == 2
