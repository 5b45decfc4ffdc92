"""A bare .gguf URL: servers with and without ranges, lengths and ETags; cuts, changes, and things that are no model."""

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pyapp.weights.store as store_module
from pyapp.errors import BadModel, BadWeights
from pyapp.weights.store import StoredModel
from tests.unit.store_fakes import CHUNK, FakeDisk, FakeServer, Fault, Reports, layout_of, model_bytes, new_store

URL = "https://models.example/a/Some-Model.Q4_1.gguf?download=true"
DATA = model_bytes()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "URL_CHUNK_BYTES", CHUNK)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(files={URL: DATA})


async def visit(server: FakeServer, disk: FakeDisk | None, reports: Reports | None = None) -> StoredModel:
    model = await new_store(server, disk).ensure_model(URL, reports or Reports())
    assert (await model.source.read(0, model.source.size)).tobytes() == server.files[URL]
    await model.close()
    assert server.open == 0
    return model


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("announces", [True, False])
async def test_any_kind_of_server(server: FakeServer, disk: FakeDisk, ranges: bool, announces: bool) -> None:
    server.ranges, server.announces = ranges, announces
    model = await visit(server, disk, first := Reports())
    assert first.seen[-1] == ("weights", len(DATA), len(DATA))
    assert (model.name, model.format, model.persistent) == ("Some-Model.Q4_1", "gguf", True)
    assert model.manifest["kind"] == "language"
    assert model.manifest["bytes"] == len(DATA)
    sent = server.sent
    await visit(server, disk, second := Reports())
    assert second.seen == [("stored", len(DATA), len(DATA))]
    assert server.sent - sent == 0, "the second visit asks only whether the file is still the same"


async def test_without_storage(server: FakeServer) -> None:
    model = await visit(server, None)
    assert not model.persistent


async def test_a_cut_is_resumed_with_a_range(server: FakeServer, disk: FakeDisk) -> None:
    server.faults[URL] = [Fault(), Fault(cut_at=2500)]
    await visit(server, disk)
    assert [(start, end) for _, start, end, _ in server.log] == [(0, 1), (None, None), (2000, 4500)]
    assert server.pauses == [0.5]
    assert server.sent == 2500 + 2500


async def test_a_cut_without_ranges_starts_over_but_keeps_what_it_has(server: FakeServer, disk: FakeDisk) -> None:
    server.ranges = False
    server.faults[URL] = [Fault(), Fault(cut_at=2500)]
    await visit(server, disk)
    assert server.sent == 2500 + 4500


async def test_attempts_are_counted_from_the_last_headway(server: FakeServer, disk: FakeDisk) -> None:
    """A line that is cut again and again, each time a chunk further, gets there."""
    server.faults[URL] = [Fault(), *[Fault(cut_at=1200)] * 4]
    await visit(server, disk)
    assert server.pauses == [0.5] * 4


async def test_a_dead_line_is_an_error_and_the_next_visit_goes_on(server: FakeServer, disk: FakeDisk) -> None:
    server.faults[URL] = [Fault(), Fault(cut_at=3100), *[Fault(offline=True)] * 5]
    with pytest.raises(BadWeights, match="5 attempts") as caught:
        await visit(server, disk)
    assert caught.value.details["reason"] == "network"
    server.faults.clear()
    server.log.clear()
    await visit(server, disk)
    assert [(start, end) for _, start, end, _ in server.log] == [(0, 1), (3000, 4500)]


async def test_offline_second_visit(server: FakeServer, disk: FakeDisk) -> None:
    await visit(server, disk)
    server.faults[URL] = [Fault(offline=True)] * 5
    await visit(server, disk)


async def test_offline_first_visit(server: FakeServer, disk: FakeDisk) -> None:
    server.faults[URL] = [Fault(offline=True)] * 5
    with pytest.raises(BadWeights, match="could not be downloaded"):
        await visit(server, disk)


@pytest.mark.parametrize("longer", [0, 700])
async def test_a_file_that_changed_is_loaded_anew(server: FakeServer, disk: FakeDisk, longer: int) -> None:
    await visit(server, disk)
    server.files[URL], server.etag = model_bytes(4500 + longer, seed=5), "two"
    await visit(server, disk)


async def test_a_file_that_changes_in_mid_download_is_an_error_and_not_mixed(
    server: FakeServer, disk: FakeDisk
) -> None:
    server.faults[URL] = [Fault(), Fault(cut_at=2500)]
    original = server.pause

    async def change(seconds: float) -> None:
        server.files[URL], server.etag = model_bytes(seed=6), "two"
        await original(seconds)

    server.pause = change  # type: ignore[method-assign]
    with pytest.raises(BadWeights, match="changed on its server"):
        await visit(server, disk)
    await visit(server, disk)


async def test_a_released_range_of_a_changed_file_is_refused(server: FakeServer, disk: FakeDisk) -> None:
    """Without an ETag only the content tells."""
    server.etag = ""
    store = new_store(server, disk)
    model = await store.ensure_model(URL, Reports())
    blob = await store.create_packed(model.key, layout_of())
    await blob.commit()
    await model.release_chunks(10)
    server.files[URL] = model_bytes(seed=7)
    with pytest.raises(BadWeights, match="changed on its server"):
        await model.source.read(2000, 10)
    await model.close()
    await blob.close()


