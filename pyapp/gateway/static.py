"""The built site as plain files: types, caching, ranges, compressed twins, security headers."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import parse_qs

import anyio
from starlette.datastructures import Headers
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from .csp import WIDGET, policy

# Our own table: the machine's mime database differs from host to host, and a wrong type stops modules and wasm.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".py": "text/plain; charset=utf-8",
    ".toml": "text/plain; charset=utf-8",
    ".wgsl": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".whl": "application/zip",
    ".zip": "application/zip",
    ".tar": "application/x-tar",
    ".gz": "application/gzip",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".avif": "image/avif",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_TWINS = (("br", ".br"), ("gzip", ".gz"))
# Names that can never mean other bytes: hashes, and wheels with their version. Pyodide's other files have no version in
# their names: kept for ever, they would be mixed with those of the next version.
_IMMUTABLE = re.compile(
    r"models/[^/]+/[0-9a-f]{64}\.bin|pyodide/[^/]+\.whl|(pyodide|wheels)/\w+-[0-9a-f]{16}\.(image|wasm)"
)


class StaticSite:
    """The ASGI application that serves the folder ``root``.

    ``/`` and every address that ends in a slash mean the ``index.html`` there. ``name.br`` or ``name.gz`` beside a file
    is sent in its place where the client takes that encoding, unless it is older or a range was asked for. The folder's
    owner is trusted (links are followed), the addresses are not. ``frame_ancestors`` gives the origins that may show
    the widget page, from the site key in its address (``?site=``), None where there is none.
    """

    def __init__(self, root: Path, frame_ancestors: Callable[[str | None], str] = lambda key: "*") -> None:
        self._root = root.resolve()
        self._frame_ancestors = frame_ancestors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._respond(scope["method"], scope["path"], scope["query_string"], Headers(scope=scope))
        await response(scope, receive, send)

    async def _respond(self, method: str, address: str, query: bytes, headers: Headers) -> Response:
        if method not in ("GET", "HEAD"):
            return _plain("This address takes GET and HEAD only.\n", 405, {"allow": "GET, HEAD"})
        path = _relative(address)
        found = None if path is None else await anyio.to_thread.run_sync(self._find, path, headers)
        if path is None or found is None:
            return _plain("There is nothing at this address.\n", 404)
        file, info, encoding = found
        extra = {
            "cache-control": "public, max-age=31536000, immutable" if _IMMUTABLE.fullmatch(path) else "no-cache",
            "content-security-policy": self._policy(path, query),
            "x-content-type-options": "nosniff",
            "referrer-policy": "strict-origin-when-cross-origin",
        }
        if encoding or _has_twin(file):
            extra["vary"] = "Accept-Encoding"
        if encoding:
            extra["content-encoding"] = encoding
        media_type = _TYPES.get(Path(path).suffix.lower(), "application/octet-stream")
        # Given in ``headers`` as Starlette would add a charset of its own to text types.
        response = FileResponse(file, headers={**extra, "content-type": media_type}, stat_result=info)
        if _is_fresh(headers, response.headers["etag"], info.st_mtime):
            return Response(status_code=304, headers={**extra, "etag": response.headers["etag"]})
        if encoding:
            response.headers["accept-ranges"] = "none"
        return response

    def _policy(self, path: str, query: bytes) -> str:
        if path != WIDGET:
            return policy(path)
        keys = parse_qs(query.decode("latin-1")).get("site", [None])
        # Two keys in one address are nobody's.
        return policy(path, self._frame_ancestors(keys[0] if len(keys) == 1 else None))

    def _find(self, path: str, headers: Headers) -> tuple[Path, os.stat_result, str | None] | None:
        file = self._root / path
        info = _stat_file(file)
        if info is None:
            return None
        if "range" not in headers:
            accepted = headers.get("accept-encoding", "")
            for encoding, suffix in _TWINS:
                twin = file.with_name(file.name + suffix)
                twin_info = _stat_file(twin) if accepts(accepted, encoding) else None
                if twin_info and twin_info.st_mtime >= info.st_mtime:
                    return twin, twin_info, encoding
        return file, info, None


def accepts(accept_encoding: str, encoding: str) -> bool:
    """Whether the header ``Accept-Encoding`` allows ``encoding`` (RFC 9110, section 12.5.3)."""
    star = False
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        quality = parameters.replace(" ", "").removeprefix("q=") or "1"
        try:
            allowed = float(quality) > 0
        except ValueError:
            allowed = False
        if name.strip() == encoding:
            return allowed
        if name.strip() == "*":
            star = allowed
    return star


def _relative(address: str) -> str | None:
    """The file that ``address`` (percent-decoded) means, relative to the root; None for what no file can be."""
    if not address.startswith("/") or "\0" in address or "\\" in address:
        return None
    path = address[1:] + "index.html" if address.endswith("/") else address[1:]
    # Empty, "." and ".." segments could lead outside; names with a leading dot are never part of a site.
    if any(not part or part.startswith(".") for part in path.split("/")):
        return None
    return path


def _stat_file(path: Path) -> os.stat_result | None:
    try:
        info = path.stat()
    except (OSError, ValueError):
        return None
    return info if stat.S_ISREG(info.st_mode) else None


def _has_twin(file: Path) -> bool:
    return any(file.with_name(file.name + suffix).is_file() for _, suffix in _TWINS)


def _is_fresh(headers: Headers, etag: str, modified: float) -> bool:
    """Whether the client's copy is still good (RFC 9110, section 13.2.2: the tag decides where one is given)."""
    if (tags := headers.get("if-none-match")) is not None:
        return tags.strip() == "*" or etag in [tag.strip().removeprefix("W/") for tag in tags.split(",")]
    if (since := headers.get("if-modified-since")) is not None:
        try:
            return int(modified) <= parsedate_to_datetime(since).timestamp()
        except (ValueError, TypeError, OverflowError):
            return False
    return False


def _plain(text: str, status: int, headers: dict[str, str] | None = None) -> PlainTextResponse:
    base = {
        "cache-control": "no-store",
        "content-security-policy": policy(""),
        "x-content-type-options": "nosniff",
    }
    return PlainTextResponse(text, status, {**base, **(headers or {})})
