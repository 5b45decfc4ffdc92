"""What the first bytes of a picture file say: its format, its size as it will be shown, before anything is decoded.

Formats: PNG (W3C PNG, IHDR), JPEG (ITU-T T.81, SOFn; EXIF 2.3 tag 0x0112 for the rotation), GIF89a, WebP (RFC 9649),
BMP, and the brands of ISO base media files (AVIF, HEIC; their size is left to the browser).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 256 * 1024
"""A JPEG's size comes after its metadata: EXIF with a preview takes up to 64 KiB, colour profiles and XMP more."""

_JPEG_NO_FRAME: Final = frozenset({0xC4, 0xC8, 0xCC})  # tables and reserved, among the SOF markers
_EXIF_ORIENTATION: Final = 0x0112


@dataclass(frozen=True)
class Header:
    """kind: "JPEG", "PNG", "WebP", "GIF", "BMP", "AVIF", "HEIC" or "" (unknown). Sizes in pixels, 0 if not found."""

    kind: str = ""
    width: int = 0
    height: int = 0


def read_header(head: bytes) -> Header:
    """The header of a file that begins with ``head``. Never raises: what cannot be read is left out."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return Header("PNG", _big(head, 16, 4), _big(head, 20, 4)) if head[12:16] == b"IHDR" else Header("PNG")
    if head.startswith(b"\xff\xd8\xff"):
        return _jpeg(head)
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return Header("GIF", _little(head, 6, 2), _little(head, 8, 2))
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _webp(head)
    if head[:2] == b"BM" and len(head) >= 26:
        height = int.from_bytes(head[22:26], "little", signed=True)  # negative: rows from top to bottom
        return Header("BMP", _little(head, 18, 4), abs(height))
    if head[4:8] == b"ftyp":
        return _base_media(head)
    return Header()


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _jpeg(head: bytes) -> Header:
    at, turned = 2, False
    while at + 9 < len(head) and head[at] == 0xFF:
        marker, size = head[at + 1], _big(head, at + 2, 2)
        if marker == 0xFF:  # padding
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _JPEG_NO_FRAME:
            height, width = _big(head, at + 5, 2), _big(head, at + 7, 2)
            return Header("JPEG", height, width) if turned else Header("JPEG", width, height)
        if marker == 0xE1 and head[at + 4 : at + 10] == b"Exif\0\0":
            turned = _exif_orientation(head[at + 10 : at + 2 + size]) >= 5  # 5 to 8 swap width and height
        at += 2 + size
    return Header("JPEG")


def _exif_orientation(tiff: bytes) -> int:
    """Tag 0x0112 of the first directory: 1 to 8, 1 meaning as it is."""
    order = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None:
        return 1
    read = _little if order == "little" else _big
    directory = read(tiff, 4, 4)
    for i in range(min(read(tiff, directory, 2), 512)):
        entry = directory + 2 + 12 * i
        if read(tiff, entry, 2) == _EXIF_ORIENTATION:
            return read(tiff, entry + 8, 2)
    return 1


def _webp(head: bytes) -> Header:
    kind = head[12:16]
    if kind == b"VP8X":
        return Header("WebP", _little(head, 24, 3) + 1, _little(head, 27, 3) + 1)
    if kind == b"VP8L" and head[20:21] == b"\x2f":
        bits = _little(head, 21, 4)
        return Header("WebP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return Header("WebP", _little(head, 26, 2) & 0x3FFF, _little(head, 28, 2) & 0x3FFF)
    return Header("WebP")


def _base_media(head: bytes) -> Header:
    brands = head[8 : min(_big(head, 0, 4), 256)]
    if b"avif" in brands or b"avis" in brands:
        return Header("AVIF")
    if any(brand in brands for brand in (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1")):
        return Header("HEIC")
    return Header()
