"""``build.py bench``: opens the site's bench page in a headless browser and prints what it measures.

The page POSTs each row, a JSON object, to ``/log`` and ends with ``{"done": 1}``. One row has ``adapter`` (and
``software``: true for an emulated one): it makes the title, so that nobody takes an emulator's figures for a GPU's.
"""

from __future__ import annotations

import argparse
import json
import queue
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import ConsoleMessage, Page, sync_playwright
from playwright.sync_api import Error as BrowserError

from . import gateway_bench, kernels_report
from .browser import ensure_chromium, flags
from .failure import SetupError
from .gantt import gantt
from .serve import make_app, serving
from .sharing_report import report
from .site import build_site

Row = dict[str, Any]
Message = MutableMapping[str, Any]
MOST_BYTES = 1 << 20  # of one row


class RowLog:
    """An ASGI app that answers ``POST /log``, puts the rows into a queue, and hands everything else on."""

    def __init__(self, inner: Callable[..., Awaitable[None]]) -> None:
        self._inner = inner
        self.rows: queue.Queue[Row] = queue.Queue()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != "/log":
            await self._inner(scope, receive, send)
            return
        body, more = b"", True
        while more and len(body) <= MOST_BYTES:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        try:
            row = json.loads(body)
            status = 204 if isinstance(row, dict) else 400
        except ValueError:
            status = 400
        if status == 204:
            self.rows.put(row)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def title(rows: list[Row]) -> str:
    """What ran: the adapter's name, and loudly whether it is a software one."""
    about: Row = next((row for row in rows if "adapter" in row), {})
    adapter = about.get("adapter") or "adapter not named"
    if isinstance(adapter, dict):
        adapter = " ".join(str(value) for value in adapter.values() if value)
    if about.get("software"):
        return f"SOFTWARE ADAPTER ({adapter}): right for correctness, no measure of speed"
    return f"Adapter: {adapter}"


def is_software(rows: list[Row]) -> bool:
    """Whether an emulated GPU ran, or nobody says what did."""
    return bool(next((row for row in rows if "adapter" in row), {"software": True}).get("software"))


def table(rows: list[Row]) -> str:
    """The rows as text: a line a figure, under the row's ``bench`` or ``name`` where it has one."""
    lines = [title(rows)]
    for row in rows:
        label = str(row.get("bench") or row.get("name") or "")
        cells = {key: value for key, value in row.items() if key not in ("bench", "name", "done")}
        for key, value in cells.items():
            lines.append(f"  {label:24} {key:28} {cell(value)}")
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A figure or a word for the table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def say_error(message: ConsoleMessage) -> None:
    """Shows what the page writes to the console as an error."""
    if message.type == "error":
        print(f"  console: {message.text}", flush=True)


def collect(page: Page, log: RowLog, timeout: float) -> list[Row]:
    """Rows until the page says done. Raises SetupError when it does not within ``timeout`` seconds."""
    rows: list[Row] = []
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            row = log.rows.get_nowait()
        except queue.Empty:
            page.wait_for_timeout(100)  # also lets Playwright hand over the page's own messages
            continue
        print(f"  {json.dumps(row)}", flush=True)
        if row.keys() - {"done"}:
            rows.append(row)
        if "done" in row:
            return rows
    raise SetupError(f"The bench page sent {len(rows)} rows and no end within {timeout:.0f} s.")


def measure(options: argparse.Namespace, root: Path) -> list[Row]:
    """Opens the bench page and returns what it posts. Raises SetupError."""
    chromium = ensure_chromium()
    site = build_site(root)
    if not (site.dist / "bench.html").is_file():
        raise SetupError("The site has no bench.html to open.")
    log = RowLog(make_app(site.dist))
    query = {"adapter": options.adapter, "which": ",".join(options.which), **dict(options.option)}
    with serving(log) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=flags(options.adapter))
        try:
            page = browser.new_page()
            page.on("pageerror", lambda error: print(f"  page error: {error}", flush=True))
            page.on("console", say_error)
            page.goto(f"{url}/bench.html?{urlencode({k: v for k, v in query.items() if v})}")
            return collect(page, log, options.timeout)
        except BrowserError as error:
            raise SetupError(f"The browser could not run the bench page: {error.message.splitlines()[0]}") from error
        finally:
            browser.close()


def read_rows(file: Path) -> list[Row]:
    """The rows of an earlier run, JSON, one a line. Raises SetupError."""
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, ValueError) as error:
        raise SetupError(f"{file} cannot be read as rows of JSON, one a line ({error}).") from error
    if not all(isinstance(row, dict) for row in rows):
        raise SetupError(f"{file} has a line that is no row: each must be a JSON object, as the bench page posts it.")
    return [row for row in rows if row.keys() - {"done"}]


def run(options: argparse.Namespace, root: Path) -> int:
    """``build.py bench``. Exit status 1 when a row tells of an error or of a failure to share. Models that are held for
    good may be refused, that is what the bench is about; those that share may not."""
    if "gateway" in options.which:  # needs no browser
        return gateway_bench.run(options, root)
    rows = read_rows(options.rows) if options.rows else measure(options, root)
    shared = [row for row in rows if row.get("bench") == "sharing"]
    kernels = [row for row in rows if row.get("bench") == "kernels"]
    timeline = [row for row in rows if row.get("bench") == "timeline"]
    print(table([row for row in rows if row.get("bench") not in ("sharing", "kernels", "timeline")]))
    if timeline:
        print(f"\nThe start, ms from navigation:\n{gantt(timeline)}")
    if shared:
        report(title(rows), rows, root / "docs", keep=not is_software(rows))
    if kernels:
        kernels_report.report(title(rows), rows, root / "docs", keep=not is_software(rows))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"title": title(rows), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    unshared = any("refused" in row and row.get("setup") != "held" for row in shared)
    return 1 if unshared or any("error" in row or row.get("failures") for row in rows) else 0
