"""The rule of tests/conftest.py that nothing is skipped, tried on tests that try."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = (Path(__file__).resolve().parents[1] / "conftest.py").read_text(encoding="utf-8")
PLAIN = ("-p", "no:cacheprovider", "-p", "no:asyncio")


@pytest.mark.parametrize(
    "attempt",
    [
        "@pytest.mark.skip(reason='later')\ndef test_it(): pass",
        "@pytest.mark.skipif(True, reason='no GPU')\ndef test_it(): pass",
        "def test_it(): pytest.skip('no adapter')",
        "@pytest.fixture\ndef gpu(): pytest.skip('no adapter')\ndef test_it(gpu): pass",
        "@pytest.mark.xfail\ndef test_it(): assert False",
        "@pytest.mark.xfail\ndef test_it(): pass",
        "pytest.importorskip('no_such_module')\ndef test_it(): pass",
        "pytest.skip('not here', allow_module_level=True)",
    ],
)
def test_a_skip_fails_the_run(pytester: pytest.Pytester, attempt: str) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(f"import pytest\n{attempt}\n")
    result = pytester.runpytest_inprocess(*PLAIN)
    assert result.ret != pytest.ExitCode.OK
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("error", 0) + outcomes.get("errors", 0) == 1
    assert "skipped" not in outcomes


def test_a_plain_test_passes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_it(): pass")
    assert pytester.runpytest_inprocess(*PLAIN).ret == pytest.ExitCode.OK
