"""The size of a picture from its first bytes, and what is done with big ones."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pyapp.errors import BadImage
from pyapp.vision.header import HEAD_BYTES, Header, read_header
from pyapp.vision.sizes import MAX_FILE_BYTES, check_file, check_pixels, reduced


def saved(format_: str, size: tuple[int, int], **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (200, 30, 90)).save(stream, format_, **options)
    return stream.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (300, 7), (640, 480), (513, 4097)])
@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"icc_profile": b"x" * 150_000}),
        ("GIF", {}),
        ("BMP", {}),
        ("WebP", {}),
        ("WebP", {"lossless": True}),
        ("WebP", {"exif": Image.Exif().tobytes(), "icc_profile": b"x" * 100}),
    ],
)
def test_sizes(format_: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    assert read_header(saved(format_, size, **options)[:HEAD_BYTES]) == Header(format_, *size)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_jpeg_has_the_size_that_it_is_shown_at(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "maker", orientation
    head = saved("JPEG", (60, 20), exif=exif)
    assert read_header(head) == Header("JPEG", *((20, 60) if orientation >= 5 else (60, 20)))
    swapped = head.replace(b"Exif\0\0II", b"Exif\0\0XX").replace(b"Exif\0\0MM", b"Exif\0\0XX")
    assert read_header(swapped) == Header("JPEG", 60, 20)  # unreadable EXIF turns nothing


def test_a_bitmap_from_top_to_bottom() -> None:
    head = bytearray(saved("BMP", (5, 9)))
    head[22:26] = (-9).to_bytes(4, "little", signed=True)
    assert read_header(bytes(head)) == Header("BMP", 5, 9)


@pytest.mark.parametrize(("brand", "kind"), [(b"avif", "AVIF"), (b"heic", "HEIC"), (b"mif1", "HEIC"), (b"isom", "")])
def test_brands(brand: bytes, kind: str) -> None:
    assert read_header(b"\0\0\0\x14ftyp" + brand + b"\0\0\0\0" + brand) == Header(kind)


@pytest.mark.parametrize("head", [b"", b"GIF", b"not a picture at all", b"<svg>", b"%PDF-1.7", b"\xff\xd8\xff"])
def test_what_is_not_known(head: bytes) -> None:
    assert read_header(head).width == 0


STARTS = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe1", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 ", b"BM", b"\0\0\0\x10ftyp"]


@given(start=st.sampled_from(STARTS), rest=st.binary(max_size=200))
def test_no_bytes_make_it_raise(start: bytes, rest: bytes) -> None:
    header = read_header(start + rest)
    assert header.width >= 0
    assert header.height >= 0


@given(
    size=st.sampled_from([saved("JPEG", (99, 33), exif=Image.Exif()), saved("PNG", (99, 33))]), at=st.integers(0, 400)
)
def test_a_cut_file_has_its_size_or_none(size: bytes, at: int) -> None:
    header = read_header(size[:at])
    assert (header.width, header.height) in ((99, 33), (0, 0)) or at < 24


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1, 1), (1, 1)),
        ((2048, 2048), (2048, 2048)),
        ((2049, 100), (2049, 100)),  # a panorama keeps its short side
        ((12_000, 9_000), (2048, 1536)),
        ((9_000, 12_000), (1536, 2048)),
        ((20_000, 20_000), (2048, 2048)),
        ((10_000, 1_000), (2560, 256)),
        ((100_000, 300), (8192, 25)),
        ((65_535, 1), (8192, 1)),
        ((0, 0), (0, 0)),
    ],
)
def test_reduction(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert reduced(*size) == expected


@given(width=st.integers(1, 70_000), height=st.integers(1, 70_000))
def test_a_reduced_size_is_small_enough_and_final(width: int, height: int) -> None:
    target = reduced(width, height)
    assert max(target) <= 8192
    assert target[0] * target[1] <= 2048 * 2048
    assert reduced(*target) == target


def test_limits() -> None:
    check_file(1)
    check_file(MAX_FILE_BYTES)
    check_pixels(20_000, 20_000)
    with pytest.raises(BadImage, match=r"empty \(0 bytes\)"):
        check_file(0)
    with pytest.raises(BadImage, match="at most 200 MiB"):
        check_file(MAX_FILE_BYTES + 1)
    with pytest.raises(BadImage, match="30,000 x 30,000 pixels: choose one of at most 500 megapixels"):
        check_pixels(30_000, 30_000)
