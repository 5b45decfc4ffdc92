"""``build.py test``: the checks, then the site and a browser, then every test."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .browser import VARIABLE, ensure_chromium
from .checks import check_all
from .site import build_site

ALL = ("tests/browser", "tests/kernels", "tests/unit")
"""The long files first, so that the short ones fill the end."""
DEVELOPMENT = ("-X", "dev")
"""Shows unclosed files and sockets, which the settings in pyproject.toml turn into failures."""
WORKERS = f"2*popen//python={shlex.join([sys.executable, *DEVELOPMENT])}"
BESIDE_EACH_OTHER = ("--tx", WORKERS, "--dist", "loadfile", "--no-loadscope-reorder")
"""Two workers, each with a browser of its own: one test mostly waits for the other side of its own browser. A file
stays in one worker, since its tests share a page. ``-n 2`` would start them without development mode."""


def run(options: argparse.Namespace, root: Path) -> int:
    """Runs all of it even when a check fails; the exit status says whether everything passed."""
    chromium = ensure_chromium()
    print(f"Browser: {chromium}", flush=True)
    build_site(root)
    failed = [] if options.no_check else check_all(root)
    environment = {**os.environ, VARIABLE: str(chromium)}
    status = _pytest(options.rest or (*ALL, *BESIDE_EACH_OTHER), root, environment)
    if failed:
        print(f"Failed before the tests: {', '.join(failed)}.", file=sys.stderr)
    return status or (1 if failed else 0)


def _pytest(arguments: Sequence[str], root: Path, environment: Mapping[str, str]) -> int:
    command = [sys.executable, *DEVELOPMENT, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=root, check=False, env=environment).returncode
