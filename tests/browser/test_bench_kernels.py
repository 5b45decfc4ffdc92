"""The bench of kernels in its page, in short: with the kernels of a GPU, on the software adapter."""

from __future__ import annotations

from typing import Any

from tests.browser.bench_page import bench
from tests.browser.conftest import Open
from tests.browser.door import DISGUISE

KINDS = {"ceiling", "kernel", "step", "fusion", "shape", "tuned", "attention", "tile"}
LOGITS = 1e-4
"""Two shapes may differ by the order of a sum."""


def check(row: dict[str, Any]) -> None:
    """What holds of every row of a kernel, whatever it takes."""
    assert row["us"] > 0
    assert row["us_repeated"] > 0
    assert row["share"] > 0
    assert row["bound"] in ("memory", "arithmetic", "dispatch")
    assert row["bytes"] > 0
    assert row["workgroup"] > 0
    assert row["of_read"] > 0


async def test_every_kind_of_row_comes_and_other_shapes_are_right(open_page: Open, site: str) -> None:
    rows = await bench(
        open_page, site, script=DISGUISE, which="kernels", adapter="auto", models="tiny,least", vision="none",
        contexts="16", reps="1", submit="1", seconds="1", pool="2", room="8",
    )  # fmt: skip
    assert (rows[0]["software"], rows[-1]) == (False, {"done": 1})
    # A model that does not fit says so, and the others are measured all the same.
    (refused,) = [row for row in rows if "error" in row]
    assert refused["model"] == "tiny"
    assert "the pool's budget is 2097152" in refused["error"]
    found: dict[str, list[dict[str, Any]]] = {}
    for row in (row for row in rows[1:-1] if row is not refused):
        found.setdefault(row["row"], []).append(row)
    assert set(found) >= KINDS
    assert {row["ceiling"] for row in found["ceiling"]} == {"upload", "read", "dispatch", "arithmetic", "round trip"}
    for row in found["kernel"]:
        check(row)
    # This adapter has a clock of its own. A noisy machine may make a single submit of many no longer than one of few.
    timed = [row for kind in KINDS for row in found[kind] if row.get("ceiling") not in ("upload", "round trip")]
    assert {row["clock"] for row in timed} <= {"gpu", "wall"}
    assert sum(row["clock"] == "gpu" for row in timed) > len(timed) / 2
    assert [row["ranges"] for row in found["ceiling"] if "ranges" in row] == [2]  # of 4 MiB in 8
    assert all(row["wall_us"] > 0 for row in found["step"] if row["clock"] == "gpu")
    assert {(row["phase"], row["context"]) for row in found["step"]} == {("decode", 16), ("prefill", 0)}
    assert not any(row["stopped"] for row in found["step"] + found["fusion"])
    kinds = {row["kernel"].split()[0] for row in found["kernel"]}
    assert {"matvec", "matmul", "attention_split"} <= kinds
    nothing, *each, everything = [row for row in found["fusion"] if row["context"] == 16]
    assert nothing["dispatches"] == nothing["fused_dispatches"]
    assert all(everything["dispatches"] > row["dispatches"] > nothing["dispatches"] for row in each)
    # Of each product the present shape, and others; a step in the fastest of them says the same.
    products = {row["product"] for row in found["shape"]}
    assert {row["product"] for row in found["shape"] if row["present"]} == products
    assert sum(not row["present"] for row in found["shape"]) >= len(products)
    (tuned,) = found["tuned"]
    assert tuned["difference"] <= LOGITS * tuned["largest"]
    assert tuned["largest"] > 0
