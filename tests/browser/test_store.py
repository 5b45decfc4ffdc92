"""The store in a real browser: OPFS, quotas, private windows, other tabs, cleared data, real connections."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.async_api import Browser, BrowserContext, Page

from pyapp.weights.packing import pack
from pyapp.weights.source import BytesSource

from .store_site import HELPERS, Fault, StoreSite, open_store, python, until

MANIFEST = "/faulty/manifest.json"
URL = "/faulty/Some-Model.gguf"
CHUNK = 1 << 20


def big_gguf() -> bytes:
    """A sound GGUF of 5.2 MB: five chunks, five MiB of blob, Q4_1, Q8_0 and F32."""
    rng = np.random.default_rng(11)
    tensors: list[tuple[str, int, tuple[int, ...], bytes]] = []
    for index in range(3):
        blocks = rng.integers(0, 256, (512 * 64, 20), np.uint8)
        blocks[:, :4] = rng.normal(size=(len(blocks), 2)).astype("<f2").view(np.uint8)
        tensors.append((f"a{index}", 3, (2048, 512), blocks.tobytes()))
        eights = rng.integers(0, 256, (1000 * 32, 34), np.uint8)
        eights[:, :2] = rng.normal(size=(len(eights), 1)).astype("<f2").view(np.uint8)
        tensors.append((f"b{index}", 8, (1024, 1000), eights.tobytes()))
        tensors.append((f"c{index}", 0, (1000,), rng.normal(size=1000).astype("<f4").tobytes()))
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0), b""
    for name, kind, shape, content in tensors:
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<Q", len(name)) + name.encode() + dimensions + struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data


MODEL = big_gguf()
COUNT = 5
DIGEST = hashlib.sha256(MODEL).hexdigest()


async def packed_digest() -> str:
    """What the blob must be: packed here by CPython with the recipes that the browser uses."""
    names: dict[str, Any] = {}
    helpers = "\n".join(line for line in HELPERS.splitlines() if "browser_store" not in line)
    exec(compile(helpers, "helpers", "exec"), names)
    source = BytesSource(MODEL)
    file = await names["read_gguf"](source)
    layout = names["plan"](file)
    blob = np.zeros(layout.total, np.uint8)

    class Sink:
        async def write(self, offset: int, data: np.ndarray) -> None:
            blob[offset : offset + data.size] = data

    await pack(file, source, layout, Sink())
    return hashlib.sha256(blob.tobytes()).hexdigest()


@pytest.fixture
def served(store_server: tuple[str, StoreSite]) -> Iterator[tuple[str, StoreSite]]:
    """The site with a fresh model on it, and no faults."""
    url, site = store_server
    site.faults.clear()
    site.log.clear()
    site.gate, site.ranges, site.left = None, True, 0
    chunks = []
    for at in range(0, len(MODEL), CHUNK):
        piece = MODEL[at : at + CHUNK]
        name = f"{hashlib.sha256(piece).hexdigest()}"
        site.files[f"/faulty/{name}.bin"] = piece
        chunks.append({"sha256": name, "bytes": len(piece), "url": f"{name}.bin"})
    fields = {"name": "tiny", "format": "gguf", "bytes": len(MODEL), "sha256": DIGEST, "chunk_bytes": CHUNK}
    site.files[MANIFEST] = json.dumps({**fields, "chunks": chunks}).encode()
    site.files[URL] = MODEL
    yield url, site
    if site.gate is not None:
        site.gate.set()


def chunk(index: int) -> str:
    return f"/faulty/{hashlib.sha256(MODEL[index * CHUNK : (index + 1) * CHUNK]).hexdigest()}.bin"


def chunks_asked(site: StoreSite) -> list[str]:
    return [path for path in site.log if path.endswith(".bin")]


VISIT = f"""
store = await browser_store()
seen.clear()
model = await attempt(store.ensure_model({MANIFEST!r}, progress))
"""


async def visit(page: Page) -> dict[str, Any]:
    """A visit that packs or opens, and what came of it."""
    found: dict[str, Any] = json.loads(
        await python(
            page,
            VISIT
            + """
