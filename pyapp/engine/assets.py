"""From a stored model to what the device side runs: its file's table, its packed blob, its shaders' text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..weights.packing import PackLayout

Progress = Callable[[str, int, int | None], None]


@cache
def shader_text(name: str) -> str:
    """The text of ``shaders/<name>``: inside the wheel, or beside the package in a checkout."""
    packaged = files("pyapp") / "shaders" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[2] / "shaders" / name).read_text(encoding="utf-8")


@asynccontextmanager
async def reading_ahead(*models: Any | None) -> AsyncIterator[None]:
    """Meanwhile the packed weights that earlier visits have kept of these stored models (or None) are being read, in
    this order. What was not opened by then is let go of."""
    stored = [model for model in models if model is not None]

    async def begin() -> None:
        for model in stored:
            await model.read_ahead()

    begun = asyncio.ensure_future(begin())  # not waited for: nothing hangs on it
    try:
        yield
    finally:
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
        for model in stored:
            await model.stop_reading_ahead()


async def packed_blob(key: str, layout: PackLayout, fill: Callable[[Any], Awaitable[None]], progress: Progress) -> Any:
    """The blob of ``layout``: the one kept from an earlier visit, else made now by ``fill(sink)`` and kept.

    One that is not finished is deleted: left open, it would keep the next attempt out of the storage.
    """
    from ..weights.store import create_packed, open_packed

    blob = await open_packed(key, layout)
    if blob is None:
        blob = await create_packed(key, layout)
        try:
            await fill(blob)
            await blob.commit()
        except BaseException:
            await blob.discard()
            raise
    progress("prepare", layout.total, layout.total)
    return blob
