"""Where the wasm wheels come from: the CDN, and Open WebUI's wheel where the CDN or its bytes cannot be had."""

from __future__ import annotations

import hashlib
import io
import zipfile
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from pyapp.setup import runtime
from pyapp.setup.failure import SetupError
from pyapp.setup.pypi import Package

WHEELS = {name: f"wheel of {name}".encode() for name in runtime.WASM_PACKAGES}


def lock() -> dict[str, Any]:
    entries = {
        name: {"file_name": f"{name}.whl", "sha256": hashlib.sha256(data).hexdigest(), "depends": []}
        for name, data in WHEELS.items()
    }
    return {"packages": entries}


class Sources:
    """Both origins, faked: what the CDN answers, and how often each was asked."""

    def __init__(self, cdn: Exception | dict[str, bytes], archive: dict[str, bytes]) -> None:
        self.cdn, self.archive, self.asked = cdn, archive, {"cdn": 0, "open-webui": 0}

    def urlopen(self, address: str, timeout: float) -> io.BytesIO:
        assert address.startswith(runtime.CDN)
        assert timeout <= 5
        self.asked["cdn"] += 1
        if isinstance(self.cdn, Exception):
            raise self.cdn
        return io.BytesIO(self.cdn[address.removeprefix(runtime.CDN).removesuffix(".whl")])

    def download(self, package: Package, stage: Path) -> Path:
        self.asked["open-webui"] += 1
        with zipfile.ZipFile(stage / "archive.zip", "w") as bundle:
            for name, data in self.archive.items():
                bundle.writestr(f"open_webui/frontend/pyodide/{name}.whl", data)
        return stage / "archive.zip"


@pytest.fixture(autouse=True)
def sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runtime, "WASM_PACKAGES", {name: len(data) for name, data in WHEELS.items()})


def use(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> Sources:
    monkeypatch.setattr(runtime.urllib.request, "urlopen", sources.urlopen)
    monkeypatch.setattr(runtime, "download", sources.download)
    return sources


def test_the_cdn_is_enough_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = use(Sources(WHEELS, {}), monkeypatch)
    for _ in range(2):
        paths = runtime.obtain_wasm_wheels(lock())
        assert {path.stem: path.read_bytes() for path in paths} == WHEELS
    assert sources.asked == {"cdn": len(WHEELS), "open-webui": 0}


@pytest.mark.parametrize(
    "answer",
    [
        OSError("no such host"),
        TimeoutError("timed out"),
        IncompleteRead(b"half"),
        dict.fromkeys(WHEELS, b"<html>please log in</html>"),
    ],
)
def test_without_the_cdn_open_webui_is_taken(
    answer: Exception | dict[str, bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = use(Sources(answer, WHEELS), monkeypatch)
    paths = runtime.obtain_wasm_wheels(lock())
    assert {path.stem: path.read_bytes() for path in paths} == WHEELS
    assert sources.asked == {"cdn": 1, "open-webui": 1}
    said = capsys.readouterr().out
    assert "taking the same wasm wheels out of open-webui==0.12.4 instead, which is as good" in said


def test_bytes_that_the_lock_does_not_know_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Sources(OSError("no such host"), {**WHEELS, "regex": b"wheel of regeX"}), monkeypatch)
    with pytest.raises(SetupError, match=r"regex\.whl from open-webui==0\.12\.4 is not the file"):
        runtime.obtain_wasm_wheels(lock())
    assert not list((tmp_path / "tandem" / "wasm").iterdir())


def test_only_what_is_missing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Sources(WHEELS, {}), monkeypatch)
    runtime.obtain_wasm_wheels(lock())
    (tmp_path / "tandem" / "wasm" / "regex.whl").write_bytes(b"damaged")
    sources = use(Sources(WHEELS, {}), monkeypatch)
    runtime.obtain_wasm_wheels(lock())
    assert sources.asked == {"cdn": 1, "open-webui": 0}
