"""A picture's pixels → what a classifier wants, in NumPy, bit for bit as Pillow does it.

Resampling after Pillow's ``src/libImaging/Resample.c``: a separable filter, widened by the scale when it shrinks
(antialiasing), across first and then down, with weights as 22-bit fixed-point numbers and 8-bit pixels in between.
(Pillow 13 goes down first for some shapes, mostly ones squeezed far more in height than in width; what the rounding in
between does then differs. A test compares with Pillow called once for each direction.)
Preprocessing of EfficientNet-Lite0: shorter side to 256, centre crop of 224 x 224 (tests/data/effnet_lite0.json).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadImage

Pixels = NDArray[np.uint8]

CROP: Final = 224
SHORTER_SIDE: Final = 256
_FIXED: Final = 1 << 22  # Pillow's PRECISION_BITS = 32 - 8 - 2
_SUPPORT: Final = 2.0  # the bicubic kernel reaches two pixels to each side


def to_rgb(pixels: NDArray[np.generic]) -> Pixels:
    """``[H, W]`` grey, ``[H, W, 1]`` grey, ``[H, W, 2]`` grey + alpha, ``[H, W, 3]`` RGB or ``[H, W, 4]`` RGBA, uint8
    → ``[H, W, 3]`` uint8. Alpha is laid over white. Raises BadImage for another shape or type.
    """
    array = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 2, 3, 4) or 0 in array.shape:
        raise BadImage(
            f"Pixels of shape {list(pixels.shape)} and type {pixels.dtype} are no picture: "
            "give uint8 of [height, width, 3].",
            shape=list(pixels.shape),
            dtype=str(pixels.dtype),
        )
    picture: Pixels = array  # type: ignore[assignment]  # uint8, as was just checked
    if picture.shape[2] in (2, 4):
        alpha = picture[:, :, -1:].astype(np.uint32)
        blend = picture[:, :, :-1].astype(np.uint32) * alpha + 255 * (255 - alpha)
        picture = ((blend + 127) // 255).astype(np.uint8)
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture


def to_model_input(pixels: NDArray[np.generic]) -> Pixels:
    """The model's input before normalisation, ``[224, 224, 3]`` uint8: shorter side to 256, centre crop of 224.

    pixels: as for ``to_rgb``. Only the pixels inside the crop are computed, so a picture of any aspect is cheap.
    """
    rgb = to_rgb(pixels)
    height, width = rgb.shape[:2]
    shorter = min(height, width)
    new_height, new_width = (round(side * SHORTER_SIDE / shorter) for side in (height, width))
    top, left = (new_height - CROP) // 2, (new_width - CROP) // 2
    return _resample(rgb, new_height, new_width, range(top, top + CROP), range(left, left + CROP))


def resize_bicubic(rgb: Pixels, height: int, width: int) -> Pixels:
    """``rgb`` ([H, W, channels] uint8) at ``[height, width, channels]``, as Pillow's ``resize(..., BICUBIC)``."""
    return _resample(rgb, height, width, range(height), range(width))


def _resample(rgb: Pixels, height: int, width: int, rows: range, columns: range) -> Pixels:
    """Rows and columns ``rows`` x ``columns`` of ``rgb`` resized to ``height`` x ``width``."""
    across = _weights(rgb.shape[1], width, columns)
    down = _weights(rgb.shape[0], height, rows)
    first = min(start for start, _ in down)
    last = max(start + len(weights) for start, weights in down)
    used = rgb[first:last]
    # Columns to the front, so that the pixels of one column lie together; then rows again.
    same_width = width == rgb.shape[1] and len(columns) == width
    narrow = used if same_width else _pass(used.swapaxes(0, 1), across).swapaxes(0, 1)
    if height == rgb.shape[0] and len(rows) == height:
        return np.ascontiguousarray(narrow)
    return _pass(narrow, [(start - first, weights) for start, weights in down])


def _pass(lines: Pixels, weights: list[tuple[int, NDArray[np.float64]]]) -> Pixels:
    """Weighted sums of neighbouring lines: ``[lines, …]`` → ``[len(weights), …]``, rounded to 8 bits.

    In float64, which holds the sums exactly: below 2**8 * 2**22 * 2.
    """
    flat = np.ascontiguousarray(lines).reshape(lines.shape[0], -1)
    result = np.empty((len(weights), flat.shape[1]), np.uint8)
    for i, (start, factors) in enumerate(weights):
        total = factors @ flat[start : start + len(factors)].astype(np.float64)
        result[i] = np.clip(np.floor((total + _FIXED // 2) / _FIXED), 0, 255)
    return result.reshape(len(weights), *lines.shape[1:])


def _weights(old: int, new: int, wanted: range) -> list[tuple[int, NDArray[np.float64]]]:
    """For each of the ``wanted`` places among ``new``: the first of the ``old`` pixels that count, and their weights.

    The weights are whole numbers of 1/2**22. (``precompute_coeffs`` and ``normalize_coeffs_8bpc`` in Resample.c.)
    """
    scale = old / new
    widening = max(scale, 1.0)
    support = _SUPPORT * widening
    result = []
    for place in wanted:
        centre = (place + 0.5) * scale
        start = max(int(centre - support + 0.5), 0)
        end = min(int(centre + support + 0.5), old)
        weights = _bicubic((np.arange(start, end, dtype=np.float64) - centre + 0.5) * (1.0 / widening))
        # One by one, as Pillow sums them: NumPy's pairwise sum differs in the last bit, and that moves a rounding.
        weights = weights * (1.0 / sum(weights.tolist()))
        result.append((start, np.trunc(weights * _FIXED + np.copysign(0.5, weights))))
    return result


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic convolution kernel with a = -0.5, as Pillow has it."""
    a = -0.5
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
