"""Resampling and cropping, against Pillow and the golden inputs of EfficientNet-Lite0."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pyapp.errors import BadImage
from pyapp.vision.pixels import Pixels, resize_bicubic, to_model_input, to_rgb
from tests.unit.text_models import golden

PICTURES = golden("effnet_lite0.json")["pictures"]


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)


def pillow(rgb: Pixels, height: int, width: int) -> Pixels:
    """Across, then down: one call for each, as Pillow 13 chooses the order by the shape."""
    picture = Image.fromarray(rgb).resize((width, rgb.shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture["picture"])
def test_golden_inputs_bit_for_bit(data: Path, picture: dict[str, str]) -> None:
    source = np.asarray(Image.open(data / "pics" / picture["picture"]).convert("RGB"))
    expected = np.asarray(Image.open(data / "pics" / picture["model_input"]).convert("RGB"))
    got = to_model_input(source)
    assert got.dtype == np.uint8
    assert hashlib.sha256(got.tobytes()).hexdigest() == picture["model_input_rgb_sha256"]
    assert np.array_equal(got, expected)


@settings(max_examples=300, deadline=None)
@given(*[st.integers(1, 70)] * 4, st.integers(0, 2**31))
def test_any_size_to_any_size_bit_for_bit(h: int, w: int, height: int, width: int, seed: int) -> None:
    rgb = np.random.default_rng(seed).integers(0, 256, (h, w, 3), np.uint8)
    assert np.array_equal(resize_bicubic(rgb, height, width), pillow(rgb, height, width))


@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 5), (224, 224), (256, 256), (255, 257), (300, 900), (1000, 300), (2, 90)]
)
def test_the_crop_is_the_middle_of_the_resized_picture(shape: tuple[int, int]) -> None:
    rgb = noise(*shape, 3)
    height, width = (round(side * 256 / min(shape)) for side in shape)
    top, left = (height - 224) // 2, (width - 224) // 2
    whole = pillow(rgb, height, width)
    assert np.array_equal(to_model_input(rgb), whole[top : top + 224, left : left + 224])


@pytest.mark.parametrize("shape", [(1, 200_000), (200_000, 1), (3, 50_000)])
def test_extreme_aspects_cost_what_the_crop_costs(shape: tuple[int, int]) -> None:
    colour = np.full((*shape, 3), (10, 200, 30), np.uint8)
    assert np.array_equal(to_model_input(colour), np.full((224, 224, 3), (10, 200, 30), np.uint8))


def test_grey_and_alpha() -> None:
    grey = noise(30, 40)
    rgb = np.stack([grey] * 3, axis=2)
    assert np.array_equal(to_rgb(grey), rgb)
    assert np.array_equal(to_rgb(grey[:, :, None]), rgb)
    assert np.array_equal(to_model_input(grey), to_model_input(rgb))
    rgba = noise(30, 40, 4)
    white = Image.new("RGBA", (40, 30), (255, 255, 255, 255))
    expected = np.asarray(Image.alpha_composite(white, Image.fromarray(rgba)).convert("RGB"))
    assert np.abs(to_rgb(rgba).astype(int) - expected).max() <= 1  # Pillow rounds its blend otherwise
    clear = np.concatenate([rgb, np.zeros((30, 40, 1), np.uint8)], axis=2)
    assert (to_rgb(clear) == 255).all()
    opaque = np.concatenate([rgb, np.full((30, 40, 1), 255, np.uint8)], axis=2)
    assert np.array_equal(to_rgb(opaque), rgb)
    assert np.array_equal(to_rgb(np.stack([grey, grey * 0 + 255], axis=2)), rgb)


@pytest.mark.parametrize(
    "pixels", [np.zeros((0, 5, 3), np.uint8), np.zeros((5, 5, 5), np.uint8), np.zeros((5, 5, 3)), np.zeros(5, np.uint8)]
)
def test_what_is_no_picture(pixels: np.ndarray) -> None:
    with pytest.raises(BadImage, match="are no picture"):
        to_rgb(pixels)
