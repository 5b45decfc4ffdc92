"""Packed weights that a worker of its own reads ahead, in a real browser's storage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page

from .store_site import StoreSite, open_store, python
from .test_store import MODEL, URL, packed_digest

READS = (
    f"URL = {URL!r}"
    + """
import pyapp.weights.browser as browser
reads = []
if not hasattr(browser.OpfsFile, "counted"):
    browser.OpfsFile.counted = browser.OpfsFile.read
def read(self, offset, length):
    reads.append(length)
    return self.counted(offset, length)
browser.OpfsFile.read = read
PIECE = 4 << 20

async def pieces(blob):
    '''SHA-256 of the blob, read as the pool does.'''
    whole = hashlib.sha256()
    starts = range(0, blob.total, PIECE)
    for data in await asyncio.gather(*(blob.read_js(at, min(PIECE, blob.total - at)) for at in starts)):
        whole.update(data.to_bytes())
    return whole.hexdigest()

async def visit():
    global store, model
    store = await browser_store()
    model = await store.ensure_model(URL, progress)
    await model.read_ahead()
    return await packed(store, model)
"""
)


@pytest.fixture
def model_site(store_server: tuple[str, StoreSite]) -> str:
    url, site = store_server
    site.faults.clear()
    site.files[URL] = MODEL
    return url


async def prepared(window: BrowserContext, url: str) -> Page:
    """A page after a first visit, which packs."""
    page = await open_store(window, url)
    await python(page, READS)
    await python(page, "_, blob = await visit()\nawait blob.close()\nreads.clear()\nNone")
    return page


async def said(page: Page, code: str) -> Any:
    return json.loads(await python(page, code))


@pytest.mark.parametrize("window", ["private", "ordinary"])
async def test_a_later_visit_reads_nothing_itself(
    model_site: str, window: str, private: BrowserContext, lasting: BrowserContext
) -> None:
    page = await prepared(private if window == "private" else lasting, model_site)
    found = await said(
        page,
        """
_, blob = await visit()
reads.clear()  # of the model's own file: its head
digest = await pieces(blob)
taken = sum(reads)
again = await pieces(blob)
out = json.dumps({"digest": digest, "again": again, "read": taken, "reread": sum(reads), "total": blob.total})
await blob.close()
out""",
    )
    assert found["digest"] == found["again"] == await packed_digest()
    assert found["read"] == 0  # all of it came that way
    assert found["reread"] == found["total"]


async def test_damage_is_found_in_what_was_read_ahead(model_site: str, private: BrowserContext) -> None:
    page = await prepared(private, model_site)
    answer = await python(
        page,
        """
await damage(store)
_, blob = await visit()
await attempt(pieces(blob))""",
    )
    assert answer.startswith("bad_weights: The stored weights are damaged")
    found = await said(
        page,
        "_, blob = await visit()\nout = json.dumps([blob.persistent, await pieces(blob)])\nawait blob.close()\nout",
    )
    assert found == [True, await packed_digest()]  # made again, where the worker had the file open


async def test_another_layout_is_made_where_the_old_one_was_being_read(
    model_site: str, private: BrowserContext
) -> None:
    """The worker's handle must be let go of first, or the new one would have to live in memory."""
    page = await prepared(private, model_site)
    found = await said(
        page,
        """
await model.read_ahead()
old = plan(await read_gguf(model.source))
layout = plan_layout({"all": [recipe for block in old.blocks for recipe in block.recipes]})
opened = await store.open_packed(model.key, layout)
made = await store.create_packed(model.key, layout)
out = json.dumps([opened is None, made.persistent])
await made.discard()
out""",
    )
    assert found == [True, True]


async def test_it_waits_for_room_and_nobody_waits_for_it_in_vain(model_site: str, private: BrowserContext) -> None:
    page = await prepared(private, model_site)
    found = await said(
        page,
        """
import tandem_opfs
name = await packed_name(store)
MIB = 1 << 20
async def taken(*numbers):
    ahead = tandem_opfs.readAhead(browser.FOLDER, name, MIB, MIB, 2 * MIB)
    got = [await ahead.take(number * MIB, min(MIB, size - number * MIB)) for number in numbers]
    await ahead.close()
    return [piece.hashes if piece else None for piece in got]
file = await store.files.open(name)
size = file.size
wanted = [hashlib.sha256(file.counted(at, min(MIB, size - at)).to_bytes()).hexdigest() for at in range(0, size, MIB)]
out = json.dumps([wanted, await taken(0, 1, 2, 3, 4), await taken(0, 1, 3), await taken(3, 0), await taken(0, 0, 1)])
file.close()
out""",
    )
    wanted, in_order, one_left_out, too_far, twice = found
    assert in_order == wanted
    assert one_left_out == [wanted[0], wanted[1], wanted[3]]
    assert too_far == [None, None]
    assert twice == [wanted[0], None, None]


@pytest.mark.parametrize("older", [False, True])
async def test_a_browser_in_which_readers_shut_each_other_out_is_left_alone(
    model_site: str, private: BrowserContext, older: bool
) -> None:
    """An older one whose ``createSyncAccessHandle`` knows no ``mode``."""
    page = await prepared(private, model_site)
    found = await said(
        page,
        f"""
from pyodide.code import run_js
if {older}:
    run_js('''
        const open = FileSystemFileHandle.prototype.createSyncAccessHandle;
        FileSystemFileHandle.prototype.createSyncAccessHandle = function () {{ return open.call(this); }};
    ''')
module = await run_js("import('/opfs.mjs?anew')")  # as a new visit has it
name = await packed_name(store)
folder = await module.openFolder(browser.FOLDER)
(await folder.open(name, False)).close()
ahead = module.readAhead(browser.FOLDER, name, PIECE, 1 << 20)
piece = ahead and await ahead.take(0, PIECE)
ahead and await ahead.close()
json.dumps(bool(piece))""",
    )
    assert found is not older
