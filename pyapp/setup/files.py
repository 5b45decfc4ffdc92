"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

COMPRESSED_TYPES = {".wasm", ".mjs", ".js", ".css", ".json", ".html", ".zip", ".whl", ".image"}
COMPRESS_FROM = 100_000  # bytes; below, the gateway's own compression or none is as good
COMPRESS_GAIN = 0.9  # kept only if it is smaller than this share of the file: wheels and zips are compressed already


def write_file(path: Path, data: bytes) -> Path:
    """Writes ``data`` to ``path`` by a rename, unless these bytes are there already; makes the folder; returns path."""
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(data)
    partial.replace(path)
    return path


def compressed(path: str, data: bytes) -> bytes | None:
    """The gzip twin that the gateway sends to browsers, or None where it does not pay. The same bytes every time."""
    if Path(path).suffix not in COMPRESSED_TYPES or len(data) < COMPRESS_FROM:
        return None
    packed = gzip.compress(data, 9, mtime=0)
    return packed if len(packed) < COMPRESS_GAIN * len(data) else None
