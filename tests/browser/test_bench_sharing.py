"""The bench of sharing in its page: real engines on the software adapter, in short."""

from __future__ import annotations

from typing import Any

from tests.browser.bench_page import bench
from tests.browser.conftest import Open
from tests.browser.door import MOUNT

SETUPS = ["held", "roomy", "tight", "small"]
TINY = f"{MOUNT}tiny/tiny-qwen2-Q4_1-tied.gguf"


def check(row: dict[str, Any]) -> None:
    """What holds of every setup that ran."""
    assert "error" not in row, row["error"]
    assert (row["failures"], row["failed"]) == (0, [])
    assert row["peak"] <= row["budget"] + (1 << 20)  # the step state and the rings come on top of the pool
    assert row["tokens_per_s"] > 0
    assert row["first_token_ms"] > row["to_language_in_round_ms"] > 0
    for model in ("vision", "language"):
        assert row[f"to_{model}_p95_ms"] >= row[f"to_{model}_ms"] > 0
        assert row[f"{model}_rate"] > 0
        assert (row[f"to_{model}_ratio"] is None) == (row[f"to_{model}_moved"] == 0)


async def test_two_models_of_made_up_weights_in_every_budget(open_page: Open, site: str) -> None:
    rows = await bench(
        open_page, site, which="sharing", pairs="synthetic", shapes="tiny", rounds="1", tokens="6", prompt="8"
    )
    assert rows[0]["software"] is True
    assert rows[-1] == {"done": 1}
    held, roomy, tight, small = rows[1:-1]
    assert [row["setup"] for row in rows[1:-1]] == SETUPS
    for row in rows[1:-1]:
        check(row)
    assert held["moved_per_round"] == roomy["moved_per_round"] == 0
    assert tight["to_vision_moved"] == tight["to_language_moved"] == tight["overlap"] > 0
    assert tight["moved_per_round"] == 2 * tight["overlap"]
    assert small["streamed"] > 0
    assert small["moved_per_round"] > small["streamed"]
    assert held["peak"] > roomy["peak"] > tight["peak"] > small["peak"]


async def test_a_real_file_and_what_does_not_fit(open_page: Open, site: str) -> None:
    rows = await bench(
        open_page,
        site,
        which="sharing",
        pairs="real",
        budgets="tight,small",
        model=TINY,
        rounds="1",
        tokens="6",
        prompt="8",
    )
    tight, small = rows[1:-1]
    check(tight)
    assert tight["moved_per_round"] == 2 * tight["overlap"]
    # 60 % of a model of some 100 kB have no room for the vision model's largest block: it says so, with figures.
    assert "need at least" in small["refused"]


async def test_a_wrong_option_ends_the_page_too(open_page: Open, site: str) -> None:
    rows = await bench(open_page, site, which="sharing", rounds="none")
    assert rows == [
        {"bench": "sharing", "error": "rounds is 'none'; it must be a whole number from 1 on."},
        {"done": 1},
    ]
