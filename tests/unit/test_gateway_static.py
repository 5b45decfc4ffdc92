"""The static site: types, caching, ranges, compressed twins, security headers, and addresses that try to get out."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from pyapp.gateway.app import create_app
from pyapp.gateway.settings import Settings
from pyapp.gateway.static import accepts
from tests.unit.gateway_fakes import serve_app

CHUNK = "models/tiny/" + "a" * 64 + ".bin"
FILES = {
    "index.html": b"<!doctype html>home",
    "lab.html": b"lab",
    "widget.html": b"widget",
    "worker.js": b"export {}",
    "replay.mjs": b"export {}",
    "style.css": b"a{}",
    "models/index.json": b"{}",
    "models/tiny/manifest.json": b"{}",
    CHUNK: bytes(range(256)) * 40,
    "model.gguf": b"GGUF" + bytes(1000),
    "pyodide/pyodide.asm.wasm": b"\0asm" * 1000,
    "pyodide/numpy-2-wasm32.whl": b"PK",
    "pyscript/core.js": b"core",
    "wheels/tandem-1-py3-none-any.whl": b"PK",
    "sub/index.html": b"sub",
    "name with spaces é.txt": b"named",
    ".secret": b"secret",
}
SITE_POLICY = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; connect-src 'self'; "
    "img-src 'self' blob: data:; style-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self'"
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "dist"
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (tmp_path / "outside.txt").write_bytes(b"outside")
    return root


@pytest.fixture
async def client(site: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(site, Settings(embedded="off"))
    headers = {"accept-encoding": "identity"}
    async with serve_app(app) as url, httpx.AsyncClient(base_url=url, headers=headers) as client:
        yield client


@pytest.mark.parametrize(
    ("address", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/index.html?lang=zh", "text/html; charset=utf-8"),
        ("/sub/", "text/html; charset=utf-8"),
        ("/worker.js", "text/javascript; charset=utf-8"),
        ("/replay.mjs", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/models/index.json", "application/json"),
        (f"/{CHUNK}", "application/octet-stream"),
        ("/model.gguf", "application/octet-stream"),
        ("/pyodide/pyodide.asm.wasm", "application/wasm"),
        ("/wheels/tandem-1-py3-none-any.whl", "application/zip"),
        ("/name%20with%20spaces%20%C3%A9.txt", "text/plain; charset=utf-8"),
    ],
)
async def test_files_and_their_types(client: httpx.AsyncClient, address: str, media_type: str) -> None:
    response = await client.get(address)
    assert response.status_code == 200
    assert response.headers["content-type"] == media_type
    assert response.headers["x-content-type-options"] == "nosniff"
    name = {"/": "index.html", "/sub/": "sub/index.html"}.get(address, str(httpx.URL(address).path).lstrip("/"))
    assert response.content == FILES[name]
    head = await client.head(address)
    assert (head.status_code, head.content) == (200, b"")
    # Date is the one header that may differ between the two.
    assert {**head.headers, "date": ""} == {**response.headers, "date": ""}


@pytest.mark.parametrize(
    ("address", "immutable"),
    [
        (f"/{CHUNK}", True),
        ("/pyodide/numpy-2-wasm32.whl", True),
        ("/pyodide/pyodide.asm.wasm", False),
        ("/wheels/tandem-1-py3-none-any.whl", False),
        ("/", False),
        ("/worker.js", False),
        ("/models/tiny/manifest.json", False),
        ("/model.gguf", False),
        ("/pyscript/core.js", False),
    ],
)
async def test_caching(client: httpx.AsyncClient, address: str, immutable: bool) -> None:
    expected = "public, max-age=31536000, immutable" if immutable else "no-cache"
    assert (await client.get(address)).headers["cache-control"] == expected


async def test_a_fresh_copy_is_a_304_and_a_changed_file_is_sent_again(client: httpx.AsyncClient, site: Path) -> None:
    first = await client.get("/worker.js")
    for condition in (
        {"if-none-match": first.headers["etag"]},
        {"if-none-match": f'"other", W/{first.headers["etag"]}'},
        {"if-none-match": "*"},
        {"if-modified-since": first.headers["last-modified"]},
    ):
        again = await client.get("/worker.js", headers=condition)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["cache-control"] == "no-cache"
    (site / "worker.js").write_bytes(b"export { changed }")
    for condition in (
        {"if-none-match": first.headers["etag"]},
        {"if-none-match": first.headers["etag"], "if-modified-since": "Fri, 01 Jan 2100 00:00:00 GMT"},
        {"if-modified-since": "nonsense"},
        {"if-modified-since": "Thu, 01 Jan 1970 00:00:00 GMT"},
    ):
        assert (await client.get("/worker.js", headers=condition)).content == b"export { changed }"


async def test_policies(client: httpx.AsyncClient) -> None:
    for address in ("/", "/worker.js", "/models/index.json", "/nothing-here"):
        assert (await client.get(address)).headers["content-security-policy"] == SITE_POLICY
    widget = (await client.get("/widget.html")).headers["content-security-policy"]
    assert widget == SITE_POLICY.replace("frame-ancestors 'self'", "frame-ancestors *")
    for address in ("/lab.html", "/pyscript/core.js"):
        lab = (await client.get(address)).headers["content-security-policy"]
        assert "script-src 'self' 'unsafe-eval'" in lab
        assert "frame-ancestors 'self'" in lab
    for name in FILES:
        headers = (await client.get(f"/{name}")).headers
        assert "cross-origin-opener-policy" not in headers
        assert "cross-origin-embedder-policy" not in headers


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [("bytes=0-3", 0, 4), ("bytes=100-", 100, 10240), ("bytes=-5", 10235, 10240), ("bytes=10200-99999", 10200, 10240)],
)
async def test_ranges(client: httpx.AsyncClient, asked: str, start: int, end: int) -> None:
    response = await client.get(f"/{CHUNK}", headers={"range": asked})
    assert response.status_code == 206
    assert response.headers["content-range"] == f"bytes {start}-{end - 1}/10240"
    assert response.content == FILES[CHUNK][start:end]


async def test_ranges_that_do_not_fit(client: httpx.AsyncClient) -> None:
    response = await client.get(f"/{CHUNK}", headers={"range": "bytes=20000-"})
    assert response.status_code == 416
    assert response.headers["content-range"] == "bytes */10240"
    changed = await client.get(f"/{CHUNK}", headers={"range": "bytes=0-3", "if-range": '"another version"'})
    assert (changed.status_code, len(changed.content)) == (200, 10240)


async def test_a_compressed_twin_is_sent_to_those_who_take_it(client: httpx.AsyncClient, site: Path) -> None:
    name = "pyodide/pyodide.asm.wasm"
    file, twin = site / name, site / f"{name}.gz"
    twin.write_bytes(gzip.compress(FILES[name]))
    os.utime(twin, (file.stat().st_atime, file.stat().st_mtime))  # as old as the file: not older

    packed = await client.get(f"/{name}", headers={"accept-encoding": "br;q=0.5, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["content-type"] == "application/wasm"
    assert packed.headers["content-length"] == str(twin.stat().st_size)
    assert packed.headers["vary"] == "Accept-Encoding"
    assert packed.content == FILES[name]

    plain = await client.get(f"/{name}", headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "Accept-Encoding"
    assert plain.content == FILES[name]
    assert plain.headers["etag"] != packed.headers["etag"]

    again = await client.get(f"/{name}", headers={"accept-encoding": "gzip", "if-none-match": packed.headers["etag"]})
    assert again.status_code == 304

    part = await client.get(f"/{name}", headers={"accept-encoding": "gzip", "range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"asm")

    os.utime(twin, (0, 0))
    stale = await client.get(f"/{name}", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in stale.headers
    assert stale.content == FILES[name]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.3", True),
        ("*", True),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("gzip; q=0.0", False),
        ("gzip;q=x", False),
        ("gzipped", False),
        ("", False),
    ],
)
def test_accept_encoding(header: str, expected: bool) -> None:
    assert accepts(header, "gzip") is expected


@pytest.mark.parametrize(
    "address",
    [
        "/missing.js",
        "/models",
        "/models/",
        "/../outside.txt",
        "/%2e%2e/outside.txt",
        "/sub/..%2f..%2foutside.txt",
        "/sub/%2e%2e/%2e%2e/outside.txt",
        "/..%5coutside.txt",
        "//outside.txt",
        "/%2foutside.txt",
        "/./index.html",
        "/.secret",
        "/index.html%00.txt",
        "/index.html/",
        "/index.html/x",
        "/" + "x" * 5000,
    ],
)
async def test_no_file_at_an_address_is_a_short_plain_404(client: httpx.AsyncClient, address: str) -> None:
    """Sent over a bare socket: clients tidy such addresses up before they send them."""
    status, headers, body = await raw_get(str(client.base_url), address)
    assert status == 404
    assert "content-type: text/plain; charset=utf-8" in headers
    assert "cache-control: no-store" in headers
    assert body == b"There is nothing at this address.\n"


async def raw_get(base: str, address: str) -> tuple[int, list[str], bytes]:
    where = urlsplit(base)
    assert where.hostname
    assert where.port
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(f"GET {address} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), lines[1:], body


async def test_files_are_not_for_writing(client: httpx.AsyncClient) -> None:
    response = await client.post("/index.html", content=b"x")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD"


async def test_without_a_site_there_are_no_pages() -> None:
    async with serve_app(create_app(None, Settings(embedded="off"))) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/healthz")).json() == {"status": "ok", "upstream": "none", "ready": False}
        answer = await client.post("/api/ai/cloud-stream", json={"prompt": "x"})
    assert answer.status_code == 503
    assert "TANDEM_UPSTREAM_URL" in answer.json()["error"]["message"]
