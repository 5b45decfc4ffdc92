"""``build.py test``: the checks, then the site and a browser, then every test."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .browser import VARIABLE, ensure_chromium
from .checks import check_all
from .site import build_site

WITH_BROWSER = ("tests/browser",)
WITHOUT_BROWSER = ("tests/unit", "tests/kernels")


def run(options: argparse.Namespace, root: Path) -> int:
    """Runs all of it even when a check fails; the exit status says whether everything passed."""
    chromium = ensure_chromium()
    print(f"Browser: {chromium}", flush=True)
    build_site(root)
    failed = [] if options.no_check else check_all(root)
    environment = {**os.environ, VARIABLE: str(chromium)}
    status = _pytest(options.rest, root, environment) if options.rest else _all_tests(root, environment)
    if failed:
        print(f"Failed before the tests: {', '.join(failed)}.", file=sys.stderr)
    return status or (1 if failed else 0)


def _command(arguments: Sequence[str]) -> list[str]:
    # Development mode shows unclosed files and sockets, which the settings in pyproject.toml turn into failures.
    return [sys.executable, "-X", "dev", "-m", "pytest", *arguments]


def _pytest(arguments: Sequence[str], root: Path, environment: Mapping[str, str]) -> int:
    return subprocess.run(_command(arguments), cwd=root, check=False, env=environment).returncode


def _all_tests(root: Path, environment: Mapping[str, str]) -> int:
    """Those without a browser run beside those with one, which often wait for it; they are shown when both are done."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as shown:
        arguments = [*WITHOUT_BROWSER, "-p", "no:cacheprovider"]
        beside = subprocess.Popen(
            _command(arguments), cwd=root, env=environment, stdout=shown, stderr=subprocess.STDOUT
        )
        try:
            status = _pytest(WITH_BROWSER, root, environment)
        finally:
            beside_status = beside.wait()
            shown.seek(0)
            print(f"{' '.join(WITHOUT_BROWSER)}:", shown.read(), sep="\n", flush=True)
    return status or beside_status
