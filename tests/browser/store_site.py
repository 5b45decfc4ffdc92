"""A site for the tests of the store: the built one, a page with Python in a worker, and files that fail on demand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import BrowserContext, Page

PAGE = """<!doctype html><title>store</title><script type="module">
const worker = new Worker("/store/worker.js", { type: "module" });
const waiting = new Map();
let next = 0;
worker.onmessage = ({ data: [id, value, error] }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  error === null ? resolve(value) : reject(new Error(error));
};
globalThis.python = (code) => new Promise((resolve, reject) => {
  waiting.set(++next, { resolve, reject });
  worker.postMessage([next, code]);
});
</script>"""

WORKER = """
const ready = (async () => {
  if (new URL(self.location).searchParams.has("bare")) delete StorageManager.prototype.getDirectory;
  const { boot } = await import("/boot.js");
  return boot();
})();
self.onmessage = async ({ data: [id, code] }) => {
  try {
    const value = await (await ready).runPythonAsync(code);
    self.postMessage([id, value ?? null, null]);
  } catch (error) {
    self.postMessage([id, null, String(error.message)]);
  }
};
"""


@dataclass
class Fault:
    """What one answer does instead of the right thing."""

    status: int = 200
    body: bytes | None = None
    content_type: str = "application/octet-stream"
    cut_at: int | None = None


@dataclass
class StoreSite:
    """ASGI: ``/store/`` has the page, ``/faulty/`` the files; everything else comes from the built site."""

    built: Any
    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    log: list[str] = field(default_factory=list)
    ranges: bool = True
    gate: threading.Event | None = None
    """While it is there and not set, the bodies of weights stop half-way."""
    waiting: int = 0
    left: int = 0
    """How many answers the browser went away from."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path == "/store/page.html":
            await _send(
                send, 200, "text/html", PAGE.replace("worker.js", "worker.js?bare") if scope["query_string"] else PAGE
            )
        elif path == "/store/worker.js":
            await _send(send, 200, "text/javascript", WORKER)
        elif path.startswith("/faulty/"):
            await self._faulty(path, dict(scope["headers"]), receive, send)
        else:
            await self.built(scope, receive, send)

    async def _faulty(self, path: str, headers: dict[bytes, bytes], receive: Any, send: Any) -> None:
        self.log.append(path)
        fault = self.faults[path].pop(0) if self.faults[path] else Fault()
        body, status = self.files.get(path, b""), fault.status if path in self.files else 404
        if fault.body is not None:
            body = fault.body
        sent = [(b"content-type", fault.content_type.encode()), (b"etag", b'"one"'), (b"cache-control", b"no-store")]
        asked = headers.get(b"range", b"").decode()
        if asked and self.ranges and status == 200:
            start, _, end = asked.removeprefix("bytes=").partition("-")
            last = min(int(end or len(body) - 1), len(body) - 1)
            sent.append((b"content-range", f"bytes {start}-{last}/{len(body)}".encode()))
            body, status = body[int(start) : last + 1], 206
        sent.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": sent})
        half = len(body) // 2
        await send({"type": "http.response.body", "body": body[:half], "more_body": True})
        if self.gate is not None and not path.endswith(".json"):
            self.waiting += 1
            gone = asyncio.ensure_future(_gone(receive))
            while not self.gate.is_set() and not gone.done():
                await asyncio.wait({gone}, timeout=0.01)
            self.left += gone.done()
            gone.cancel()
            self.waiting -= 1
        if fault.cut_at is not None:
            return  # uvicorn then closes the connection in the middle of the body
        await send({"type": "http.response.body", "body": body[half:]})


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Any, status: int, kind: str, text: str) -> None:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


HELPERS = '''
import asyncio, hashlib, json
import numpy as np
from pyapp.errors import TandemError
from pyapp.weights.browser import browser_store
from pyapp.weights.gguf import read_gguf
from pyapp.weights.packing import PackedTensor, SourceRows, kernel_format, pack, plan_layout

def plan(file):
    """Every tensor in its own format; the first matrix with its rows turned round."""
    recipes = []
    for number, info in enumerate(file.tensors.values()):
        n, k = (1, info.shape[0]) if len(info.shape) == 1 else info.shape
        order = np.arange(n)[::-1] if number == 1 and n > 1 else None
        recipes.append(PackedTensor(info.name, (SourceRows(info.name, order),), kernel_format(info.type), n, k))
    return plan_layout({"first": recipes[:4], "second": recipes[4:]})

async def digest(model):
    """SHA-256 of all that the source gives."""
    return hashlib.sha256((await model.source.read(0, model.source.size)).tobytes()).hexdigest()

async def packed(store, model):
    """(layout, blob), opened or made."""
    file = await read_gguf(model.source)
    layout = plan(file)
    blob = await store.open_packed(model.key, layout)
    if blob is None:
        blob = await store.create_packed(model.key, layout)
        await pack(file, model.source, layout, blob)
        await blob.commit()
        await model.release_chunks(file.data_offset)
    return layout, blob

async def blob_digest(blob):
    """SHA-256 of the whole blob, read in pieces that do not keep to its segments."""
    whole = hashlib.sha256()
    for at in range(0, blob.total, 700_000):
        whole.update((await blob.read_js(at, min(700_000, blob.total - at))).to_bytes())
    return whole.hexdigest()

async def packed_name(store):
    """The packed blob's file; there is one."""
    return next(name for name in await store.files.names() if name.endswith(".packed"))

async def damage(store):
    """Turns one bit of the packed blob."""
    file = await store.files.open(await packed_name(store), write=True)
    byte = file.read(2_000_000, 1)
    byte[0] = byte[0] ^ 1
    file.write(2_000_000, byte)
    file.close()

seen = []
def progress(stage, loaded, total):
    seen.append((stage, loaded, total))

async def attempt(work):
    """The result, or the error as ``code: message``."""
    try:
        return await work
    except TandemError as error:
        return f"{error.code}: {error.message}"
'''


async def open_store(context: BrowserContext, site: str, bare: bool = False) -> Page:
    """A page whose worker has the helpers above; ``bare`` takes OPFS away."""
    page = await context.new_page()
    await page.goto(f"{site}/store/page.html{'?bare' if bare else ''}")
    await python(page, HELPERS)
    return page


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for something that another thread or process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)


async def python(page: Page, code: str) -> Any:
    """The value of the code's last expression."""
    return await page.evaluate("(code) => python(code)", code)
