"""What the page tests share: the page's marked parts, and a photo."""

from __future__ import annotations

import io

from PIL import Image
from playwright.async_api import FilePayload, Locator, Page


def part(page: Page, mark: str) -> Locator:
    """The part of the page that is marked ``data-tandem=mark``."""
    return page.locator(f"[data-tandem={mark}]")


def photo(name: str = "mug.png", kind: str = "PNG", size: tuple[int, int] = (64, 48)) -> FilePayload:
    """A small picture as a file to choose."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (60, 95, 110)).save(buffer, kind)
    return {"name": name, "mimeType": f"image/{kind.lower()}", "buffer": buffer.getvalue()}


async def calls(page: Page, name: str) -> list[list[object]]:
    """The calls of that name which the page made at the fake door."""
    return [call for call in await page.evaluate("window.calls") if call[0] == name]


async def written(page: Page, timeout: float = 60_000) -> None:
    """Waits until the page is not writing any more."""
    await part(page, "stop").and_(page.locator(":disabled")).wait_for(timeout=timeout)
    await part(page, "write").and_(page.locator(":enabled")).wait_for()
