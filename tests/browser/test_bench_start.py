"""The bench of the start: pages in frames, from navigation to first token, and what of it they tell."""

from __future__ import annotations

from math import floor

from tests.browser.conftest import Open
from tests.browser.test_bench_sharing import TINY, bench


async def test_a_first_and_a_cached_visit_and_a_timeline(open_page: Open, site: str) -> None:
    about, first, cached, *timeline, done = await bench(
        open_page, site, which="start", model=TINY, vision="none", pool="64", reps="1"
    )
    assert (about["software"], done) == (True, {"done": 1})
    assert (first["visit"], cached["visit"]) == ("first", "cached 1")
    for visit in (first, cached):
        assert visit["prompt_tokens"] > 10
        assert 0 < visit["ready_ms"] < visit["first_token_ms"]
    stages = {row["stage"]: row for row in timeline}
    assert len(stages) == len(timeline)
    assert {row["bench"] for row in timeline} == {"timeline"}
    assert stages["first token"]["to_ms"] == floor(cached["first_token_ms"] + 0.5)  # JavaScript rounds halves up
    assert [row["from_ms"] for row in timeline] == sorted(row["from_ms"] for row in timeline)
    # Of the page, of JavaScript in the worker, of the browser's own record, and of Python, on one clock:
    names = {
        *("page", "worker script", "snapshot fetched", "Python started", "modules imported", "adapter", "device"),
        *("language head", "plans", "pool", "pipelines", "tokenizer", "language weights ready", "language uploaded"),
        *("recorded", "self-check", "client opened"),
    }
    assert names <= stages.keys()
    inside = [row for name, row in stages.items() if name not in ("page", "client opened", "first token")]
    opened = stages["client opened"]
    assert all(opened["from_ms"] <= row["from_ms"] <= row["to_ms"] <= opened["to_ms"] for row in inside)
    assert {row["waited_for"] for row in timeline} <= {"", *stages}
    assert stages["plans"]["waited_for"] == "vision plan"
    needs = ("device", "language head", "vision head")
    last = stages["vision plan"]["waited_for"]
    assert last in needs
    assert stages[last]["to_ms"] == max(stages[name]["to_ms"] for name in needs)
    # What other processes do has begun before Python is busy beside it.
    assert stages["device"]["from_ms"] <= stages["language head"]["to_ms"]
    assert stages["pipelines"]["from_ms"] <= stages["tokenizer"]["from_ms"]
