"""``build.py test``: the checks, then the site and a browser, then every test."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from .browser import VARIABLE, ensure_chromium
from .checks import check_all
from .site import build_site


def run(options: argparse.Namespace, root: Path) -> int:
    """Runs all of it even when a check fails; the exit status says whether everything passed."""
    chromium = ensure_chromium()
    print(f"Browser: {chromium}", flush=True)
    build_site(root)
    failed = [] if options.no_check else check_all(root)
    # Development mode shows unclosed files and sockets, which the settings in pyproject.toml turn into failures.
    command = [sys.executable, "-X", "dev", "-m", "pytest", *options.rest]
    status = subprocess.run(command, cwd=root, check=False, env={**os.environ, VARIABLE: str(chromium)}).returncode
    if failed:
        print(f"Failed before the tests: {', '.join(failed)}.", file=sys.stderr)
    return status or (1 if failed else 0)
