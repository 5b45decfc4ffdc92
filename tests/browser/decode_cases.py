"""Runs in Pyodide, in a worker of the page: what decode_image makes of a file, in figures that fit into JSON."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any

import js
from pyodide.ffi import create_proxy, to_js

from pyapp.errors import TandemError
from pyapp.vision.decode import decode_image
from pyapp.vision.pixels import to_model_input


def _digest(pixels: Any) -> str:
    return hashlib.sha256(pixels.tobytes()).hexdigest()


class _Bitmaps:
    """Keeps the bitmaps that are made while it is entered."""

    def __enter__(self) -> _Bitmaps:
        self.made: list[Any] = []
        self._make = js.createImageBitmap
        js.createImageBitmap = self._proxy = create_proxy(self._counted)
        return self

    def __exit__(self, *_: object) -> None:
        js.createImageBitmap = self._make
        self._proxy.destroy()

    async def _counted(self, *args: Any) -> Any:
        bitmap = await self._make(*args)
        self.made.append(bitmap)
        return bitmap

    @property
    def open(self) -> int:
        """How many are not closed; a closed one has no size."""
        return sum(bitmap.width != 0 for bitmap in self.made)


async def decode(content: str) -> dict[str, Any]:
    """``content``: a file in base64."""
    blob = js.Blob.new(to_js([to_js(base64.b64decode(content))]))
    start = time.monotonic()
    with _Bitmaps() as bitmaps:
        try:
            pixels, width, height = await decode_image(blob)
        except TandemError as error:
            return {**error.as_dict(), "open": bitmaps.open}
    seconds = time.monotonic() - start
    return {
        "size": [width, height],
        "shape": list(pixels.shape),
        "dtype": str(pixels.dtype),
        "sha256": _digest(pixels),
        "input_sha256": _digest(to_model_input(pixels)),
        "corners": [pixels[y, x].tolist() for y in (2, -3) for x in (2, -3)] if min(pixels.shape[:2]) > 5 else [],
        "first": pixels[0, :8].tolist(),
        "made": len(bitmaps.made),
        "open": bitmaps.open,
        "seconds": round(seconds, 3),
    }


async def decode_something_else() -> dict[str, Any]:
    try:
        await decode_image("data:image/png,")
    except TandemError as error:
        return error.as_dict()
    return {}
