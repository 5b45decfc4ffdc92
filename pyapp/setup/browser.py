"""The browser of the tests and the bench: an installed Chromium or Chrome, else one that can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .failure import SetupError

VARIABLE = "TANDEM_CHROMIUM"  # how the path is handed to tests; set by hand, it is the one that is used
NAMES = ("chromium", "google-chrome-stable", "google-chrome", "chromium-headless-shell", "chromium-browser")

# Every GPU path is behind this flag on Linux; no sandbox, since containers and root cannot have one.
COMMON_FLAGS = ("--enable-unsafe-webgpu", "--no-sandbox", "--disable-dev-shm-usage")
ADAPTER_FLAGS = {
    "software": ("--use-webgpu-adapter=swiftshader",),
    "auto": (
        "--ignore-gpu-blocklist",
        "--use-angle=vulkan",
        "--enable-features=Vulkan,VulkanFromANGLE,DefaultANGLEVulkan",
        "--use-vulkan=native",
    ),
}


def flags(adapter: str) -> list[str]:
    """Command-line flags for ``adapter``: "software" (SwiftShader) or "auto" (the machine's own GPU, by Vulkan)."""
    return [*COMMON_FLAGS, *ADAPTER_FLAGS[adapter]]


def find_chromium() -> Path | None:
    """A Chromium that is here and starts: the variable's, an installed one, Playwright's; None where there is none."""
    if chosen := os.environ.get(VARIABLE):
        if not _starts(Path(chosen)):
            raise SetupError(f"{VARIABLE} names {chosen}, which is not a browser that starts here.")
        return Path(chosen)
    return next((path for path in _candidates() if _starts(path)), None)


def ensure_chromium() -> Path:
    """A Chromium that starts, installed if need be. Raises SetupError with what to do where none can be had."""
    if found := find_chromium():
        return found
    print("No Chromium or Chrome is installed; getting Playwright's own.", flush=True)
    _try([sys.executable, "-m", "playwright", "install", "chromium"])
    if found := find_chromium():
        return found
    if shutil.which("apt-get") and os.geteuid() == 0:
        print("Playwright's does not start here; installing the package chromium.", flush=True)
        _try(["apt-get", "update", "-q"])
        _try(["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"])
        if found := find_chromium():
            return found
    raise SetupError(
        "The tests need Chromium or Chrome, and none could be installed: install the package chromium as root, "
        f"or set {VARIABLE} to the path of one."
    )


def _candidates() -> Iterator[Path]:
    for name in NAMES:
        if found := shutil.which(name):
            yield Path(found)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
    if own.is_file():
        yield own


def _starts(path: Path) -> bool:
    """Whether it answers --version: some distributions install a stub of that name that only gives advice."""
    try:
        done = subprocess.run([path, "--version"], check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and ("Chrom" in done.stdout)


def _try(command: list[str]) -> None:
    """Runs a command that may fail: what counts is whether a browser starts afterwards."""
    try:
        subprocess.run(command, check=False, timeout=900, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"  {error}", flush=True)
