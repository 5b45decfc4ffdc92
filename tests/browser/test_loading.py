"""A client that is there before its models, on a real page: the cloud first, then the device; and the probe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, Page, Route

from pyapp.setup.worker_script import put_before_worker
from tests.browser.door import DATA, DISGUISE, Door, data_route, door_in, text_of

COFFEE = (DATA / "pics" / "coffee.png").read_bytes()
MODEL = "/__data__/tiny/tiny-qwen2-Q4_1-tied.gguf"
REQUEST = {"prompt": "Hi", "maxTokens": 12}
BOTH = {"model": MODEL, "mode": "prefer_on_device", "cloud": "/cloud"}
# A browser that takes SwiftShader for a real GPU and tells how the machine is doing whenever a test says so.
MACHINE = (
    f"{DISGUISE}\n"
    + """
  self.PressureObserver = class {
    constructor(changed) {
      self.press = (state) => changed([{ source: "cpu", state: "fair" }, { source: "cpu", state }], this);
    }
    async observe(source) { self.observed = source; }
    disconnect() { self.observed = null; }
  };
"""
)


async def _prepare(page: Page) -> None:
    async def cloud(route: Route) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "finish_reason": "stop"}
        lines = [*map(json.dumps, [{"text": "From the cloud."}, {"usage": usage}]), "[DONE]"]
        body = "".join(f"data: {line}\n\n" for line in lines)
        await route.fulfill(body=body, content_type="text/event-stream")

    await page.route("**/cloud", cloud)


@pytest_asyncio.fixture(loop_scope="session")
async def door(browser: Browser, site: str) -> AsyncIterator[Door]:
    async with door_in(browser, site, _prepare) as door:
        yield door


async def until(door: Door, source: str) -> dict[str, Any]:
    """The status as soon as the next text comes from ``source``."""
    async with asyncio.timeout(120):
        while (status := await door.status())["source"] != source:  # noqa: ASYNC110 - what a page sees
            await asyncio.sleep(0.1)
    return status


async def test_cloud_writes_and_the_cpu_looks_until_the_device_is_ready(door: Door) -> None:
    coming = asyncio.Event()

    async def slowly(route: Route) -> None:
        await coming.wait()
        await data_route(route)

    await door.page.route(f"**{MODEL}", slowly)
    status = await door.open(**BOTH)
    assert (status["source"], status["loading"], status["pool"]) == ("cloud", True, None)
    assert "still being loaded" in status["reason"]
    events = await door.generate(**REQUEST)
    assert (events[0]["code"], text_of(events), events[-1]["source"]) == ("loading", "From the cloud.", "cloud")
    found = await door.describe(COFFEE)
    assert (found["labels"][0]["name"], found["source"]) == ("espresso", "cpu")
    coming.set()
    status = await until(door, "device")
    assert (status["loading"], "software adapter" in status["reason"]) == (False, True)
    events = await door.generate(**REQUEST)
    assert (events[0]["type"], events[-1]["source"]) == ("text", "device")
    assert (await door.describe(COFFEE))["source"] == "device"
    probed = await door.page.evaluate("""async () => (await import("/tandem.js")).probe({ adapter: "software" })""")
    assert (probed["adapter"], probed["usable"], probed["tier"]) == (status["adapter"], True, status["tier"])
    assert 0 < probed["ms"] < 10_000
    refused = await door.page.evaluate("""async () => (await import("/tandem.js")).probe()""")
    assert (refused["usable"], refused["tier"], refused["software"]) == (False, "unsupported", True)
    await door.close()


async def test_close_in_the_middle_of_the_download(door: Door) -> None:
    asked, failed = asyncio.Event(), asyncio.Event()
    door.page.on("requestfailed", lambda request: failed.set() if MODEL in request.url else None)
    await door.page.route(f"**{MODEL}", lambda route: asked.set())  # and no answer
    assert (await door.open(**BOTH))["source"] == "cloud"
    await asyncio.wait_for(asked.wait(), 60)
    await door.close()
    status = await door.status()
    assert (status["pool"], "closed" in status["reason"]) == (None, True)
    await asyncio.wait_for(failed.wait(), 10)
    await door.page.unroute(f"**{MODEL}")
    await door.open(model=MODEL, vision=None)
    assert (await door.generate(**REQUEST))[-1]["source"] == "device"
    await door.close()


async def test_machine_that_is_overloaded(door: Door) -> None:
    await put_before_worker(door.page, MACHINE)
    status = await door.open(**BOTH, vision=None, adapter="auto", cloudWhileLoading=False)
    assert (status["source"], status["software"]) == ("device", False)
    [python] = door.page.workers
    await python.evaluate("() => self.press('critical')")
    status = await until(door, "cloud")
    assert "overloaded" in status["reason"]
    events = await door.generate(**REQUEST)
    assert (events[0]["code"], text_of(events)) == ("pressure", "From the cloud.")
    await python.evaluate("() => self.press('nominal')")
    await until(door, "device")
    assert (await door.generate(**REQUEST))[-1]["source"] == "device"
    assert await python.evaluate("() => self.observed") == "cpu"
    await door.close()