layout, blob = await packed(store, model)
out = json.dumps({"model": model.persistent, "blob": blob.persistent, "digest": await blob_digest(blob),
                  "stages": sorted({stage for stage, _, _ in seen}), "last": seen[-1]})
await model.close()
await blob.close()
out""",
        )
    )
    return found


async def quota(context: BrowserContext, page: Page, site: str, nbytes: int) -> None:
    session = await context.new_cdp_session(page)
    await session.send("Storage.overrideQuotaForOrigin", {"origin": site, "quotaSize": nbytes})


async def test_first_and_later_visits(served: tuple[str, StoreSite], lasting: BrowserContext) -> None:
    url, site = served
    page, wanted = await open_store(lasting, url), await packed_digest()
    first = await visit(page)
    assert first == {
        "model": True,
        "blob": True,
        "digest": wanted,
        "stages": ["weights"],
        "last": ["weights", len(MODEL), len(MODEL)],
    }
    assert len(chunks_asked(site)) == COUNT
    stored = {**first, "stages": ["stored"], "last": ["stored", len(MODEL), len(MODEL)]}

    # In the same worker, and in a new tab while the first one reads.
    for again in (page, await open_store(lasting, url)):
        site.log.clear()
        assert await visit(again) == stored
        assert chunks_asked(site) == []
        await python(again, VISIT + "_, held = await packed(store, model)\nawait held.read_js(0, 100)\nNone")

    # The chunks but the head's were given up; one that is asked for all the same comes back.
    site.log.clear()
    assert (
        await python(page, "(await model.source.read(4_500_000, 4)).tobytes().hex()")
        == MODEL[4_500_000:4_500_004].hex()
    )
    assert chunks_asked(site) == [chunk(4)]
    names = str(await python(page, "' '.join(sorted(await store.files.names()))")).split()
    kinds = [name.split(".", 1)[1].split("-")[0] for name in names if name.startswith(DIGEST[:32])]
    assert kinds == ["pack", "pack", "raw", "state"]


async def test_a_damaged_blob_is_found_and_made_again(served: tuple[str, StoreSite], private: BrowserContext) -> None:
    url, _ = served
    page, wanted = await open_store(private, url), await packed_digest()
    assert (await visit(page))["digest"] == wanted
    said = await python(
        page,
        VISIT
        + """
