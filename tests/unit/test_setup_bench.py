"""The bench's row log and table, the serving of an app, and the search for a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from pyapp.setup import browser
from pyapp.setup.bench import MOST_BYTES, RowLog, table, title
from pyapp.setup.browser import VARIABLE, ensure_chromium, find_chromium, flags
from pyapp.setup.failure import SetupError
from pyapp.setup.serve import serving


def test_rows_are_kept_and_everything_else_is_handed_on() -> None:
    log = RowLog(PlainTextResponse("the site"))
    with serving(log) as url, httpx.Client(base_url=url) as client:
        assert client.post("/log", json={"adapter": "x"}).status_code == 204
        assert client.post("/log", content=json.dumps({"prefill": 1.5})).status_code == 204
        assert client.post("/log", content=b"[1]").status_code == 400
        assert client.post("/log", content=b"no json").status_code == 400
        assert client.post("/log", content=b'"' + b"a" * (2 * MOST_BYTES) + b'"').status_code == 400
        assert client.get("/log").text == client.post("/other").text == "the site"
    assert [log.rows.get_nowait() for _ in range(log.rows.qsize())] == [{"adapter": "x"}, {"prefill": 1.5}]


def test_the_server_is_gone_after_the_block() -> None:
    with serving(PlainTextResponse("here")) as url:
        assert httpx.get(url).text == "here"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_an_app_that_fails_to_start_is_said() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no upstream"})

    with pytest.raises(SetupError, match="before it was listening"), serving(app):
        pytest.fail("it was served")


def test_a_software_adapter_is_named_as_such() -> None:
    assert title([{"adapter": "nvidia hopper", "software": False}]) == "Adapter: nvidia hopper"
    assert title([{"x": 1}, {"adapter": {"vendor": "google", "architecture": "swiftshader"}, "software": True}]) == (
        "SOFTWARE ADAPTER (google swiftshader): right for correctness, no measure of speed"
    )
    assert title([]) == "Adapter: adapter not named"


def test_the_table_shows_every_figure() -> None:
    language = {"bench": "language", "decode tokens/s": 1234.5678, "dispatches": 181, "ok": True}
    stream = {"bench": "stream", "stream_share": 0.978123, "stream_spread": [1540.5, 1602]}
    text = table([{"adapter": "x"}, language, stream])
    lines = [line.split() for line in text.splitlines()]
    assert ["language", "decode", "tokens/s", "1235"] in lines
    assert ["language", "dispatches", "181"] in lines
    assert ["language", "ok", "true"] in lines
    assert ["stream", "stream_share", "0.9781"] in lines
    assert ["stream", "stream_spread", "[1540.5,", "1602]"] in lines


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_variable_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = script(tmp_path / "mine", "echo Chromium 150")
    monkeypatch.setenv(VARIABLE, str(good))
    assert find_chromium() == good
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(SetupError, match="missing, which is not a browser that starts"):
        find_chromium()


def test_a_stub_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "chromium", "echo 'install the snap'; exit 1")
    script(tmp_path / "google-chrome-stable", "echo 'please install it'")
    real = script(tmp_path / "google-chrome", "echo Google Chrome 150")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert find_chromium() == real


def test_where_none_can_be_had_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[str]] = []
    monkeypatch.setattr(browser, "find_chromium", lambda: None)
    monkeypatch.setattr(browser, "_try", tried.append)
    monkeypatch.setattr(browser.os, "geteuid", lambda: 0)
    script(tmp_path / "apt-get", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=f"install the package chromium as root, or set {VARIABLE}"):
        ensure_chromium()
    assert [command[-1] for command in tried] == ["chromium", "-q", "chromium"]
    assert "playwright" in tried[0]
    tried.clear()
    monkeypatch.setattr(browser.os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError):
        ensure_chromium()
    assert len(tried) == 1


def test_the_flags_name_their_adapter() -> None:
    assert "--use-webgpu-adapter=swiftshader" in flags("software")
    assert "--use-webgpu-adapter=swiftshader" not in flags("auto")
    assert all("--enable-unsafe-webgpu" in flags(adapter) for adapter in ("auto", "software"))
