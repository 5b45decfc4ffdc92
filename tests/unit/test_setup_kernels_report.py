"""The tables and the roofline of the bench of kernels."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from pyapp.setup.bench import run
from pyapp.setup.cli import make_parser
from pyapp.setup.kernels_report import markdown
from pyapp.setup.roofline import _ceilings, draw, named

from .kernel_rows import ABOUT, ALL, CEILINGS, DECODE, SHAPES, VISION, kernel


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(text: str) -> dict[str, list[list[str]]]:
    """Cells by heading: the titles, then the rows."""
    found = {}
    for part in text.split("### ")[1:]:
        name, *lines = part.splitlines()
        rows = [cells(line) for line in lines if line.startswith("|")]
        found[name] = rows[:1] + rows[2:]
        assert all(len(row) == len(rows[0]) for row in rows)
    return found


def test_every_kind_of_row_has_its_table() -> None:
    found = tables(markdown(ALL))
    assert list(found) == [
        "Ceilings", "Whole runs", "Kernels of small, decode at 128", "Kernels of small, decode at 4096",
        "Kernels of small, prefill", "Kernels of pictures, vision", "Cost of each fusion",
        "Products of one token, by shape", "A step in the fastest shapes", "Attention of one token, by shape",
        "Products of a chunk, by tile",
    ]  # fmt: skip
    assert found["Ceilings"][2] == ["read", "64 ranges in turn", "16.8", "6.9", "6.8", "gpu", "–", "4,400", "–"]
    assert found["Ceilings"][4] == ["read", "", "1,074", "400", "398", "", "–", "2,684", "–"]
    assert found["Ceilings"][5][3:7] == ["2.7", "2.6", "gpu", "4.8"]
    assert found["Cost of each fusion"][1][:6] == ["small", "silu_mul", "128", "950", "800", "150"]
    decode = found["Kernels of small, decode at 128"]
    assert [row[0] for row in decode[1:3]] == ["layers.0.gate_up_out", "layers.0.down_out"]  # most time first
    assert decode[1][2:] == [
        "128x1x1", "128", "30", "6.4", "6.21", "5.12", "6.72", "gpu", "0.99", "155", "547", "42%", "dispatch", "31%",
    ]  # fmt: skip


def test_of_a_sweep_the_fastest_and_the_present_shape_are_shown() -> None:
    rows = tables(markdown(SHAPES))["Products of one token, by shape"][1:]
    assert [row[5] for row in rows] == ["3", "4", "5", "6", "7", "9"]
    assert [row[9] for row in rows] == ["", "", "", "", "", "yes"]


def test_what_failed_and_what_was_left_out_is_said() -> None:
    text = markdown(
        [
            {"bench": "kernels", "error": "no"},
            {"bench": "kernels", "model": "small", "what": "prefill", "error": "ValueError: never"},
            {"bench": "kernels", "row": "left out", "model": "small", "what": "tiles", "shapes": 3},
        ]
    )
    assert text.splitlines() == [
        "### Left out for want of time", "", "- small: 3 shapes of tiles", "",
        "### Failed", "", "- no", "- small prefill: ValueError: never",
    ]  # fmt: skip


def bench(tmp_path: Path, *rows: dict[str, Any]) -> int:
    """``build.py bench kernels --rows`` of these rows, in a project of its own; the exit status."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {"done": 1})))
    return run(make_parser().parse_args(["bench", "kernels", "--rows", str(file)]), tmp_path)


def test_a_gpus_rows_go_into_the_docs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, *ALL) == 0
    assert "### Ceilings" in capsys.readouterr().out
    docs = tmp_path / "docs"
    kept = [json.loads(line) for line in (docs / "results" / "kernels.jsonl").read_text().splitlines()]
    assert kept == ALL
    text = (docs / "kernels.md").read_text()
    assert "nvidia hopper" in text
    assert "roofline.svg" in text
    assert ElementTree.parse(docs / "roofline.svg").getroot().tag.endswith("svg")


def test_an_emulated_gpus_rows_do_not(tmp_path: Path) -> None:
    assert bench(tmp_path, {**ABOUT, "software": True}, *ALL[1:]) == 0
    assert not (tmp_path / "docs").exists()


def test_an_error_is_the_exit_status(tmp_path: Path) -> None:
    assert bench(tmp_path, *ALL, {"bench": "kernels", "error": "no"}) == 1


def test_the_chart_names_what_matters(tmp_path: Path) -> None:
    labels = [text for *_, text in named(DECODE)]
    assert "gate_up, 42%" in labels
    assert {text.partition(",")[0] for text in labels} >= {"attention at 128", "attention at 4096"}
    assert not any(text.startswith(("embed", "sample")) for text in labels)  # a small share of a step, or none
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize(
    "rows", [[*CEILINGS, *DECODE, *VISION], DECODE, [*CEILINGS[3:4], kernel("logits", 1, 22.0, 16e6, 57e6)]]
)
def test_a_chart_is_drawn_of_whatever_there_is(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    draw(rows, tmp_path / "roofline.svg")
    ElementTree.parse(tmp_path / "roofline.svg")


def test_the_charts_roofs_are_of_ranges_that_are_read_over_and_over() -> None:
    (memory, cache), _ = _ceilings(CEILINGS)
    assert (memory, cache) == (("memory", 2684.0), ("8 MB again and again", 4000.0))


def test_without_kernels_there_is_no_chart(tmp_path: Path) -> None:
    draw(CEILINGS, tmp_path / "roofline.svg")
    assert not (tmp_path / "roofline.svg").exists()
