"""What is asked of the GPU, counted at WebGPU itself and compared with what the door says of it.

gpu_ledger.js wraps the methods of GPUDevice and its kin inside the worker, before anything of ours runs there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from pyapp.setup.worker_script import put_before_worker
from tests.browser.door import DATA, LEDGER, Door, door_in

COFFEE = (DATA / "pics" / "coffee.png").read_bytes()
POOL = 100 << 20
PROMPT = [1, 2, 3, 4, 5]
RINGS = 1 << 20
"""More than the step state and the read-back rings may take beside the pool's slabs (a tiny vocabulary's)."""
MODELS = {
    "llama": "/__data__/tiny/tiny-llama-Q4_1-tied.gguf",
    "qwen3": "/__data__/tiny/tiny-qwen3-Q8_0-tied.gguf",
}


async def _keep_ledgers(page: Page) -> None:
    await put_before_worker(page, LEDGER)
    # What a worker told last: a closed client's can be asked no more.
    await page.add_init_script("""
      globalThis.lastLedger = null;
      new BroadcastChannel("gpu-ledger").onmessage = ({ data }) => { globalThis.lastLedger = data; };
    """)


@pytest_asyncio.fixture(loop_scope="session")
async def door(browser: Browser, site: str) -> AsyncIterator[Door]:
    async with door_in(browser, site, _keep_ledgers) as door:
        yield door


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=MODELS)
async def ready(browser: Browser, site: str, request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    """A client with both models on the device, for two architectures; the third is in the test of turns below."""
    async with door_in(browser, site, _keep_ledgers) as door:
        status = await door.open(model=MODELS[request.param], poolMiB=POOL >> 20)
        assert (status["source"], status["pool"]["budget"]) == ("device", POOL)
        yield door


async def ledger(page: Page) -> dict[str, Any]:
    """The ledger of the page's one worker."""
    [worker] = page.workers
    return dict(await worker.evaluate("() => self.gpuLedger"))


COUNTED = ("submits", "dispatches", "strangeDispatches", "writes", "readBacks", "waits")


def increase(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in COUNTED}


def made(book: dict[str, Any]) -> dict[str, int]:
    """What a run must leave as it was."""
    return {**book["created"], "buffers destroyed": book["destroyedBuffers"]}


async def check_books(door: Door) -> dict[str, Any]:
    """Compares ``inspect.memory()`` with the ledger; returns the memory figures."""
    book, memory = await ledger(door.page), dict(await door.inspect("memory"))
    objects = memory["objects"]
    assert book["errors"] == []
    assert memory["asked"] == sum(book["sizes"])
    assert memory["live"] == sum(book["sizes"]) - book["destroyedBytes"]
    assert memory["live"] <= memory["peak"] <= memory["asked"]
    assert (
        sum(objects[kind] for kind in ("slab", "state", "constants", "readback"))
        == len(book["sizes"]) - book["destroyedBuffers"]
    )
    assert objects["pipeline"] == book["created"]["createComputePipelineAsync"] == book["created"]["createShaderModule"]
    assert book["created"]["createComputePipeline"] == 0  # it would block the GPU process
    assert book["created"]["createTexture"] == book["created"]["createQuerySet"] == 0
    slabs = memory["slabs"]
    assert len(slabs) == objects["slab"]
    assert all(0 < slab["used"] <= slab["size"] for slab in slabs)
    assert {slab["role"] for slab in slabs} == {"weights", "workspace"}
    beside = memory["live"] - sum(slab["size"] for slab in slabs)
    assert 256 <= beside <= RINGS
    assert sum(memory["tenants"].values()) == sum(slab["used"] for slab in slabs)
    return memory


async def test_nothing_is_made_after_load(ready: Door) -> None:
    memory = await check_books(ready)
    pool = (await ready.status())["pool"]
    assert sum(slab["size"] for slab in memory["slabs"]) <= POOL
    assert pool["used"] == sum(slab["used"] for slab in memory["slabs"])
    before = await ledger(ready.page)
    for _ in range(2):
        assert (await ready.describe(COFFEE))["labels"][0]["name"] == "espresso"
        [*_, usage, done] = await ready.generate(prompt="hello", maxTokens=8)
        assert (done["source"], usage["cloudTokens"]) == ("device", 0)
        await ready.generate(prompt="hello", maxTokens=8, temperature=0.8, topK=20, topP=0.9, seed=7)
        await ready.inspect("logits", PROMPT)
        await ready.inspect("nll", PROMPT)
        after = await ledger(ready.page)
        assert made(after) == made(before)
        assert await check_books(ready) == memory
    assert after["submits"] > before["submits"]


