"""What all tests share: nothing may be skipped, and where the built site, its server and the browser are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# No deadline for one example: on a busy machine it measures the machine. What hangs is ended by faulthandler_timeout.
settings.register_profile("tandem", deadline=None, print_blob=True)
settings.load_profile("tandem")


def _refuse_skip(report: Any) -> None:
    """A test that did not run proves nothing, and a tolerated failure hides the next one: both fail here."""
    if report.outcome == "skipped" or hasattr(report, "wasxfail"):
        report.longrepr = f"Skips and expected failures count as failures here: {report.longrepr}"
        report.outcome = "failed"
        vars(report).pop("wasxfail", None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Any:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Any:
    report = yield
    _refuse_skip(report)
    return report


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of golden values and small model files."""
    return ROOT / "tests" / "data"


@pytest.fixture(scope="session")
def dist() -> Path:
    """The built site, brought up to date."""
    from pyapp.setup.site import build_site

    return build_site(ROOT).dist


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser: the one that ``build.py test`` names in TANDEM_CHROMIUM, else an installed one."""
    from pyapp.setup.browser import ensure_chromium

    return ensure_chromium()


@pytest.fixture(scope="session")
def server(dist: Path) -> Iterator[str]:
    """Base URL of the site and its gateway, served for the whole session."""
    from pyapp.setup.serve import make_app, serving

    with serving(make_app(dist)) as url:
        yield url
