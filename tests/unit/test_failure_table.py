"""The table of failures in ``docs/testing.md`` names tests and faults that there are, and every fault is in it."""

from __future__ import annotations

import re

from pyapp.setup.visits.faults import CLOUD, DEVICE, NONE
from tests.conftest import ROOT

TABLE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8").split("## Kinds of failure")[1]
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ") and "`" in line]


def test_each_kind_has_a_test_that_exists() -> None:
    texts: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        texts[path.name] = texts.get(path.name, "") + path.read_text(encoding="utf-8")
    assert len(ROWS) > 30
    for kind, tests in ROWS:
        named = re.findall(r"`(?:[\w/]+/)?(\w+\.py)(?:::(\w+))?`", tests)
        assert named, f"nothing holds: {kind}"
        for file, test in named:
            assert file in texts, f"{file}, said to hold: {kind}"
            assert not test or f"def {test}(" in texts[file], f"{file} has no {test}"


def test_each_fault_of_the_visits_is_in_the_table() -> None:
    told = [name for _, tests in ROWS for name in tests.partition("visits: ")[2].split(", ") if name]
    known = {fault.name for fault in (*DEVICE, *CLOUD) if fault is not NONE}
    assert set(told) == known