@pytest.mark.parametrize("sampling", ["greedy", "seeded"])
async def test_a_token_is_one_submit_of_the_plan(ready: Door, sampling: str) -> None:
    """A longer answer costs, for each token more, one submit with as many dispatches as the plan's table has rows, and
    one read-back. (Where a device is fast, several steps share them: test_generation.py.)"""
    plan = await ready.inspect("plan", "language")
    assert 1 <= plan["dispatchesPerLayer"] <= 6
    assert plan["activations"]["peak"] < plan["activations"]["sum"]
    spent = []
    for tokens in (4, 12):
        before = await ledger(ready.page)
        if sampling == "greedy":
            assert len(await ready.inspect("greedy", PROMPT, tokens)) == tokens
        else:
            events = await ready.generate(prompt="x", maxTokens=tokens, temperature=2, seed=11)
            assert [event["completionTokens"] for event in events if event["type"] == "usage"] == [tokens]
        spent.append(increase(before, await ledger(ready.page)))
    more = {name: spent[1][name] - spent[0][name] for name in spent[0]}
    dispatches = sum(row["dispatches"] for row in plan["rows"])
    assert more == {
        "submits": 8, "dispatches": 8 * dispatches, "strangeDispatches": 0, "writes": 0, "readBacks": 8, "waits": 0
    }  # fmt: skip
    assert spent[0]["strangeDispatches"] == 0  # every one by the loop in replay.mjs: no Python between two dispatches


async def test_a_first_token_is_two_submits(ready: Door) -> None:
    """The prompt, and all that it leaves cleared behind it; ids and step state are written before."""
    before = await ledger(ready.page)
    await ready.inspect("greedy", PROMPT, 1)
    spent = increase(before, await ledger(ready.page))
    assert {name: spent[name] for name in ("submits", "writes", "readBacks", "waits")} == {
        "submits": 2, "writes": 2, "readBacks": 1, "waits": 0
    }  # fmt: skip


async def test_a_picture_is_one_submit_of_the_plan(ready: Door) -> None:
    plan = await ready.inspect("plan", "vision")
    before = await ledger(ready.page)
    await ready.describe(COFFEE)
    dispatches = sum(row["dispatches"] for row in plan["rows"])
    # The workspace is cleared by the same submit, behind the copy of the logits.
    assert increase(before, await ledger(ready.page)) == {
        "submits": 1, "dispatches": dispatches, "strangeDispatches": 0, "writes": 1, "readBacks": 1, "waits": 0
    }  # fmt: skip


async def test_closing_gives_everything_back(door: Door) -> None:
    await door.open(model=MODELS["llama"], poolMiB=POOL >> 20)
    await door.generate(prompt="hello", maxTokens=4)
    sizes = (await ledger(door.page))["sizes"]
    gone = asyncio.Event()
    door.page.workers[0].on("close", lambda _: gone.set())
    await door.close()
    await asyncio.wait_for(gone.wait(), 10)
    last = await door.page.evaluate("() => lastLedger")
    assert (last["destroyedBuffers"], last["destroyedBytes"]) == (len(sizes), sum(sizes))
    assert last["destroyedDevices"] == 1


async def test_two_models_in_a_pool_that_holds_one(door: Door) -> None:
    """The models take turns. What overlaps moves, to the byte, and nothing is made for it."""
    model = "/__data__/tiny/tiny-qwen2-Q2_K-tied.gguf"
    await door.open(model=model, poolMiB=200)
    expected, description = await door.inspect("greedy", PROMPT, 6), await door.describe(COFFEE)
    roomy = await check_books(door)
    await door.close()
    await door.open(model=model, poolMiB=25)
    memory = await check_books(door)
    assert sum(slab["size"] for slab in memory["slabs"]) <= 25 << 20
    needed, room = (
        sum(slab["size"] for slab in figures["slabs"] if slab["role"] == "weights") for figures in (roomy, memory)
    )
    overlap = needed - room
    assert overlap > 1_000_000
    before = await ledger(door.page)
    for _ in range(3):
        assert await door.inspect("greedy", PROMPT, 6) == expected
        assert await door.describe(COFFEE) == description
    after = await ledger(door.page)
    assert made(after) == made(before)
    # Six turns; the language model had the last one of loading, so five of them move something.
    moved = after["writtenBytes"] - before["writtenBytes"]
    pictures = 3 * 224 * 224 * 3
    assert 5 * overlap + pictures <= moved < 5 * overlap + pictures + 100_000  # the prompts and the step states too
    last = await check_books(door)
    assert last["moved"]["bytes"] - memory["moved"]["bytes"] == 5 * overlap
    assert (last["asked"], last["live"], last["objects"]) == (memory["asked"], memory["live"], memory["objects"])
