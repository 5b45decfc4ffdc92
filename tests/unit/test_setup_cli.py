"""The command line of build.py and the environment that it goes on in."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import execnet
import pytest

from pyapp.setup import cli, environment, testing
from pyapp.setup.cli import COMMANDS, main, make_parser
from pyapp.setup.environment import STAMP, ensure_environment, is_fresh, wanted_stamp
from pyapp.setup.failure import SetupError
from tests.conftest import ROOT


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_needs_nothing_installed(command: str) -> None:
    # -I -S: no site-packages, as on a machine where nothing is installed.
    arguments = [sys.executable, "-I", "-S", str(ROOT / "build.py"), *([command] if command else []), "--help"]
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = {arguments[3:]!r}; exec(open(sys.argv[0]).read())"
    )
    done = subprocess.run([*arguments[:3], "-c", code], check=False, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: build.py")
    for name, (_, text) in COMMANDS.items():
        if not command:
            assert name in done.stdout
        elif name == command:
            assert " ".join(text.split()) in " ".join(done.stdout.split())


def test_every_command_has_its_module() -> None:
    for module, _ in COMMANDS.values():
        assert (ROOT / "pyapp" / "setup" / f"{module}.py").is_file()


def test_only_test_takes_arguments_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "ensure_environment", lambda root: pytest.fail("went on"))
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--prot", "80"])
    assert caught.value.code == 2
    assert "--prot" in capsys.readouterr().err
    options, rest = make_parser().parse_known_args(["test", "-k", "tokenizer", "-x", "--no-check"])
    assert (options.no_check, rest) == (True, ["-k", "tokenizer", "-x"])


def test_workers_of_the_tests_are_in_development_mode() -> None:
    gateway = execnet.makegateway(testing.WORKERS.partition("*")[2])
    try:
        assert gateway.remote_exec("import sys; channel.send(sys.flags.dev_mode)").receive(timeout=60) is True
    finally:
        gateway.exit()


def test_a_failure_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(root: Path) -> None:
        raise SetupError("PyPI cannot be reached.")

    monkeypatch.setattr(cli, "ensure_environment", fail)
    assert main(["build"]) == 1
    assert capsys.readouterr().err == "build.py: PyPI cannot be reached.\n"


def test_an_environment_is_fresh_only_for_its_lock_and_python(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("a==1\n")
    stamp = wanted_stamp(lock)
    assert not is_fresh(tmp_path / ".venv", stamp)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / STAMP).write_text(stamp)
    assert not is_fresh(tmp_path / ".venv", stamp)  # its Python is gone
    (tmp_path / ".venv" / "bin" / "python").touch()
    assert is_fresh(tmp_path / ".venv", stamp)
    lock.write_text("a==2\n")
    assert not is_fresh(tmp_path / ".venv", wanted_stamp(lock))
    assert not is_fresh(tmp_path / ".venv", stamp.replace("python3.", "python4."))


def test_a_failed_install_is_not_taken_for_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(venv, "create", lambda folder, **_: (folder / "bin").mkdir(parents=True))
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", "hash!"))
    monkeypatch.setattr(environment.os, "execv", lambda *_: pytest.fail("went on"))
    (tmp_path / "requirements.lock").write_text("a==1\n")
    for _ in range(2):
        with pytest.raises(SetupError, match=r"pip could not install what requirements\.lock lists \(exit status 1"):
            ensure_environment(tmp_path)
    assert not (tmp_path / ".venv" / STAMP).exists()


def test_the_lock_pins_everything_with_hashes() -> None:
    entries = [
        entry
        for entry in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text(encoding="utf-8"))
        if not entry.startswith("#")
    ]
    assert len(entries) > 30
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==[^ ]+ (; .+ )?\\\n    --hash=sha256:[0-9a-f]{64}", entry), entry[:80]
    names = {entry.split("==")[0] for entry in entries}
    declared = re.search(r"\ndev = \[\n(.*?)\n\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.S)
    assert declared
    assert set(re.findall(r'"([a-z-]+)', declared[1])) <= names
