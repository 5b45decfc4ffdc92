"""A GPU that computes rubbish, and a model file whose weights are no numbers: found out, and never shown as text."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route

from pyapp.setup.worker_script import put_before_worker
from pyapp.weights.gguf import read_gguf
from pyapp.weights.source import BytesSource
from tests.browser.door import DATA, MOUNT, Door, DoorError, answer_at, door_in, text_of

CLOUD = "/cloud"
MODEL = f"{MOUNT}tiny/tiny-qwen2-Q4_1-tied.gguf"
NO_NUMBERS = f"{MOUNT}no-numbers.gguf"
WRONG = "/wrong-gpu.json"
# Where the site says so, the driver leaves out part of the attention.
PRELUDE = f"""{{
  const wrong = fetch("{WRONG}").then((response) => response.json());
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...args) {{
    const device = await request.apply(this, args);
    device.isWrong = await wrong;
    return device;
  }};
  const create = GPUDevice.prototype.createShaderModule;
  GPUDevice.prototype.createShaderModule = function (descriptor) {{
    const {{ label }} = descriptor;
    const code = this.isWrong ? descriptor.code.replace("total * keep + weight", "total + weight") : descriptor.code;
    return create.call(this, {{ label, code }});
  }};
}}
"""


async def _without_numbers() -> bytes:
    """The tiny model with a NaN for one scale of one matrix."""
    path = DATA / "tiny" / "tiny-qwen2-Q4_1-tied.gguf"
    file = await read_gguf(BytesSource(path.read_bytes()))
    info = file.tensors["blk.1.ffn_down.weight"]
    assert info.type == "Q4_1"
    data = bytearray(path.read_bytes())
    data[info.offset : info.offset + 2] = np.float16(np.nan).tobytes()
    return bytes(data)


class Site:
    """What the routes of the test answer. ``wrong``: whether the GPU is."""

    wrong = False

    async def prepare(self, page: Page) -> None:
        async def which_gpu(route: Route) -> None:
            await route.fulfill(json=self.wrong)

        await put_before_worker(page, PRELUDE)
        await answer_at(page, CLOUD, "From", " the cloud.")
        await page.route(f"**{WRONG}", which_gpu)


@pytest_asyncio.fixture(loop_scope="session")
async def visited(browser: Browser, site: str) -> AsyncIterator[tuple[Door, Site]]:
    """A browser context that nothing is known of, with a page of the site in it."""
    answers = Site()
    async with door_in(browser, site, answers.prepare) as door:
        # After those of the door, so that it is asked first.
        damaged = await _without_numbers()
        await door.page.route(f"**{NO_NUMBERS}", lambda route: route.fulfill(body=damaged))
        yield door, answers


async def test_a_gpu_that_computes_rubbish_is_found_out(visited: tuple[Door, Site]) -> None:
    door, site = visited
    site.wrong = True
    with pytest.raises(DoorError) as caught:
        await door.open(model=MODEL, vision=None)
    error = caught.value
    assert (error.code, error.details["kind"], error.details["kernels"]) == ("device_lost", "wrong_result", "attention")
    assert "2 of " in error.message
    assert "attention the most" in error.message
    status = await door.open(model=MODEL, vision=None, mode="prefer_on_device", cloud=CLOUD)
    assert status["source"] == "cloud"
    assert "computed wrong results" in status["reason"], "the breaker is open"
    events = await door.generate(prompt="Hi", maxTokens=8)
    assert (text_of(events), events[-1]["source"]) == ("From the cloud.", "cloud")
    await door.close()
    # Whoever has no cloud may try; what a check has found then counts on the next visit.
    site.wrong = False
    for checks in (True, False):
        await door.open(model=MODEL, vision=None)
        assert any(report["stage"] == "check" for report in await door.progress()) == checks
        found = await door.inspect("selfcheck")
        assert max(each["error"] for each in found["kernels"]) < 0.01
        assert (found["msAtLoad"] is not None) == checks
        await door.close()


async def test_logits_that_are_no_numbers_never_become_text(visited: tuple[Door, Site]) -> None:
    door, _ = visited
    request = {"prompt": "Hi", "maxTokens": 8}
    await door.open(model=NO_NUMBERS, vision=None)
    with pytest.raises(DoorError) as caught:
        await door.generate(**request)
    assert (caught.value.code, caught.value.details["kind"]) == ("device_lost", "wrong_result")
    assert "no number for its token 1" in caught.value.message
    await door.close()
    # Another pool: to the breaker, which is open by now, another matter.
    wishes = {"mode": "prefer_on_device", "cloud": CLOUD, "cloudWhileLoading": False}
    await door.open(model=NO_NUMBERS, vision=None, poolMiB=100, **wishes)
    events = await door.generate(**request, temperature=0.8, topK=20, seed=3)
    assert (text_of(events), events[-1]["source"]) == ("From the cloud.", "cloud")
    assert "no number" in events[0]["message"]
    assert "no number" in (await door.status())["reason"]
    await door.close()
