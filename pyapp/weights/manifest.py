"""A model's manifest: which chunks make up its file, where they are and what they must hash to."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from ..errors import BadWeights

MAX_CHUNK_BYTES = 64 << 20
MAX_CHUNKS = 1 << 14
URL_CHUNK_BYTES = 8 << 20
"""How a file without a manifest is cut."""
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Manifest:
    """A checked manifest.

    Attributes:
        fields: as the server sent it.
        urls: of the chunks, absolute or relative to the page as the manifest's own address is.
        hashes: SHA-256 of the chunks, hexadecimal.
    """

    url: str
    fields: dict[str, Any]
    name: str
    size: int
    chunk_bytes: int
    urls: tuple[str, ...]
    hashes: tuple[str, ...]

    @property
    def key(self) -> str:
        """Names the content: two manifests of the same file share what is stored."""
        return str(self.fields["sha256"])[:32]


def parse_manifest(fields: Any, url: str) -> Manifest:
    """Checks what came from ``url``. Raises BadWeights naming the field that is wrong."""
    if not isinstance(fields, dict):
        raise _wrong(url, "it is no object")
    name, size, chunk_bytes, chunks = (fields.get(key) for key in ("name", "bytes", "chunk_bytes", "chunks"))
    if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]{1,100}", name):
        raise _wrong(url, "its name is missing")
    if fields.get("format") not in ("gguf", "safetensors"):
        raise _wrong(url, f"its format {fields.get('format')!r:.40} is neither gguf nor safetensors")
    if not _is_sha256(fields.get("sha256")):
        raise _wrong(url, "its sha256 is missing")
    if type(chunk_bytes) is not int or not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
        raise _wrong(url, f"its chunk_bytes is not between 1 and {MAX_CHUNK_BYTES}")
    if type(size) is not int or not isinstance(chunks, list) or not 0 < len(chunks) <= MAX_CHUNKS:
        raise _wrong(url, "its bytes or its chunks are missing")
    if not all(isinstance(chunk, dict) for chunk in chunks):
        raise _wrong(url, "its chunks are no objects")
    sizes = [chunk_bytes] * (len(chunks) - 1) + [size - chunk_bytes * (len(chunks) - 1)]
    if not 0 < sizes[-1] <= chunk_bytes or [chunk.get("bytes") for chunk in chunks] != sizes:
        raise _wrong(url, f"its chunks do not make up {size} bytes")
    if not all(_is_sha256(chunk.get("sha256")) for chunk in chunks):
        raise _wrong(url, "a chunk has no sha256")
    urls = [join_url(url, chunk.get("url")) for chunk in chunks]
    hashes = tuple(chunk["sha256"] for chunk in chunks)
    return Manifest(url, fields, name, size, chunk_bytes, tuple(urls), hashes)


def url_key(url: str) -> str:
    """Names what is stored for an address."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def name_of_url(url: str) -> str:
    """A model's name after its file: ``https://host/a/Some-Model.Q4_1.gguf?download=1`` is ``Some-Model.Q4_1``."""
    last = urlsplit(url).path.rsplit("/", 1)[-1]
    return re.sub(r"\.gguf\Z", "", last, flags=re.IGNORECASE)[:100] or "model"


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.match(value) is not None


def join_url(base: str, url: Any) -> str:
    """The address that a manifest at ``base`` means by ``url``. Raises BadWeights for anything but http and https."""
    if not isinstance(url, str) or not url:
        raise _wrong(base, "a chunk has no url")
    try:
        joined = urljoin(base, url)
        scheme = urlsplit(joined).scheme
    except ValueError:
        raise _wrong(base, f"it points at {url!r:.80}") from None
    if scheme not in ("", "http", "https"):
        raise _wrong(base, f"it points at {url!r:.80}")
    return joined


def _wrong(url: str, why: str) -> BadWeights:
    return BadWeights(
        f"The manifest {url!s:.200} cannot be used: {why}. Build the site's models again.", reason="manifest"
    )
