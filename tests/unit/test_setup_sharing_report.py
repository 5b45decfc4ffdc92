"""The table and the chart of the bench of sharing."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from pyapp.setup.bench import read_rows, run
from pyapp.setup.cli import make_parser
from pyapp.setup.failure import SetupError
from pyapp.setup.sharing_report import COLUMNS, markdown

ABOUT = {"adapter": "nvidia hopper", "software": False}
RAN: dict[str, Any] = {
    "bench": "sharing", "pair": "real", "setup": "tight", "budget": 180_000_000, "peak": 180_100_000,
    "context": 2048, "cache": "f32", "moved_per_round": 18_530_000, "to_vision_ms": 13.21, "to_vision_p95_ms": 15.0,
    "to_language_ms": 27.5, "to_language_p95_ms": 29.0, "to_vision_ratio": 1.04, "to_language_ratio": None,
    "first_token_ms": 36.0, "tokens_per_s": 612.4, "failures": 0, "failed": [],
}  # fmt: skip
REFUSED = {
    "bench": "sharing",
    "pair": "synthetic",
    "setup": "held",
    "budget": 943_718_400,
    "refused": "It does not fit.",
    "need": 1_400_000_000,
}
FAILED = {"bench": "sharing", "pair": "synthetic", "error": "ValueError: no"}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_a_line_for_each_setup() -> None:
    lines = markdown([RAN, REFUSED, FAILED]).splitlines()
    assert cells(lines[0]) == [name for name, _ in COLUMNS]
    assert cells(lines[2]) == [
        "real", "tight", "180", "180", "2048", "f32", "18.5", "13.2, 15", "27.5, 29", "1.04, –", "36", "612", "0",
    ]  # fmt: skip
    assert cells(lines[3])[:4] == ["synthetic", "held", "944", "refused"]
    assert cells(lines[4])[:4] == ["synthetic", "", "", "failed"]
    assert all(len(cells(line)) == len(COLUMNS) for line in lines[:5])
    assert lines[5:] == ["", "synthetic held: It does not fit.", "synthetic: ValueError: no"]


def bench(tmp_path: Path, *rows: dict[str, Any]) -> int:
    """``build.py bench sharing --rows`` of these rows, in a project of its own; the exit status."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {"done": 1})))
    return run(make_parser().parse_args(["bench", "sharing", "--rows", str(file)]), tmp_path)


def test_a_gpus_rows_go_into_the_docs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, ABOUT, RAN, REFUSED) == 0
    assert "| real | tight |" in capsys.readouterr().out
    assert [json.loads(line) for line in (tmp_path / "docs/results/sharing.jsonl").read_text().splitlines()] == [
        ABOUT, RAN, REFUSED,
    ]  # fmt: skip
    assert "Adapter: nvidia hopper" in (tmp_path / "docs/sharing.md").read_text()
    chart = (tmp_path / "docs/sharing.svg").read_bytes()
    assert ElementTree.fromstring(chart).tag.endswith("svg")
    bench(tmp_path, ABOUT, RAN, REFUSED)
    assert (tmp_path / "docs/sharing.svg").read_bytes() == chart, "the same rows make the same file"


def test_an_emulators_rows_do_not(tmp_path: Path) -> None:
    assert bench(tmp_path, {"adapter": "swiftshader", "software": True}, RAN) == 0
    assert bench(tmp_path, RAN) == 0  # nobody says what ran
    assert not (tmp_path / "docs").exists()


def test_failures_are_the_exit_status(tmp_path: Path) -> None:
    software = {"adapter": "swiftshader", "software": True}
    assert bench(tmp_path, software, {**RAN, "failures": 1}) == 1
    assert bench(tmp_path, software, RAN, FAILED) == 1
    assert bench(tmp_path, software, RAN, REFUSED) == 0
    assert bench(tmp_path, software, RAN, {**REFUSED, "setup": "tight"}) == 1


def test_rows_that_are_none_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    with pytest.raises(SetupError, match="cannot be read"):
        read_rows(file)
    file.write_text("[1]\n")
    with pytest.raises(SetupError, match="a line that is no row"):
        read_rows(file)
    file.write_text("{\n")
    with pytest.raises(SetupError, match="cannot be read"):
        read_rows(file)


def test_options_of_the_page_are_named() -> None:
    options = make_parser().parse_args(["bench", "sharing", "--option", "rounds=2", "--option", "model=a=b"])
    assert options.option == [("rounds", "2"), ("model", "a=b")]
    with pytest.raises(SystemExit):
        make_parser().parse_args(["bench", "--option", "rounds"])
