"""The store against a server that fails: nothing is lost, nothing wrong is kept, nothing is fetched twice."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyapp.errors import BadWeights
from pyapp.weights.gguf import read_gguf
from tests.unit.store_fakes import (
    CHUNK,
    MANIFEST,
    FakeDisk,
    FakeServer,
    Fault,
    Reports,
    chunk_url,
    layout_of,
    model_bytes,
    new_store,
    publish,
    whole,
)

DATA = model_bytes()


async def test_first_visit_downloads_and_the_second_does_not(server: FakeServer, disk: FakeDisk) -> None:
    manifest = publish(server, DATA)
    reports = Reports()
    model = await new_store(server, disk).ensure_model(MANIFEST, reports)
    assert (model.name, model.format, model.persistent, model.source.size) == ("tiny", "gguf", True, len(DATA))
    assert model.manifest == manifest
    assert await whole(model) == DATA
    assert len(server.urls(".bin")) == 5
    loaded = [loaded for _, loaded, _ in reports.seen]
    assert loaded == sorted(loaded)
    assert loaded[0] == 0
    assert reports.seen[-1] == ("weights", len(DATA), len(DATA))
    assert len(set(loaded)) > 5, "progress within chunks too"

    # What is waited for is a download before its first byte; what an earlier visit has kept is none.
    assert reports.stages() == {"weights"}

    server.log.clear()
    reports = Reports()
    again = await new_store(server, disk).ensure_model(MANIFEST, reports)
    assert reports.seen == [("stored", len(DATA), len(DATA))]
    assert await whole(again) == DATA
    assert server.urls() == [MANIFEST]
    assert server.open == 0


@pytest.mark.parametrize("on_disk", [True, False])
async def test_any_range_is_read_across_chunks(server: FakeServer, disk: FakeDisk, on_disk: bool) -> None:
    publish(server, DATA)
    model = await new_store(server, disk if on_disk else None).ensure_model(MANIFEST, Reports())
    assert model.persistent is on_disk
    # Without a disk the HTTP cache is what the next visit has.
    assert {cache for url, _, _, cache in server.log if url.endswith(".bin")} == {"no-store" if on_disk else "default"}
    for start, length in ((0, 1), (999, 2), (0, 4500), (1500, 2000), (4499, 1), (4500, 0), (1000, 1000)):
        assert (await model.source.read(start, length)).tobytes() == DATA[start : start + length]
    await model.close()


async def test_offline_second_visit_works(server: FakeServer, disk: FakeDisk) -> None:
    publish(server, DATA)
    await new_store(server, disk).ensure_model(MANIFEST, Reports())
    server.faults[MANIFEST] = [Fault(offline=True)] * 9
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
    assert server.pauses == [], "a kept manifest is used at once"


async def test_a_cut_connection_resumes_with_the_chunks_that_are_missing(server: FakeServer, disk: FakeDisk) -> None:
    manifest = publish(server, DATA)
    server.faults[chunk_url(manifest, 3)] = [Fault(cut_at=500), Fault(offline=True), Fault(status=503)]
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
    assert server.pauses == [0.5, 1.0, 2.0]
    assert len(server.urls(".bin")) == 5 + 3


async def test_a_dead_connection_is_one_error_and_the_next_visit_fetches_the_rest(
    server: FakeServer, disk: FakeDisk
) -> None:
    manifest = publish(server, DATA)
    server.faults[chunk_url(manifest, 4)] = [Fault(offline=True)] * 5
    with pytest.raises(BadWeights, match=r"Chunk 5 of 5 of tiny could not be downloaded .*5 attempts") as caught:
        await new_store(server, disk).ensure_model(MANIFEST, Reports())
    assert caught.value.details["reason"] == "network"
    server.log.clear()
    reports = Reports()
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, reports)) == DATA
    # Chunks that were on their way together with the one that failed may be missing as well.
    assert chunk_url(manifest, 4) in server.urls(".bin")
    assert len(server.urls(".bin")) <= 3
    assert reports.seen[0][1] >= 2000, "what is already there counts"


async def test_a_wrong_chunk_is_fetched_past_the_cache_once(server: FakeServer, disk: FakeDisk) -> None:
    manifest = publish(server, DATA)
    url = chunk_url(manifest, 1)
    server.faults[url] = [Fault(body=b"x" * CHUNK)]
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
    assert [cache for asked, _, _, cache in server.log if asked == url] == ["no-store", "reload"]


@pytest.mark.parametrize("body", [b"x" * CHUNK, b"", b"x" * 10, b"x" * 5000])
async def test_a_chunk_that_stays_wrong_is_named_and_not_kept(server: FakeServer, disk: FakeDisk, body: bytes) -> None:
    """The right length with the wrong content, too short, too long: never in the cache."""
    manifest = publish(server, DATA)
    url = chunk_url(manifest, 1)
    server.faults[url] = [Fault(body=body)] * 2
    with pytest.raises(BadWeights, match="Chunk 2 of 5 of tiny is not the one promised") as caught:
        await new_store(server, disk).ensure_model(MANIFEST, Reports())
    assert caught.value.details["chunk"] == 1
    assert server.open == 0
    server.log.clear()
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
    assert url in server.urls()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(body=b"<!DOCTYPE html><title>Not found</title>", content_type="text/html; charset=utf-8"),
        Fault(body=b"\xef\xbb\xbf \n<!doctype html>", content_type="application/octet-stream"),
        Fault(body=b"<html>" + b"x" * (CHUNK - 6), content_type=""),
    ],
)
async def test_a_web_page_instead_of_a_chunk_is_said_so(server: FakeServer, disk: FakeDisk, fault: Fault) -> None:
    manifest = publish(server, DATA)
    server.faults[chunk_url(manifest, 0)] = [fault]
    with pytest.raises(BadWeights, match="a web page instead of chunk 1 of 5"):
        await new_store(server, disk).ensure_model(MANIFEST, Reports())
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA


async def test_a_missing_chunk_or_manifest_is_not_retried(server: FakeServer, disk: FakeDisk) -> None:
    manifest = publish(server, DATA)
    del server.files[chunk_url(manifest, 2)]
    with pytest.raises(BadWeights, match="Chunk 3 of 5 of tiny is not there: the server answered HTTP 404"):
        await new_store(server, disk).ensure_model(MANIFEST, Reports())
    with pytest.raises(BadWeights, match="HTTP 404"):
        await new_store(server, disk).ensure_model("/models/gone/manifest.json", Reports())
    assert server.pauses == []


async def test_a_manifest_that_is_a_web_page_or_no_json(server: FakeServer, disk: FakeDisk) -> None:
    server.files[MANIFEST] = b"<!doctype html><p>app"
    with pytest.raises(BadWeights, match="web page"):
        await new_store(server, disk).ensure_model(MANIFEST, Reports())
    server.files[MANIFEST] = b"{..."
    with pytest.raises(BadWeights, match="no JSON"):
        await new_store(server, disk).ensure_model(MANIFEST, Reports())


async def test_cancelling_ends_the_requests_and_keeps_what_is_finished(server: FakeServer, disk: FakeDisk) -> None:
    publish(server, DATA)
    halfway, reports = asyncio.Event(), Reports()

    def progress(stage: str, loaded: int, total: int | None) -> None:
        reports(stage, loaded, total)
        if loaded > 3200:
            server.gate = asyncio.Event()
            halfway.set()

    task = asyncio.ensure_future(new_store(server, disk).ensure_model(MANIFEST, progress))
    await halfway.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.open == 0, "a request goes on"
    assert disk.handles == []
    server.gate = None
    server.log.clear()
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
    assert 0 < len(server.urls(".bin")) < 5


async def test_an_aborted_signal_cancels(server: FakeServer, disk: FakeDisk) -> None:
    publish(server, DATA)
    signal = SimpleNamespace(aborted=False)

    def progress(stage: str, loaded: int, total: int | None) -> None:
        signal.aborted = loaded > 1000

    with pytest.raises(asyncio.CancelledError):
        await new_store(server, disk).ensure_model(MANIFEST, progress, signal)
    assert server.open == 0


async def test_two_calls_at_once_download_once(server: FakeServer, disk: FakeDisk) -> None:
    publish(server, DATA)
    store = new_store(server, disk)
    models = await asyncio.gather(*(store.ensure_model(MANIFEST, Reports()) for _ in range(2)))
    assert len(server.urls(".bin")) == 5
    for model in models:
        assert await whole(model) == DATA


async def test_released_chunks_stay_away_while_the_packed_blob_is_there(server: FakeServer, disk: FakeDisk) -> None:
    manifest = publish(server, DATA)
    store, layout = new_store(server, disk), layout_of()
    model = await store.ensure_model(MANIFEST, Reports())
    await model.release_chunks(1200)
    assert len(disk.content[f"{model.key}.raw"]) == len(DATA), "no blob yet: nothing is given up"
    blob = await store.create_packed(model.key, layout)
    await blob.commit()
    await model.release_chunks(1200)
    await model.close()
    assert len(disk.content[f"{model.key}.raw"]) == 2 * CHUNK

    server.log.clear()
    store, reports = new_store(server, disk), Reports()
    model = await store.ensure_model(MANIFEST, reports)
    assert reports.seen == [("stored", len(DATA), len(DATA))]
    assert (await model.source.read(0, 1200)).tobytes() == DATA[:1200]
    assert server.urls(".bin") == [], "the second visit downloads nothing"
    assert model.source.near == 2 * CHUNK
    await read_gguf(model.source)
    assert server.urls(".bin") == [], "reading the head reads nothing that was released"
    # A released range is still readable: its chunk comes back, alone.
    assert (await model.source.read(3100, 50)).tobytes() == DATA[3100:3150]
    assert server.urls(".bin") == [chunk_url(manifest, 3)]
    await model.close()
    await blob.discard()

    server.log.clear()
    assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
    assert len(server.urls(".bin")) == 2, "without the blob the file is needed again: two chunks were missing"


async def test_release_in_memory_frees_memory(server: FakeServer) -> None:
    publish(server, DATA)
    model = await new_store(server, None).ensure_model(MANIFEST, Reports())
    await model.release_chunks(1)
    assert model._chunks.missing() == [1, 2, 3, 4]
    assert await whole(model) == DATA


async def test_another_version_of_the_model_replaces_the_old_one(server: FakeServer, disk: FakeDisk) -> None:
    publish(server, DATA)
    old = await new_store(server, disk).ensure_model(MANIFEST, Reports())
    other = model_bytes(seed=1)
    publish(server, other)
    model = await new_store(server, disk).ensure_model(MANIFEST, Reports())
    assert await whole(model) == other
    assert not any(name.startswith(old.key) for name in disk.content)


async def test_sidecar_is_fetched_once(server: FakeServer, disk: FakeDisk) -> None:
    publish(server, DATA, classes="classes.json")
    server.files["/models/tiny/classes.json"] = json.dumps(["tench", "goldfish"]).encode()
    for _ in range(2):
        model = await new_store(server, disk).ensure_model(MANIFEST, Reports())
        assert await model.sidecar("classes") == ["tench", "goldfish"]
    assert len(server.urls("classes.json")) == 1
    with pytest.raises(BadWeights, match="names no words"):
        await model.sidecar("words")


def broken(**fields: Any) -> dict[str, Any]:
    manifest = publish(FakeServer(), DATA)
    manifest.update(fields)
    return manifest


CHUNKS = broken()["chunks"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([], "no object"),
        (broken(name="../x"), "name"),
        (broken(name=None), "name"),
        (broken(format="onnx"), "format"),
        (broken(sha256="abc"), "sha256"),
        (broken(chunk_bytes=0), "chunk_bytes"),
        (broken(chunk_bytes=1 << 40), "chunk_bytes"),
        (broken(chunk_bytes=True), "chunk_bytes"),
        (broken(bytes=4501), "do not make up 4501"),
        (broken(bytes=-1), "do not make up"),
        (broken(bytes="4500"), "bytes"),
        (broken(chunks=[]), "chunks"),
        (broken(chunks=[1] * 5), "no objects"),
        (broken(chunks=CHUNKS[:4]), "do not make up"),
        (broken(chunks=[*CHUNKS[:4], {**CHUNKS[4], "sha256": "x"}]), "no sha256"),
        (broken(chunks=[*CHUNKS[:4], {**CHUNKS[4], "url": 5}]), "no url"),
        (broken(chunks=[*CHUNKS[:4], {**CHUNKS[4], "url": "javascript:alert(1)"}]), "points at"),
        (broken(chunks=[*CHUNKS[:4], {**CHUNKS[4], "url": "//[x"}]), "points at"),
    ],
)
async def test_manifests_that_cannot_be_true(server: FakeServer, disk: FakeDisk, fields: Any, why: str) -> None:
    server.files[MANIFEST] = json.dumps(fields).encode()
    with pytest.raises(BadWeights, match=why):
        await new_store(server, disk).ensure_model(MANIFEST, Reports())


FAULTS = st.one_of(
    st.builds(Fault, cut_at=st.integers(0, 999)),
    st.builds(Fault, cut_at=st.integers(0, 999), ends_early=st.just(True)),
    st.builds(Fault, status=st.sampled_from([404, 429, 500, 503])),
    st.builds(Fault, body=st.sampled_from([b"", b"x" * 1000, b"<html>", b"GGUF"])),
    st.just(Fault(offline=True)),
)


@settings(max_examples=150, deadline=None)
@given(
    visits=st.lists(st.dictionaries(st.integers(0, 4), st.lists(FAULTS, min_size=1, max_size=6)), max_size=4),
    quota=st.sampled_from([1 << 40, 3500, 1200]),
    wiped=st.booleans(),
)
async def test_whatever_goes_wrong_the_last_good_visit_has_the_right_bytes(
    visits: list[dict[int, list[Fault]]], quota: int, wiped: bool
) -> None:
    """Visits with faults, each a success or one of our errors; then one without faults, which must succeed."""
    server, disk = FakeServer(), FakeDisk(quota)
    manifest = publish(server, DATA)
    for visit in [*visits, {}]:
        server.faults.clear()
        for index, faults in visit.items():
            server.faults[chunk_url(manifest, index)] = list(faults)
        try:
            assert await whole(await new_store(server, disk).ensure_model(MANIFEST, Reports())) == DATA
        except BadWeights:
            assert visit
        assert disk.handles == []
        assert server.open == 0
        if wiped:
            disk.content.clear()