async def test_a_released_range_is_fetched_alone(server: FakeServer, disk: FakeDisk) -> None:
    store = new_store(server, disk)
    model = await store.ensure_model(URL, Reports())
    blob = await store.create_packed(model.key, layout_of())
    await blob.commit()
    await model.release_chunks(10)
    server.log.clear()
    assert (await model.source.read(2100, 10)).tobytes() == DATA[2100:2110]
    assert [(start, end) for _, start, end, _ in server.log] == [(2000, 3000)]
    await model.close()
    await blob.close()


@pytest.mark.parametrize("announces", [True, False])
@pytest.mark.parametrize(
    ("body", "error", "why"),
    [
        (b"<!doctype html><p>Log in", BadWeights, "a web page"),
        (b"PK\3\4" + bytes(3000), BadModel, "no GGUF file: it begins with"),
        (b"", BadModel, "empty|begins with b''"),
    ],
)
async def test_things_that_are_no_model(
    server: FakeServer, disk: FakeDisk, body: bytes, error: type[Exception], why: str, announces: bool
) -> None:
    server.announces, server.ranges = announces, False
    server.files[URL] = body
    with pytest.raises(error, match=why):
        await visit(server, disk)
    server.files[URL] = DATA
    await visit(server, disk)


async def test_a_short_body_of_unknown_length_is_not_kept(server: FakeServer, disk: FakeDisk) -> None:
    server.announces = False
    server.faults[URL] = [Fault(), Fault(), Fault(cut_at=2500, ends_early=True)]
    with pytest.raises(BadModel, match="cut short: it has 2500 bytes and needs at least 4500"):
        await visit(server, disk)
    await visit(server, disk)


async def test_a_url_that_is_not_there(server: FakeServer, disk: FakeDisk) -> None:
    del server.files[URL]
    with pytest.raises(BadWeights, match="HTTP 404"):
        await visit(server, disk)


async def test_a_web_page_by_its_type_is_refused_before_its_body(server: FakeServer, disk: FakeDisk) -> None:
    server.types[URL] = "text/html"
    with pytest.raises(BadWeights, match="a web page"):
        await visit(server, disk)
    assert server.sent == 0


async def test_cancelling_ends_the_request(server: FakeServer, disk: FakeDisk) -> None:
    halfway = asyncio.Event()

    def progress(stage: str, loaded: int, total: int | None) -> None:
        if loaded > 2200:
            server.gate = asyncio.Event()
            halfway.set()

    task = asyncio.ensure_future(new_store(server, disk).ensure_model(URL, progress))
    await halfway.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.open == 0
    server.gate = None
    server.log.clear()
    await visit(server, disk)
    assert [(start, end) for _, start, end, _ in server.log] == [(0, 1), (2000, 4500)]


FAULTS = st.one_of(
    st.builds(Fault, cut_at=st.integers(0, 4500), ends_early=st.booleans()),
    st.builds(Fault, status=st.sampled_from([403, 429, 500])),
    # Not b"GGUF" alone: twice in a row it is a server with another file under the same ETag, which nothing can tell
    # before there is something to compare it with.
    st.builds(Fault, body=st.sampled_from([b"", b"x" * 4500, b"<html>"])),
    st.just(Fault(offline=True)),
)


async def test_another_file_shows_without_an_etag_where_its_beginning_is_another(server: FakeServer) -> None:
    server.ranges, server.announces, server.etag = False, False, ""
    disk = FakeDisk(2500)  # the first part has room
    await visit(server, disk)
    server.faults[URL] = [Fault(), Fault(), Fault(body=b"x" * 4500)]
    with pytest.raises(BadWeights, match="changed on its server"):
        await visit(server, disk)
    await visit(server, disk)


@example(
    # The ETag of one answer and the bytes of another.
    faults=[[Fault(cut_at=0), Fault(body=b"")], [Fault(cut_at=0), Fault(body=b""), Fault(body=b"x" * 4500)]],
    ranges=False,
    announces=False,
    quota=2500,
)
@settings(max_examples=200, deadline=None)
@given(
    faults=st.lists(st.lists(FAULTS, max_size=7), max_size=3),
    ranges=st.booleans(),
    announces=st.booleans(),
    quota=st.sampled_from([1 << 40, 2500]),
)
async def test_whatever_goes_wrong_no_wrong_byte_is_ever_read(
    faults: list[list[Fault]], ranges: bool, announces: bool, quota: int
) -> None:
    """Without hashes from a manifest: an ETag guards, and what is there already."""
    server, disk = FakeServer(ranges, announces, files={URL: DATA}), FakeDisk(quota)
    for coming in [*faults, []]:
        server.faults[URL] = list(coming)
        try:
            await visit(server, disk)
        except (BadWeights, BadModel):
            assert coming
        assert disk.handles == []
        assert server.open == 0
