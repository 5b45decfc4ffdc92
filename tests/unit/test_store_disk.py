"""The store on a disk that fails: a full quota, an emptied cache, another tab in the same file, damaged files."""

import asyncio

import pytest

from pyapp.weights.store import MEMORY_STAGE
from tests.unit.store_fakes import (
    MANIFEST,
    FakeDisk,
    FakeServer,
    Reports,
    chunk_url,
    model_bytes,
    new_store,
    publish,
    whole,
)

DATA = model_bytes()


@pytest.mark.parametrize("quota", [600, 2600, 4400])
async def test_a_full_quota_goes_on_in_memory(server: FakeServer, quota: int) -> None:
    publish(server, DATA)
    disk, reports = FakeDisk(quota), Reports()
    model = await new_store(server, disk).ensure_model(MANIFEST, reports)
    assert not model.persistent
    assert MEMORY_STAGE in reports.stages()
    assert await whole(model) == DATA
    assert disk.handles == []
    assert len(server.urls(".bin")) == 5, "nothing is fetched twice"


async def test_an_emptied_cache_in_mid_download_is_survived(server: FakeServer, disk: FakeDisk) -> None:
    publish(server, DATA)
    server.gate = asyncio.Event()
    reports = Reports()

    def wipe_at_half(stage: str, loaded: int, total: int | None) -> None:
        reports(stage, loaded, total)
        if loaded > 3000 and not disk.gone:
            disk.wipe()

    server.gate.set()
    model = await new_store(server, disk).ensure_model(MANIFEST, wipe_at_half)
    assert disk.gone
    assert MEMORY_STAGE in reports.stages()
    assert await whole(model) == DATA


async def test_an_emptied_cache_after_the_download_is_fetched_again_when_read(
    server: FakeServer, disk: FakeDisk
) -> None:
    publish(server, DATA)
    model = await new_store(server, disk).ensure_model(MANIFEST, Reports())
    disk.wipe()
    assert await whole(model) == DATA


async def test_a_second_tab_in_the_same_file_falls_back_to_memory(server: FakeServer, disk: FakeDisk) -> None:
    manifest = publish(server, DATA)
    held = await disk.open(f"{manifest['sha256'][:32]}.raw", write=True)
    model = await new_store(server, disk).ensure_model(MANIFEST, Reports())
    assert not model.persistent
    assert await whole(model) == DATA
    assert held is not None
    held.close()


async def test_two_tabs_read_the_same_files(server: FakeServer, disk: FakeDisk) -> None:
    publish(server, DATA)
    first = await new_store(server, disk).ensure_model(MANIFEST, Reports())
    await first.source.read(0, 10)
    second = await new_store(server, disk).ensure_model(MANIFEST, Reports())
    assert await whole(second) == DATA
    assert second.persistent
    assert len(server.urls(".bin")) == 5
    await first.close()


async def test_a_chunk_damaged_on_disk_is_fetched_again(server: FakeServer, disk: FakeDisk) -> None:
    manifest = publish(server, DATA)
    await new_store(server, disk).ensure_model(MANIFEST, Reports())
    disk.content[f"{manifest['sha256'][:32]}.raw"][2500] ^= 1
    server.log.clear()
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
    assert server.urls(".bin") == [chunk_url(manifest, 2)]


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b'{"version":1}', b'{"version":1,"size":4500,"chunk_bytes":1000}'])
async def test_a_torn_state_file_only_costs_a_download(server: FakeServer, disk: FakeDisk, state: bytes) -> None:
    manifest = publish(server, DATA)
    await new_store(server, disk).ensure_model(MANIFEST, Reports())
    disk.content[f"{manifest['sha256'][:32]}.state"] = bytearray(state)
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA


async def test_a_file_cut_on_disk_is_completed(server: FakeServer, disk: FakeDisk) -> None:
    manifest = publish(server, DATA)
    await new_store(server, disk).ensure_model(MANIFEST, Reports())
    del disk.content[f"{manifest['sha256'][:32]}.raw"][1500:]
    server.log.clear()
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
    assert len(server.urls(".bin")) == 4
