"""What the tests of the memory map share: a pool as the fake door tells it, and the panel, opened."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from playwright.async_api import Locator, Page, expect

from .page_parts import calls, part

MIB = 2**20
AT = 1_764_439_392_000  # 2025-11-29 18:03:12 UTC
UTC = {"timezone_id": "UTC"}


def memory() -> dict[str, Any]:
    """A pool in the middle of its life: both models, a gap, a streaming slot, a cache filled in part."""
    weights = [
        {"offset": 0, "size": 40 * MIB, "tenant": "language", "label": "embed"},
        {"offset": 40 * MIB, "size": 20 * MIB, "tenant": "language", "label": "layers.0"},
        {"offset": 60 * MIB, "size": 10 * MIB, "tenant": "language", "label": "layers.29", "streamed": True},
        {"offset": 80 * MIB, "size": 20 * MIB, "tenant": "vision", "label": "blocks.0"},
    ]
    workspace = [
        {"offset": 0, "size": 3 * MIB, "tenant": "activations", "label": "activations"},
        {"offset": 3 * MIB, "size": MIB, "tenant": "language", "label": "rope"},
        {"offset": 4 * MIB, "size": 4 * MIB, "tenant": "language", "label": "layers.0.kv", "filled": MIB},
    ]
    return {
        "asked": 128 * MIB,
        "live": 108 * MIB,
        "peak": 120 * MIB,
        "budget": 900 * MIB,
        "slabs": [
            {"size": 100 * MIB, "used": 90 * MIB, "role": "weights", "spans": weights},
            {"size": 8 * MIB, "used": 8 * MIB, "role": "workspace", "spans": workspace},
        ],
        "tenants": {"language": 75 * MIB, "vision": 20 * MIB, "activations": 3 * MIB},
        "objects": {"slab": 2},
        "moved": {"bytes": 60 * MIB, "uploads": 3},
        "moves": [move(0)],
    }


def move(number: int, direction: str = "in", offset: int = 40 * MIB) -> dict[str, Any]:
    return {
        "at": AT + 1000 * number,
        "tenant": "language",
        "label": f"layers.{number}",
        "slab": 0,
        "offset": offset,
        "bytes": 2 * MIB + MIB // 4,
        "direction": direction,
    }


def fake(**plan: Any) -> dict[str, Any]:
    """Arguments for ``open_page``: the fake door with this plan, and the pool of ``memory()`` unless it has another."""
    return {"fake": True, "init": f"window.fake = {json.dumps({'memory': memory(), **plan})}", **UTC}


async def give(page: Page, changed: dict[str, Any]) -> None:
    """From now on the fake door's ``inspect.memory()`` tells this."""
    await page.evaluate("(changed) => { window.fake.memory = changed; }", changed)


async def opened(page: Page) -> Locator:
    """The panel, opened, with its first map drawn."""
    panel = part(page, "memory")
    await panel.locator("summary").first.click()
    await expect(panel.locator("svg.slab").first).to_be_visible()
    return panel


async def looks(page: Page) -> int:
    return len(await calls(page, "memory"))


async def look_twice(page: Page) -> None:
    """Waits until the page has looked once more and has begun another look, so that it has drawn what the first saw."""
    seen = await looks(page)
    async with asyncio.timeout(30):
        while await looks(page) < seen + 2:
            await page.wait_for_timeout(100)
