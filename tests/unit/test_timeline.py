"""What is kept of a start, by Python and by JavaScript, and how it is shown."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from pyapp import timeline
from pyapp.setup.gantt import gantt
from tests.unit.node_runner import run_node


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_stages", deque(maxlen=timeline.MOST_KEPT))
    monkeypatch.setattr(timeline, "_offset", 0.0)


def test_stages_go_on_after_those_of_the_page_and_by_its_clock() -> None:
    before = {"stage": "page", "from": 1e12, "to": 1e12 + 5, "needs": []}
    timeline.take_over([before], now_ms=1e12 + 7)
    with timeline.stage("plans", "page", "device"):
        pass
    first, second = timeline.stages()
    assert first == before
    assert (second["stage"], second["needs"]) == ("plans", ["page", "device"])
    assert 1e12 + 7 <= second["from"] <= second["to"] < 1e12 + 60_000


def test_a_stage_that_fails_is_kept_too_and_one_inside_of_another_ends_first() -> None:
    with pytest.raises(ValueError, match="no"), timeline.stage("outer"), timeline.stage("inner"):
        raise ValueError("no")
    inner, outer = timeline.stages()
    assert (inner["stage"], outer["stage"]) == ("inner", "outer")
    assert outer["from"] <= inner["from"] <= inner["to"] <= outer["to"]


def test_a_page_that_lives_long_keeps_the_last_ones() -> None:
    for number in range(timeline.MOST_KEPT + 3):
        with timeline.stage(str(number)):
            pass
    assert [timeline.stages()[index]["stage"] for index in (0, -1)] == ["3", str(timeline.MOST_KEPT + 2)]


def stage(name: str, begin: float, end: float, *needs: str) -> dict[str, Any]:
    return {"stage": name, "from": begin, "to": end, "needs": list(needs)}


def test_rows_say_what_each_stage_waited_for() -> None:
    stages = [
        stage("plans", 1030, 1040, "head", "device", "never seen"),
        stage("page", 1000, 1010),
        stage("head", 1010.4, 1020, "page"),
        stage("device", 1010.2, 1030, "page"),
    ]
    rows = run_node(
        'const { rows } = await import(web + "timeline.js"); return rows(input.stages, input.zero)',
        {"stages": stages, "zero": 1000},
    )
    assert [tuple(row.values()) for row in rows] == [
        ("page", 0, 10, ""),
        ("device", 10, 30, "page"),
        ("head", 10, 20, "page"),
        ("plans", 30, 40, "device"),
    ]


def test_javascript_keeps_what_fails_as_well() -> None:
    kept = run_node(
        """
        const { stages, timed } = await import(web + "timeline.js");
        const said = await timed("well", [], () => 5);
        const failed = await timed("badly", ["well"], () => { throw new Error("no"); }).catch((error) => error.message);
        return { said, failed, stages };
        """,
        None,
    )
    assert (kept["said"], kept["failed"]) == (5, "no")
    well, badly = kept["stages"]
    assert (well["stage"], badly["stage"], badly["needs"]) == ("well", "badly", ["well"])
    assert 1e12 < well["from"] <= well["to"] <= badly["from"] <= badly["to"]


def test_the_chart_has_a_bar_for_each_stage_where_it_ran() -> None:
    rows = [
        {"stage": "page", "from_ms": 0, "to_ms": 500, "waited_for": ""},
        {"stage": "plans", "from_ms": 500, "to_ms": 501, "waited_for": "page"},
        {"stage": "all of it", "from_ms": 0, "to_ms": 1000, "waited_for": "page"},
    ]
    title, *lines = gantt(rows, width=10).splitlines()
    assert title.split() == ["stage", "from", "to", "ms", "|", "|", "waited", "for"]
    assert [line.split("|")[1] for line in lines] == ["#####     ", "     #    ", "##########"]
    assert [line.split("|")[2].strip() for line in lines] == ["", "page", "page"]
    assert lines[1].split("|")[0].split() == ["plans", "500", "501", "1"]
    assert gantt([]) == ""
