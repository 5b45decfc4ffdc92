"""Pictures decoded by the browser in the worker: exact pixels, turned and see-through ones, huge and broken ones."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import Browser

from tests.browser.pyodide_page import PyodidePage
from tests.unit.text_models import golden

FILES = ["browser/decode_cases.py"]
PICTURES = golden("effnet_lite0.json")["pictures"]
RED, GREEN, BLUE, YELLOW = (200, 20, 30), (20, 180, 40), (30, 40, 210), (220, 200, 10)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def python(browser: Browser, site: str) -> AsyncIterator[PyodidePage]:
    async with PyodidePage.opened(browser, site) as page:
        yield page


async def decode(python: PyodidePage, content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = await python.run(
        "browser.decode_cases", "decode", FILES, content=base64.b64encode(content).decode()
    )
    assert found["open"] == 0  # every bitmap was closed
    return found


def saved(picture: Image.Image, format_: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format_, **options)
    return stream.getvalue()


def quarters(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Red and green above, blue and yellow below."""
    small = Image.new("P", (2, 2))
    small.putpalette([value for colour in (RED, GREEN, BLUE, YELLOW) for value in colour])
    small.putdata([0, 1, 2, 3])
    picture = small.resize((width, height), Image.Resampling.NEAREST)
    return picture if mode == "P" else picture.convert("RGB").convert(mode)


def near(colours: list[list[int]], *expected: tuple[int, int, int]) -> bool:
    return bool(np.abs(np.array(colours) - np.array(expected)).max() <= 12)  # JPEG is not exact


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture["picture"])
async def test_a_small_picture_comes_out_bit_for_bit(python: PyodidePage, data: Path, picture: dict[str, Any]) -> None:
    content = (data / "pics" / picture["picture"]).read_bytes()
    found = await decode(python, content)
    pixels = Image.open(io.BytesIO(content)).convert("RGB")
    assert found["size"] == picture["size"] == [found["shape"][1], found["shape"][0]]
    assert found["dtype"] == "uint8"
    assert found["sha256"] == hashlib.sha256(pixels.tobytes()).hexdigest()
    assert found["input_sha256"] == picture["model_input_rgb_sha256"]


async def test_colour_profiles_are_left_alone(python: PyodidePage) -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8))
    content = bytearray(saved(noise, "PNG"))
    gamma = b"\x00\x00\x00\x04gAMA\x00\x01\x86\xa0\x31\xe8\x96\x5f"  # gamma 1.0: a converted picture would be lighter
    content[33:33] = gamma
    found = await decode(python, bytes(content))
    assert found["sha256"] == hashlib.sha256(noise.tobytes()).hexdigest()


@pytest.mark.parametrize("mode", ["L", "P", "1", "I;16"])
async def test_grey_and_palette(python: PyodidePage, mode: str) -> None:
    picture = Image.new("I;16", (9, 7), 0x8080) if mode == "I;16" else quarters(9, 7, mode)
    expected = Image.new("RGB", (9, 7), (128, 128, 128)) if mode == "I;16" else picture.convert("RGB")
    found = await decode(python, saved(picture, "PNG"))
    assert found["sha256"] == hashlib.sha256(expected.tobytes()).hexdigest()


async def test_alpha_is_laid_over_white(python: PyodidePage) -> None:
    picture = Image.new("RGBA", (8, 6))
    picture.putdata([(200, 100, 0, alpha) for alpha in (0, 1, 64, 127, 128, 200, 254, 255)] * 6)
    found = await decode(python, saved(picture, "PNG"))
    expected = [
        [round((c * a + 255 * (255 - a)) / 255) for c in (200, 100, 0)] for a in (0, 1, 64, 127, 128, 200, 254, 255)
    ]
    assert np.abs(np.array(found["first"]) - np.array(expected)).max() <= 1


