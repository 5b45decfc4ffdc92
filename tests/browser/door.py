"""The door itself in a page: ``createClient`` of /tandem.js on the software adapter, driven from a test.

``Door.at`` goes to a document of the site and serves tests/data there under ``/__data__/``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.async_api import Browser, Page, Route

from .conftest import Watch

DATA = Path(__file__).parents[1] / "data"
MOUNT = "/__data__/"
DISGUISE = """
  const info = { vendor: "test", architecture: "", device: "", description: "", isFallbackAdapter: false };
  const sizes = { subgroupMinSize: 4, subgroupMaxSize: 4 };
  Object.defineProperty(GPUAdapter.prototype, "info", { get: () => ({ ...info, ...sizes }) });
"""
"""Before the worker's script: makes SwiftShader look like a real GPU, which ``adapter="auto"`` takes."""

LEDGER = (DATA.parent / "browser" / "gpu_ledger.js").read_text(encoding="utf-8")
"""Before the worker's script: counts what is made, destroyed and run on the GPU, in ``gpuLedger``."""

_HARNESS = """async () => {
  const { createClient, TandemError } = await import("/tandem.js");
  const base64 = (bytes) => {
    let text = "";
    for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
    return btoa(text);
  };
  const plain = (value) =>
    value instanceof Float32Array
      ? { float32: base64(new Uint8Array(value.buffer, value.byteOffset, value.byteLength)) }
      : { value };
  // What is thrown crosses as data; anything that is no TandemError is a fault of the test or of the door.
  const attempt = async (work) => {
    try {
      return plain(await work());
    } catch (error) {
      if (!(error instanceof TandemError)) throw error;
      return { error: { code: error.code, message: error.message, details: error.details } };
    }
  };
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  globalThis.door = {
    client: null,
    progress: [],
    open: (options) => attempt(async () => {
      door.progress = [];
      const onProgress = (report) => door.progress.push(report);
      door.client = await createClient({ ...options, onProgress });
      return door.client.status;
    }),
    inspect: (method, args) => attempt(() => door.client.inspect[method](...args)),
    inspectAll: (method, calls) => attempt(async () => {
      const found = [];
      for (const args of calls) found.push(plain(await door.client.inspect[method](...args)));
      return found;
    }),
    inspectPicture: (text) => attempt(() => door.client.inspect.vision(bytes(text))),
    describe: (text, type) => attempt(() => door.client.describe(new Blob([bytes(text)], { type }))),
    generate: (request) => attempt(async () => {
      const events = [];
      for await (const event of door.client.generate(request)) events.push(event);
      return events;
    }),
    status: () => door.client.status,
    close: () => attempt(() => door.client.close()),
  };
}"""


class DoorError(Exception):
    """A TandemError that came out of the door."""

    def __init__(self, code: str, message: str, details: dict[str, Any]) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.details = code, message, details


