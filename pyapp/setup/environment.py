"""``.venv`` from ``requirements.lock``, made again only when the lock file changes. Standard library only."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from .cache import exclusive, staging
from .failure import SetupError
from .progress import folder_size, watching

STAMP = "tandem-lock.sha256"


def wanted_stamp(lock: Path) -> str:
    """What a finished environment holds in its stamp: the lock's hash and the Python it was made with."""
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{hashlib.sha256(lock.read_bytes()).hexdigest()} python{version}\n"


def in_environment(folder: Path) -> bool:
    """Whether this very process runs inside the environment in ``folder``."""
    return Path(sys.prefix).resolve() == folder.resolve()


def is_fresh(folder: Path, stamp: str) -> bool:
    """Whether the environment there is complete and made from this lock file by this Python."""
    try:
        return (folder / STAMP).read_text() == stamp and (folder / "bin" / "python").exists()
    except OSError:
        return False


def ensure_environment(root: Path) -> None:
    """Makes or renews ``root/.venv`` if needed and goes on inside it: in a fresh process, unless already there.

    Raises SetupError when the environment cannot be made or filled.
    """
    folder, lock = root / ".venv", root / "requirements.lock"
    if in_environment(folder):
        return
    stamp = wanted_stamp(lock)
    if not is_fresh(folder, stamp):
        with exclusive(f"venv-{folder}"):
            if not is_fresh(folder, stamp):
                _make(folder, lock, stamp)
    python = folder / "bin" / "python"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [str(python), str(root / "build.py"), *sys.argv[1:]])


def _make(folder: Path, lock: Path, stamp: str) -> None:
    print(f"Making {folder} from {lock.name} …", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        venv.create(folder, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(
            f"Python cannot make a virtual environment in {folder} ({error}); on Debian, install python3-venv."
        ) from error
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-warn-script-location", "--quiet"]
    command += ["--progress-bar", "off", "--require-hashes", "--only-binary", ":all:", "-r", str(lock)]
    with (
        staging() as stage,
        watching(
            "libraries, as downloaded and as unpacked together", None, lambda: folder_size(stage) + folder_size(folder)
        ),
    ):
        environment = {**os.environ, "TMPDIR": str(stage)}
        done = subprocess.run(command, check=False, text=True, capture_output=True, env=environment)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            raise SetupError(
                f"pip could not install what {lock.name} lists (exit status {done.returncode}, its words are above); "
                "check that this machine reaches PyPI, then run the same command again."
            )
    (folder / STAMP).write_text(stamp)