@pytest.mark.parametrize("size", [(80, 60), (4000, 3000)])
async def test_a_turned_photo(python: PyodidePage, size: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned to the right
    found = await decode(python, saved(quarters(*size), "JPEG", exif=exif, quality=95))
    assert found["size"] == [size[1], size[0]]
    height, width, _ = found["shape"]
    assert (height, width) == (80, 60) if size[0] == 80 else (height == 2048 and 1536 <= width <= 1537)  # rounded up
    assert near(found["corners"], BLUE, RED, YELLOW, GREEN)


async def test_a_photo_of_108_megapixels(python: PyodidePage) -> None:
    found = await decode(python, saved(quarters(12_000, 9_000), "JPEG"))
    assert (found["size"], found["shape"]) == ([12_000, 9_000], [1536, 2048, 3])
    assert near(found["corners"], RED, GREEN, BLUE, YELLOW)


async def test_a_panorama_keeps_its_short_side(python: PyodidePage) -> None:
    found = await decode(python, saved(quarters(10_000, 1_000), "JPEG"))
    assert (found["size"], found["shape"]) == ([10_000, 1_000], [256, 2560, 3])
    found = await decode(python, saved(quarters(30_000, 2), "PNG"))
    assert found["size"] == [30_000, 2]
    assert found["shape"][1] == 8192


@pytest.mark.parametrize(("size", "shape", "steps"), [((30, 20), (20, 30), 1), ((4000, 3000), (1536, 2048), 2)])
async def test_a_format_whose_header_is_not_read(
    python: PyodidePage, size: tuple[int, int], shape: tuple[int, int], steps: int
) -> None:
    found = await decode(python, saved(quarters(*size), "AVIF"))
    assert (found["size"], found["made"]) == (list(size), steps)
    assert found["shape"][1] == shape[1]
    assert shape[0] <= found["shape"][0] <= shape[0] + steps - 1  # the browser rounds the side it is not told up
    assert near(found["corners"], RED, GREEN, BLUE, YELLOW)


@pytest.mark.parametrize("format_", ["WebP", "GIF", "BMP"])
async def test_other_formats(python: PyodidePage, format_: str) -> None:
    found = await decode(python, saved(quarters(64, 48), format_))
    assert (found["size"], found["shape"]) == ([64, 48], [48, 64, 3])
    assert near(found["corners"], RED, GREEN, BLUE, YELLOW)


async def test_one_pixel(python: PyodidePage) -> None:
    found = await decode(python, saved(Image.new("RGB", (1, 1), RED), "PNG"))
    assert (found["size"], found["first"]) == ([1, 1], [list(RED)])


JPEG = saved(quarters(400, 300), "JPEG")
PNG = saved(quarters(400, 300), "PNG")
HUGE = bytearray(PNG)
HUGE[16:24] = (40_000).to_bytes(4, "big") * 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "This file is empty (0 bytes)"),
        (b"hello, I am no picture", "not a picture that the browser can read"),
        (b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", "not a picture"),
        (bytes(100_000), "not a picture"),
        (PNG[:60], "PNG picture is damaged or cut off"),
        (JPEG[:200], "JPEG picture is damaged or cut off"),
        (b"\xff\xd8\xff" + b"x" * 50, "JPEG picture is damaged or cut off"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(400), "cannot read HEIC pictures"),
        (bytes(HUGE), "40,000 x 40,000 pixels: choose one of at most 500 megapixels"),
    ],
    ids=["empty", "text", "svg", "zeros", "cut-png", "cut-jpeg", "no-jpeg", "heic", "huge"],
)
async def test_what_is_no_picture(python: PyodidePage, content: bytes, words: str) -> None:
    found = await decode(python, content)
    assert found["code"] == "bad_image"
    assert words in found["message"]


async def test_what_is_no_blob(python: PyodidePage) -> None:
    found = await python.run("browser.decode_cases", "decode_something_else", FILES)
    assert (found["code"], found["message"]) == ("bad_argument", "The picture must be a Blob or a File.")


async def test_a_picture_that_no_canvas_holds(python: PyodidePage) -> None:
    found = await decode(python, saved(quarters(20_000, 20_000, "P"), "PNG"))
    assert (found["size"], found["shape"]) == ([20_000, 20_000], [2048, 2048, 3])
    assert near(found["corners"], RED, GREEN, BLUE, YELLOW)
