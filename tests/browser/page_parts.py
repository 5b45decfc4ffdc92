"""What the page tests share: the fake door, the page's marked parts, and a photo."""

from __future__ import annotations

import io
import json
from typing import Any

from PIL import Image
from playwright.async_api import FilePayload, Locator, Page, expect


def part(page: Page, mark: str) -> Locator:
    """The part of the page that is marked ``data-tandem=mark``."""
    return page.locator(f"[data-tandem={mark}]")


def photo(name: str = "mug.png", kind: str = "PNG", size: tuple[int, int] = (64, 48)) -> FilePayload:
    """A small picture as a file to choose."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (60, 95, 110)).save(buffer, kind)
    return {"name": name, "mimeType": f"image/{kind.lower()}", "buffer": buffer.getvalue()}


def fake(**plan: Any) -> dict[str, Any]:
    """Arguments for ``open_page``: the fake door with this plan."""
    return {"fake": True, "init": f"window.fake = {json.dumps(plan)}"}


async def describe(page: Page) -> None:
    await part(page, "photo").set_input_files(photo())
    await expect(part(page, "labels").locator("li")).to_have_count(5)


async def calls(page: Page, name: str) -> list[list[object]]:
    """The calls of that name which the page made at the fake door."""
    return [call for call in await page.evaluate("window.calls") if call[0] == name]


async def written(page: Page, timeout: float = 60_000) -> None:
    """Waits until the page is not writing any more."""
    await part(page, "stop").and_(page.locator(":disabled")).wait_for(timeout=timeout)
    await part(page, "write").and_(page.locator(":enabled")).wait_for()
