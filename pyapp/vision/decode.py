"""Decoding a picture in the browser's worker. Only imports anywhere; it works in Pyodide only.

The browser decodes (``createImageBitmap``), and a canvas gives the pixels. Small pictures come out exactly as stored:
no resizing, no colour conversion, no premultiplied alpha. Big ones are reduced by the browser while decoding, since a
canvas of 20,000 x 20,000 silently reads as zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadArgument, BadImage
from .header import HEAD_BYTES, Header, read_header
from .sizes import check_file, check_pixels, reduced


async def decode_image(blob: Any) -> tuple[NDArray[np.uint8], int, int]:
    """The pixels of a picture file, and the size of the picture itself.

    blob: a JavaScript Blob or File. Returns ``(pixels, width, height)``: pixels uint8 [H, W, 3], alpha laid over white,
    turned as EXIF says; width and height those of the whole picture, turned likewise, also where pixels are fewer
    (longer side 2,048 at most, see ``sizes.reduced``). Raises BadImage, BadArgument.
    """
    if not all(hasattr(blob, name) for name in ("size", "slice", "arrayBuffer")):
        raise BadArgument("The picture must be a Blob or a File.")
    check_file(int(blob.size))
    header = read_header(await _head(blob))
    check_pixels(header.width, header.height)
    bitmap = await _bitmap(blob, header, header.width, header.height)
    try:
        width, height = int(bitmap.width), int(bitmap.height)
        shown = width, height
        if reduced(header.width, header.height) != (header.width, header.height):
            # The file's own size; the other way round where the browser turned a picture that we took for upright.
            same_way = (header.width > header.height) == (width > height)
            shown = (header.width, header.height) if same_way else (header.height, header.width)
        check_pixels(*shown)
        if reduced(width, height) != (width, height):  # a format whose size is known only now
            whole, bitmap = bitmap, await _bitmap(bitmap, header, width, height)
            whole.close()
        return _pixels(bitmap), *shown
    finally:
        bitmap.close()


async def _head(blob: Any) -> bytes:
    from pyodide.ffi import JsException

    try:
        buffer = await blob.slice(0, HEAD_BYTES).arrayBuffer()
    except JsException as error:  # the file was moved, changed or its permission taken back after it was picked
        raise BadImage(f"This file cannot be read any more ({error.name}): choose it again.") from None
    return buffer.to_bytes()


async def _bitmap(source: Any, header: Header, width: int, height: int) -> Any:
    """An ImageBitmap of ``source``, a Blob or bitmap of ``width`` x ``height`` (0: unknown), reduced if need be."""
    import js
    from pyodide.ffi import JsException, to_js

    options: dict[str, Any] = {
        "imageOrientation": "from-image",
        "premultiplyAlpha": "none",
        "colorSpaceConversion": "none",
    }
    target = reduced(width, height)
    if target != (width, height):
        # One side only: the other follows from the picture's true aspect, whatever way round it is.
        side = {"resizeWidth": target[0]} if width >= height else {"resizeHeight": target[1]}
        options |= side | {"resizeQuality": "high"}
    try:
        return await js.createImageBitmap(source, to_js(options, dict_converter=js.Object.fromEntries))
    except JsException as error:
        raise _unreadable(header, str(error.name)) from None


def _unreadable(header: Header, reason: str) -> BadImage:
    if header.kind == "HEIC":
        message = "This browser cannot read HEIC pictures: save it as JPEG or PNG and choose that."
    elif header.kind and header.width * header.height > 50_000_000:
        message = (
            f"This browser could not decode this {header.kind} of {header.width:,} x {header.height:,} pixels: it is "
            "damaged or too large for this device; choose a smaller one."
        )
    elif header.kind:
        message = f"This {header.kind} picture is damaged or cut off: choose another one."
    else:
        message = "This file is not a picture that the browser can read: choose a JPEG, PNG, WebP or AVIF picture."
    return BadImage(message, format=header.kind, width=header.width, height=header.height, reason=reason)


def _pixels(bitmap: Any) -> NDArray[np.uint8]:
    """The pixels of an ImageBitmap over white, uint8 [H, W, 3]."""
    import js
    from pyodide.ffi import JsException, to_js

    width, height = int(bitmap.width), int(bitmap.height)
    try:
        canvas = js.OffscreenCanvas.new(width, height)
        # In the worker's own memory: a canvas on the GPU would be read back through it, and its loss would empty it.
        options = to_js({"willReadFrequently": True}, dict_converter=js.Object.fromEntries)
        context = canvas.getContext("2d", options)
        context.fillStyle = "#fff"
        context.fillRect(0, 0, width, height)
        context.drawImage(bitmap, 0, 0)
        data = context.getImageData(0, 0, width, height).data.to_bytes()
    except JsException as error:
        raise BadImage(
            f"This browser could not read the pixels of this picture ({error.name}): choose a smaller one.",
            width=width,
            height=height,
        ) from None
    rgba = np.frombuffer(data, np.uint8).reshape(height, width, 4)
    if not (rgba[:, :, 3] == 255).all():  # white was laid first: anything else was not drawn at all
        raise BadImage(
            f"This browser has no canvas for {width:,} x {height:,} pixels: choose a smaller picture.",
            width=width,
            height=height,
        )
    return np.ascontiguousarray(rgba[:, :, :3])