class Door:
    """One page with the door in it; ``open`` makes a client, which the other calls use."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @classmethod
    async def at(cls, page: Page, site: str) -> Door:
        """Makes ``page`` ready: a document of the site that runs nothing by itself, and the tests' data beside it."""
        await serve_data(page)
        await page.goto(site + "/style.css")
        await page.evaluate(_HARNESS)
        return cls(page)

    async def open(self, **options: Any) -> dict[str, Any]:
        """``createClient`` on the software adapter, without a cloud unless one is given. Returns the status."""
        full = {"adapter": "software", "mode": "only_on_device", "cloud": None, **options}
        return dict(await self._ask("open", full))

    async def inspect(self, method: str, *args: Any) -> Any:
        """``client.inspect.<method>(...args)``; typed arrays come as float32 arrays."""
        return _received(await self.page.evaluate("([method, args]) => door.inspect(method, args)", [method, args]))

    async def inspect_all(self, method: str, calls: list[list[Any]]) -> list[Any]:
        """The same for many calls, one after the other."""
        expression = "([method, calls]) => door.inspectAll(method, calls)"
        return [_received(each) for each in _received(await self.page.evaluate(expression, [method, calls]))]

    async def vision(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """``client.inspect.vision``: logits float32 [1000] of uint8 [224, 224, 3]."""
        return np.asarray(await self._ask("inspectPicture", base64.b64encode(pixels.tobytes()).decode()))

    async def describe(self, content: bytes, kind: str = "image/png") -> dict[str, Any]:
        """``client.describe`` of a Blob with this content."""
        text = base64.b64encode(content).decode()
        return dict(_received(await self.page.evaluate("([text, kind]) => door.describe(text, kind)", [text, kind])))

    async def generate(self, **request: Any) -> list[dict[str, Any]]:
        """All events of ``client.generate``."""
        return list(await self._ask("generate", request))

    async def status(self) -> dict[str, Any]:
        return dict(await self.page.evaluate("() => door.status()"))

    async def progress(self) -> list[dict[str, Any]]:
        """What ``onProgress`` heard since the last ``open``."""
        return list(await self.page.evaluate("() => door.progress"))

    async def close(self) -> None:
        await self.page.evaluate("() => door.close()")

    async def _ask(self, call: str, argument: Any) -> Any:
        return _received(await self.page.evaluate(f"(argument) => door.{call}(argument)", argument))


async def answer_at(page: Page, address: str, *texts: str) -> None:
    """From now on the gateway's stream at ``address`` is these texts, a token each."""
    usage = {"prompt_tokens": 9, "completion_tokens": len(texts), "finish_reason": "stop"}
    lines = [json.dumps(event) for event in (*({"text": text} for text in texts), {"usage": usage})]
    body = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))

    async def answer(route: Route) -> None:
        await route.fulfill(body=body, content_type="text/event-stream")

    await page.route(f"**{address}", answer)


@asynccontextmanager
async def door_in(
    browser: Browser, site: str, prepare: Callable[[Page], Awaitable[None]] | None = None
) -> AsyncIterator[Door]:
    """A door in a browser context of its own, for fixtures that outlive a test; complaints of the page fail its end."""
    watch = Watch()
    context = await browser.new_context()
    context.on("page", watch.page)
    page = await context.new_page()
    page.set_default_timeout(300_000)
    if prepare:
        await prepare(page)
    yield await Door.at(page, site)
    await context.close()
    assert watch.faults == []


def _received(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise DoorError(**answer["error"])
    if "float32" in answer:
        return np.frombuffer(base64.b64decode(answer["float32"]), "<f4")
    return answer.get("value")


async def serve_data(page: Page) -> None:
    """tests/data under ``MOUNT`` of whatever site the page is on."""
    await page.route(f"**{MOUNT}**", data_route)


async def data_route(route: Route) -> None:
    """A file of tests/data; 404 for one that is not there."""
    path = DATA / route.request.url.split(MOUNT)[1].split("?")[0]
    if path.is_file():
        await route.fulfill(path=path, content_type="application/octet-stream")
    else:
        await route.fulfill(status=404, body="no such file")


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events with neighbouring texts of one source as one: how a text is split over events depends on time."""
    out: list[dict[str, Any]] = []
    for event in events:
        last = out[-1] if out else {}
        if event["type"] == last.get("type") == "text" and event["source"] == last["source"]:
            out[-1] = {**last, "text": last["text"] + event["text"], "tokens": last["tokens"] + event["tokens"]}
        else:
            out.append(event)
    return out


def tokens_of(events: list[dict[str, Any]]) -> int:
    """How many tokens the text that a stream of events shows stands for."""
    return sum(event["tokens"] for event in events if event["type"] == "text")


def text_of(events: list[dict[str, Any]]) -> str:
    """The text that a stream of events shows."""
    return "".join(event["text"] for event in events if event["type"] == "text")
