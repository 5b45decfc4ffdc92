"""How large a picture may be, and to what size the browser reduces it while decoding."""

from __future__ import annotations

from typing import Final

from ..errors import BadImage

MAX_FILE_BYTES: Final = 200 * 1024 * 1024
MAX_PIXELS: Final = 500_000_000
"""Decoded, four bytes each; Chromium's own limit is 2**29 pixels (2 GiB)."""
LONGER_SIDE: Final = 2048
_SHORTER_SIDE: Final = 256  # what the classifier looks at; a panorama is not reduced below that while there is room
_LONGEST_SIDE: Final = 8192  # canvases of this side work everywhere


def check_file(size: int) -> None:
    """Raises BadImage for a file of ``size`` bytes that is empty or not to be read at all."""
    if size <= 0:
        raise BadImage("This file is empty (0 bytes): choose a JPEG, PNG, WebP or AVIF picture.", bytes=0)
    if size > MAX_FILE_BYTES:
        raise BadImage(
            f"This file has {size / 2**20:,.0f} MiB: choose a picture of at most {MAX_FILE_BYTES >> 20} MiB.",
            bytes=size,
        )


def check_pixels(width: int, height: int) -> None:
    """Raises BadImage for a picture with more pixels than a browser decodes."""
    if width * height > MAX_PIXELS:
        raise BadImage(
            f"This picture has {width:,} x {height:,} pixels: choose one of at most {MAX_PIXELS // 10**6} megapixels.",
            width=width,
            height=height,
        )


def reduced(width: int, height: int) -> tuple[int, int]:
    """The size to decode to: the same, up to 2,048 pixels a side; else with the longer side at 2,048.

    A very long picture keeps its shorter side at 256 as far as its longer side stays within 8,192.
    """
    longer, shorter = max(width, height), min(width, height)
    if longer <= LONGER_SIDE:
        return width, height
    scale = max(LONGER_SIDE / longer, min(1.0, _SHORTER_SIDE / shorter))
    scale = min(scale, _LONGEST_SIDE / longer)
    return max(1, round(width * scale)), max(1, round(height * scale))
