"""A model's file cut into chunks at immutable addresses, as plain static files, and the manifest that names them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO

CHUNK_BYTES = 8 << 20


def read_chunks(stream: BinaryIO, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The stream in pieces of ``size`` bytes, the last one shorter."""
    while piece := stream.read(size):
        yield piece


def cut(stream: BinaryIO, size: int = CHUNK_BYTES) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each chunk as its manifest entry ``{sha256, bytes, url}`` (url relative to the manifest) and its bytes."""
    for piece in read_chunks(stream, size):
        digest = hashlib.sha256(piece).hexdigest()
        yield {"sha256": digest, "bytes": len(piece), "url": f"{digest}.bin"}, piece