await damage(store)
layout, blob = await packed(store, model)
await attempt(blob_digest(blob))
""",
    )
    assert said.startswith("bad_weights: The stored weights are damaged")
    assert (await visit(page))["digest"] == wanted


@pytest.mark.parametrize("window", ["private", "ordinary"])
async def test_a_full_quota_goes_on_in_memory(
    served: tuple[str, StoreSite], browser: Browser, lasting: BrowserContext, window: str
) -> None:
    """Private windows answer a write past the quota with a number, ordinary ones with an exception."""
    url, _ = served
    context = lasting if window == "ordinary" else await browser.new_context()
    page, wanted = await open_store(context, url), await packed_digest()
    # Room for nothing, for a part of the file, for the file but not the blob; and then for everything. (A growing file
    # is counted with the next power of two: 8 MiB for these 5. 9.25 to 10 MiB hold the file alone, in both windows.)
    for room, stored in (
        (1, (False, False)),
        (3 << 20, (False, False)),
        (9984 << 10, (True, False)),
        (1 << 30, (True, True)),
    ):
        await python(page, "store = await browser_store()\nfor name in await store.files.names():\n"
                           "    await store.files.delete(name)")  # fmt: skip
        await quota(context, page, url, room)
        found = await visit(page)
        assert found["digest"] == wanted
        assert (found["model"], found["blob"]) == stored, room
        assert ("weights_in_memory" in found["stages"]) is not stored[0]
        # A second visit finds what there was room for, and is right in any case.
        assert (await visit(page))["digest"] == wanted
    if context is not lasting:
        await context.close()


async def test_without_opfs_everything_is_in_memory(served: tuple[str, StoreSite], private: BrowserContext) -> None:
    url, site = served
    page = await open_store(private, url, bare=True)
    found = await visit(page)
    assert found["digest"] == await packed_digest()
    assert (found["model"], found["blob"]) == (False, False)
    assert len(chunks_asked(site)) == COUNT


async def test_two_first_visits_at_once(served: tuple[str, StoreSite], private: BrowserContext) -> None:
    url, _ = served
    pages = [await open_store(private, url) for _ in range(2)]
    found = await asyncio.gather(*map(visit, pages))
    wanted = await packed_digest()
    assert [each["digest"] for each in found] == [wanted, wanted]
    assert any(each["blob"] for each in found)


async def test_a_cache_emptied_in_mid_download(served: tuple[str, StoreSite], private: BrowserContext) -> None:
    url, site = served
    page = await open_store(private, url)
    await python(page, VISIT + "await model.close()\nNone")
    site.files[MANIFEST] = site.files[MANIFEST].replace(DIGEST[:8].encode(), b"00000000", 1)
    site.gate = threading.Event()
    running = asyncio.ensure_future(visit(page))
    await until(lambda: site.waiting >= 3)
    session = await private.new_cdp_session(page)
    await session.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
    site.gate.set()
    assert (await running)["digest"] == await packed_digest()
    assert (await visit(page))["digest"] == await packed_digest()


async def test_connections_that_fail(served: tuple[str, StoreSite], private: BrowserContext) -> None:
    url, site = served
    page = await open_store(private, url)
    ensure = VISIT + "model if isinstance(model, str) else await digest(model)"

    # A web page, a wrong chunk, a missing one: each a sentence of its own, and nothing of it is kept.
    site.faults[chunk(1)] = [Fault(body=b"<!doctype html><p>Not here", content_type="text/html")]
    assert "web page instead of chunk 2 of 5" in await python(page, ensure)
    site.faults[chunk(1)] = [Fault(body=b"x" * CHUNK)] * 2
    assert "Chunk 2 of 5 of tiny is not the one promised" in await python(page, ensure)
    site.faults[chunk(1)] = [Fault(status=404)]
    assert "HTTP 404" in await python(page, ensure)

    # A connection cut in the middle, and a server that is busy: both pass by themselves.
    site.faults[chunk(1)] = [Fault(cut_at=1), Fault(status=503)]
    assert await python(page, ensure) == DIGEST

    # The same for a bare URL, by a range, and from a server without ranges.
    for ranges in (True, False):
        site.ranges, site.log[:] = ranges, []
        site.faults[URL] = [Fault(), Fault(cut_at=1)]
        code = f"""
store = await browser_store()
model = await store.ensure_model({URL!r} + "?ranges={ranges}", progress)
first = await digest(model)
await model.close()
again = await (await browser_store()).ensure_model({URL!r} + "?ranges={ranges}", progress)
out = json.dumps([model.name, model.persistent, first, await digest(again)])
await again.close()
out"""
        assert json.loads(await python(page, code)) == ["Some-Model", True, DIGEST, DIGEST]
        # A look, a cut download, the rest of it, and a look at the second visit.
        assert site.log == [URL] * 4


async def test_cancelling_stops_the_requests(served: tuple[str, StoreSite], private: BrowserContext) -> None:
    url, site = served
    page = await open_store(private, url)
    site.gate = threading.Event()
    await python(
        page,
        f"""
store = await browser_store()
task = asyncio.ensure_future(store.ensure_model({MANIFEST!r}, progress))
None""",
    )
    await until(lambda: site.waiting >= 3)
    said = await python(
        page,
        """
task.cancel()
try:
    await task
except asyncio.CancelledError:
    out = "cancelled"
out""",
    )
    assert said == "cancelled"
    await until(lambda: site.left >= 3)
    site.gate.set()
    site.gate = None
    assert await python(page, VISIT + "await digest(model)") == DIGEST
