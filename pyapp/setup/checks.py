"""``build.py check``: lint, format and types."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

TARGETS = ("build.py", "pyapp", "tests")


def commands(fix: bool) -> list[list[str]]:
    """Each check as the arguments after ``python -m``."""
    if fix:
        return [["ruff", "check", "--fix", *TARGETS], ["ruff", "format", *TARGETS], ["mypy"]]
    return [["ruff", "check", *TARGETS], ["ruff", "format", "--check", *TARGETS], ["mypy"]]


def check_all(root: Path, fix: bool = False) -> list[str]:
    """Runs every check, whatever the others say; returns the names of those that failed."""
    failed = []
    for command in commands(fix):
        started = time.monotonic()
        name = " ".join(word for word in command if word not in TARGETS)
        status = subprocess.run([sys.executable, "-m", *command], cwd=root, check=False).returncode
        print(f"{name}: {'failed' if status else 'passed'} ({time.monotonic() - started:.1f} s)", flush=True)
        if status:
            failed.append(name)
    return failed


def run(options: argparse.Namespace, root: Path) -> int:
    """``build.py check``."""
    return 1 if check_all(root, options.fix) else 0
