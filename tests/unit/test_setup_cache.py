"""The cache folder, the progress line, and files out of archives."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from pyapp.setup import cache
from pyapp.setup.cache import Pin, cache_folder, obtain
from pyapp.setup.failure import SetupError
from pyapp.setup.npm import read_members
from pyapp.setup.progress import Progress, folder_size, in_words, watching
from pyapp.setup.pypi import take_out
from tests.conftest import ROOT

BYTES = b"weights" * 100
PIN = Pin("file.bin", hashlib.sha256(BYTES).hexdigest(), len(BYTES))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tandem"


class Origin:
    """Counts how often it is asked, and gives these bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, 0

    def __call__(self, stage: Path) -> tuple[Path, str]:
        self.asked += 1
        (stage / "got").write_bytes(self.data)
        return stage / "got", "a test"


def test_the_folder_follows_xdg(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == home
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_folder() == tmp_path / ".cache" / "tandem"


def test_a_file_is_fetched_once(home: Path) -> None:
    origin = Origin(BYTES)
    first, second = obtain(PIN, "models", origin), obtain(PIN, "models", origin)
    assert first == second == home / "models" / "file.bin"
    assert first.read_bytes() == BYTES
    assert origin.asked == 1


@pytest.mark.parametrize("damage", [b"", BYTES[:-1], b"x" + BYTES[1:]])
def test_a_damaged_file_is_fetched_again(damage: bytes) -> None:
    origin = Origin(BYTES)
    obtain(PIN, "models", origin).write_bytes(damage)
    assert obtain(PIN, "models", origin).read_bytes() == BYTES
    assert origin.asked == 2


def test_wrong_bytes_are_never_kept(home: Path) -> None:
    with pytest.raises(SetupError, match=r"file\.bin from a test is not the file.*nothing of it was used"):
        obtain(PIN, "models", Origin(b"<html>not found</html>"))
    assert not list((home / "models").iterdir())
    assert not list(home.glob("partial-*"))


def test_a_broken_download_leaves_nothing(home: Path) -> None:
    def broken(stage: Path) -> tuple[Path, str]:
        (stage / "half").write_bytes(BYTES[:10])
        raise SetupError("the line is cut")

    with pytest.raises(SetupError, match="the line is cut"):
        obtain(PIN, "models", broken)
    assert not list((home / "models").iterdir())
    assert not list(home.glob("partial-*"))


def test_what_a_killed_process_left_is_removed(home: Path) -> None:
    old, new = cache_folder() / "partial-old", cache_folder() / "partial-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "half").write_bytes(BYTES)
    os.utime(old, (0, 0))
    obtain(PIN, "models", Origin(BYTES))
    assert not old.exists()
    assert (new / "half").exists()


def test_a_failed_check_names_both_sums(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(SetupError) as caught:
        cache.check(tmp_path / "x", PIN, "PyPI")
    assert PIN.sha256 in str(caught.value)
    assert hashlib.sha256(b"abc").hexdigest() in str(caught.value)


def test_bytes_in_words() -> None:
    assert [in_words(n) for n in (0, 999, 1000, 98_362_432, 2_500_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "98.4 MB",
        "2.5 GB",
    ]


def test_progress_without_a_terminal_is_whole_lines() -> None:
    stream = io.StringIO()
    progress = Progress("model", 2000, stream, every=0)
    progress.update(500)
    progress.update(9999)  # a temporary file beside the download
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "  model  500 B of 2.0 kB  25 %",
        "  model  2.0 kB of 2.0 kB  100 %",
    ]


def test_progress_says_nothing_twice() -> None:
    stream = io.StringIO()
    progress = Progress("libraries", None, stream, every=0)
    for loaded in (677_510_000, 677_790_000, 677_810_000, 677_840_000):
        progress.update(loaded)
    progress.finish()
    assert stream.getvalue().splitlines() == ["  libraries  677.5 MB", "  libraries  677.8 MB"]


def test_the_clock_of_the_process_goes_on_through_exec() -> None:
    code = (
        "import os, sys, time; from pyapp.setup.progress import seconds_running\n"
        "if 'again' in sys.argv: print(seconds_running())\n"
        "else: time.sleep(0.5); os.execv(sys.executable, [*sys.orig_argv, 'again'])"
    )
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert 0.5 <= float(done.stdout) <= time.monotonic() - before + 0.05  # a tick is 0.01 s


def test_progress_on_a_terminal_stays_on_its_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress("libraries", None, stream)
    progress.update(1500)
    progress.finish()
    assert stream.getvalue() == "\r\x1b[K  libraries  1.5 kB\r\x1b[K  libraries  1.5 kB\n"


def test_a_failure_is_not_shown_as_finished(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SetupError), watching("package", 1000, lambda: 10):
        raise SetupError("no network")
    assert "100 %" not in capsys.readouterr().out


def test_folder_size(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"123")
    (tmp_path / "c").write_bytes(b"45")
    assert folder_size(tmp_path) == 5


def test_members_of_archives(tmp_path: Path) -> None:
    wheel, tarball = tmp_path / "x.whl", tmp_path / "x.tgz"
    with zipfile.ZipFile(wheel, "w") as bundle:
        bundle.writestr("pkg/file", BYTES)
    assert take_out(wheel, "pkg/file", tmp_path / "out").read_bytes() == BYTES
    with pytest.raises(SetupError, match=r"x\.whl holds no pkg/other"):
        take_out(wheel, "pkg/other", tmp_path / "out2")
    with tarfile.open(tarball, "w:gz") as packed:
        for name in ("package/dist/a.js", "package/dist/deep/b.js", "package/src/c.js", "../evil"):
            info = tarfile.TarInfo(name)
            info.size = 2
            packed.addfile(info, io.BytesIO(b"js"))
    assert set(read_members(tarball, {"dist/": "pyscript/"})) == {"pyscript/a.js", "pyscript/deep/b.js"}
    with pytest.raises(SetupError, match=r"x\.tgz lacks missing\.js"):
        read_members(tarball, {"missing.js": "y"})
