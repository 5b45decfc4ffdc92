"""The GPU taken away for real in the middle of a text: by a crash of the browser's GPU process, by ``destroy()``; and
one that hangs, which nobody takes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from pyapp.setup.worker_script import put_before_worker
from tests.browser.conftest import ONLY_LOCAL
from tests.browser.door import DATA, Door, answer_at, door_in, joined, text_of, tokens_of

HERE = Path(__file__).parent
PRELUDE = (HERE / "gpu_ledger.js").read_text() + (HERE / "device_witness.js").read_text()
COFFEE = (DATA / "pics" / "coffee.png").read_bytes()
MODEL = "/__data__/tiny/tiny-qwen2-Q4_1-tied.gguf"
PROMPT = "Hi"  # this model's greedy answer to it has no end
CLOUD = "/cloud"
TOKENS = 160
BEFORE = 6
"""Tokens that are shown before the GPU is lost, at least."""
# After 2 or 3 crashes Chromium would refuse every adapter until it is started again.
FORGIVING = ["--disable-gpu-process-crash-limit", "--disable-domain-blocking-for-3d-apis"]

Lose = Callable[[Door], Awaitable[None]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def forgiving(chromium: Path) -> AsyncIterator[Browser]:
    """A browser that lives through any number of crashes of its GPU process."""
    from pyapp.setup.browser import flags

    async with async_playwright() as playwright:
        arguments = [*flags("software"), ONLY_LOCAL, *FORGIVING]
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        await browser.close()


async def _prepare(page: Page) -> None:
    await put_before_worker(page, PRELUDE)
    await answer_at(page, CLOUD, " From", " the cloud.")


@pytest_asyncio.fixture(loop_scope="session")
async def door(forgiving: Browser, site: str) -> AsyncIterator[Door]:
    async with door_in(forgiving, site, _prepare) as door:
        yield door


async def _crash(door: Door) -> None:
    browser = door.page.context.browser
    assert browser is not None
    session = await browser.new_browser_cdp_session()
    await session.send("Browser.crashGpuProcess")
    await session.detach()


async def _destroy(door: Door) -> None:
    [worker] = door.page.workers
    await worker.evaluate("() => self.testDevices.at(-1).destroy()")


async def _hang(door: Door) -> None:
    """No promise of this device is kept any more."""
    [worker] = door.page.workers
    script = """() => {
      const { mapAsync } = GPUBuffer.prototype;
      const { requestDevice } = GPUAdapter.prototype;
      GPUBuffer.prototype.mapAsync = () => new Promise(() => {});
      GPUAdapter.prototype.requestDevice = function (...args) {
        GPUBuffer.prototype.mapAsync = mapAsync;
        return requestDevice.apply(this, args);
      };
    }"""
    await worker.evaluate(script)


LOSSES = pytest.mark.parametrize("lose", [_crash, _destroy], ids=["crash", "destroy"])


async def start(door: Door, **request: Any) -> None:
    """Begins a text; ``events`` has what has come of it."""
    script = """(request) => {
      const run = (globalThis.run = { events: [], ended: false, error: null });
      (async () => {
        for await (const event of door.client.generate(request)) run.events.push(event);
      })().catch((error) => { run.error = `${error.code}: ${error.message}`; }).finally(() => { run.ended = true; });
    }"""
    await door.page.evaluate(script, request)


async def events(door: Door, *, least: int | None = None) -> list[dict[str, Any]]:
    """The events of the running text: once they show ``least`` tokens, or else all of them."""
    script = """(least) => {
      const shown = run.events.reduce((sum, { tokens = 0 }) => sum + tokens, 0);
      return run.ended || (least !== null && shown >= least);
    }"""
    await door.page.wait_for_function(script, arg=least)
    run = await door.page.evaluate("() => run")
    assert run["error"] is None
    return list(run["events"])


async def interrupted(door: Door, lose: Lose, **request: Any) -> list[dict[str, Any]]:
    """The events of a text in the middle of which the GPU is lost."""
    await start(door, **request)
    before = await events(door, least=BEFORE)
    assert before[-1]["type"] == "text", "the loss must come in the middle"
    await lose(door)
    return await events(door)


def told_in_the_middle(cut: list[dict[str, Any]], whole: list[dict[str, Any]]) -> dict[str, Any]:
    """The one status event of a text that is ``whole`` but for it, and has tokens on both sides of it."""
    [told] = [event for event in cut if event["type"] == "status"]
    at = cut.index(told)
    assert joined(cut[:at] + cut[at + 1 :]) == joined(whole)
    assert tokens_of(cut[:at]) >= BEFORE
    assert tokens_of(cut[at:]) > 0
    return told


async def live_bytes(door: Door) -> int:
    """Bytes of buffers that were made and not destroyed, counted at WebGPU."""
    [worker] = door.page.workers
    return int(await worker.evaluate("() => self.poolWitness.live"))


async def until_device(door: Door) -> None:
    async with asyncio.timeout(120):
        while (await door.status())["pool"] is None:  # noqa: ASYNC110 - what a page sees
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("lose", "sampling"),
    [(_crash, {}), (_destroy, {"temperature": 0.4, "seed": 5})],
    ids=["crash-greedy", "destroy-seeded"],
)
async def test_only_on_device_goes_on_as_if_nothing_had_happened(
    door: Door, lose: Lose, sampling: dict[str, Any]
) -> None:
    await door.open(model=MODEL, vision=None, rebuildsPerHour=20)
    request = {"prompt": PROMPT, "maxTokens": TOKENS, **sampling}
    whole = await door.generate(**request)
    bytes_before = await live_bytes(door)
    cut = await interrupted(door, lose, **request)
    assert told_in_the_middle(cut, whole)["code"] == "device_lost"
    assert (await door.status())["source"] == "device"
    assert await live_bytes(door) == bytes_before
    assert joined(await door.generate(**request)) == joined(whole)
    memory = await door.inspect("memory")
    assert memory["live"] == bytes_before
    await door.close()


async def test_a_gpu_that_hangs_is_given_up_and_the_next_one_goes_on(door: Door) -> None:
    await door.open(model=MODEL, vision=None, stallSeconds=1)
    request = {"prompt": PROMPT, "maxTokens": TOKENS}
    whole = await door.generate(**request)
    bytes_before = await live_bytes(door)
    cut = await interrupted(door, _hang, **request)
    assert "finished nothing for 1 seconds" in told_in_the_middle(cut, whole)["message"]
    assert await live_bytes(door) == bytes_before
    assert joined(await door.generate(**request)) == joined(whole)
    await door.close()


@LOSSES
async def test_cloud_goes_on_at_once_and_the_device_comes_back(door: Door, lose: Lose) -> None:
    await door.open(model=MODEL, mode="prefer_on_device", cloud=CLOUD, cloudWhileLoading=False)
    bytes_before = await live_bytes(door)
    request = {"prompt": PROMPT, "maxTokens": TOKENS}
    whole = text_of(await door.generate(**request))
    found = await door.describe(COFFEE)
    cut = await interrupted(door, lose, **request)
    device = text_of([event for event in cut if event.get("source") == "device"])
    assert len(device) > 0
    assert whole.startswith(device)
    assert text_of(cut) == device + " From the cloud."
    assert (cut[-1]["source"], cut[-2]["cloudTokens"]) == ("cloud", 2)
    during = await door.describe(COFFEE)
    assert [label["name"] for label in during["labels"]] == [label["name"] for label in found["labels"]]
    await until_device(door)
    again = await door.generate(**request)
    assert (text_of(again), again[-1]["source"]) == (whole, "device")
    assert await door.describe(COFFEE) == found
    assert found["source"] == "device"
    assert await live_bytes(door) == bytes_before
    await door.close()


async def test_loss_while_idle_and_one_rebuild_too_many(door: Door) -> None:
    await door.open(model=MODEL, vision=None, rebuildsPerHour=1)
    await _destroy(door)
    assert (await door.generate(prompt=PROMPT, maxTokens=4))[-1]["source"] == "device"
    await _destroy(door)
    script = """() => door.generate({ prompt: "Hi", maxTokens: 4 })"""
    refused = (await door.page.evaluate(script))["error"]
    assert refused["code"] == "device_lost"
    assert "rebuilt 1 times within the hour" in refused["message"]
    assert await live_bytes(door) == 0
    await door.close()
