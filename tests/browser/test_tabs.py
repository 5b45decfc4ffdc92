"""Two tabs of the site in one browser: they take turns at the GPU, and never have two pools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page

from pyapp.setup.worker_script import put_before_worker
from tests.browser.conftest import Watch
from tests.browser.door import DATA, Door, text_of

PRELUDE = (Path(__file__).parent / "device_witness.js").read_text()
COFFEE = (DATA / "pics" / "coffee.png").read_bytes()
MODEL = "/__data__/tiny/tiny-qwen2-Q4_1-tied.gguf"
REQUEST = {"prompt": "Hi", "maxTokens": 12}
LONG = {"prompt": "Hi", "maxTokens": 200}  # this model's greedy answer to it has no end


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    watch = Watch()
    context = await browser.new_context()
    context.on("page", watch.page)
    context.set_default_timeout(240_000)
    await put_before_worker(context, PRELUDE)
    yield context
    await context.close()
    assert watch.faults == []


async def tab(context: BrowserContext, site: str, title: str) -> Door:
    door = await Door.at(await context.new_page(), site)
    await door.page.evaluate("(title) => { document.title = title; }", title)
    return door


async def witness(page: Page) -> dict[str, int]:
    [worker] = page.workers
    return dict(await worker.evaluate("() => self.poolWitness"))


async def test_two_tabs_take_turns(context: BrowserContext, site: str) -> None:
    first, second = await tab(context, site, "One"), await tab(context, site, "Two")
    await first.open(model=MODEL)
    text = text_of(await first.generate(**REQUEST))
    found = await first.describe(COFFEE)
    assert found["source"] == "device"

    # The second tab waits for its turn; the first, which is idle, makes room for it.
    assert (await second.open(model=MODEL))["source"] == "device"
    assert await second.describe(COFFEE) == found
    assert text_of(await second.generate(**REQUEST)) == text
    status = await first.status()
    assert status["pool"] is None
    assert "Another tab of this site has the GPU" in status["reason"]
    assert (await witness(first.page))["live"] == 0

    # And the first again, which says that it waits.
    events = await first.generate(**REQUEST)
    assert text_of(events) == text
    assert events[0]["code"] == "busy"
    assert await first.describe(COFFEE) == found
    assert (await witness(second.page))["live"] == 0

    counts = [await witness(door.page) for door in (first, second)]
    assert [count["conflicts"] for count in counts] == [0, 0]
    assert [count["pools"] for count in counts] == [2, 1]


async def test_tab_that_is_closed_at_work_frees_its_turn(context: BrowserContext, site: str) -> None:
    first, second = await tab(context, site, "One"), await tab(context, site, "Two")
    await first.open(model=MODEL, vision=None)
    await first.page.evaluate(
        """async (request) => {
          globalThis.events = door.client.generate(request);
          await globalThis.events.next();
          (async () => { for await (const event of globalThis.events) void event; })();
        }""",
        LONG,
    )
    opening = asyncio.ensure_future(second.open(model=MODEL, vision=None))
    await asyncio.sleep(0)
    await first.page.close()
    assert (await opening)["source"] == "device"
    assert (await second.generate(**REQUEST))[-1]["source"] == "device"
    assert (await witness(second.page))["conflicts"] == 0


async def test_prefer_on_device_goes_without_meanwhile(context: BrowserContext, site: str) -> None:
    """The second tab does not wait: its photo goes to the CPU, its texts where there is somebody else."""
    first, second = await tab(context, site, "One"), await tab(context, site, "Two")
    await first.open(model=MODEL)
    found = await first.describe(COFFEE)
    # A tab that is never idle: it hands its turn on between two texts, once it has had its share.
    await first.page.evaluate(
        """(request) => {
          globalThis.busy = (async () => {
            while (!globalThis.enough) for await (const event of door.client.generate(request)) void event;
          })();
        }""",
        LONG,
    )
    status: dict[str, Any] = await second.open(model=MODEL, mode="prefer_on_device", cloud="/nowhere")
    assert status["source"] == "cloud"
    during = await second.describe(COFFEE)
    assert during["source"] == "cpu"
    assert [label["name"] for label in during["labels"]] == [label["name"] for label in found["labels"]]
    status = await second.status()
    # Either still waiting, or, as the first tab has had its share, loading the models.
    assert status["pool"] is not None or "Another tab of this site ha" in status["reason"]
    await first.page.evaluate("() => { globalThis.enough = true; return globalThis.busy; }")
    # The second tab may have had a turn already and given it back: it asks again when it needs the device.
    async with asyncio.timeout(120):
        while (await second.describe(COFFEE))["source"] != "device":  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    assert await second.describe(COFFEE) == found
    assert [(await witness(door.page))["conflicts"] for door in (first, second)] == [0, 0]
