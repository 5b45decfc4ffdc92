"""What many visits come to: availability, how they ended, and how long faults and take-overs took."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .judge import Outcome

Row = dict[str, Any]
QUANTILES = (50, 95, 99)


def percentile(values: Sequence[float], share: int) -> float | None:
    """The nearest-rank percentile: the least value that ``share`` % of all do not exceed. None of nothing."""
    return sorted(values)[max(0, math.ceil(share / 100 * len(values)) - 1)] if values else None


def available(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Visits that ended in a text, of those that may ask the cloud while the gateway is up."""
    served = [outcome for outcome in outcomes if outcome.visit.allows_cloud and outcome.visit.cloud.cured]
    return sum(outcome.ended == "text" for outcome in served), len(served)


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each fault, and one for the take-overs; times in ms."""
    by_fault: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        for side, fault in (("device", outcome.visit.device), ("cloud", outcome.visit.cloud)):
            if fault.name != "none":
                by_fault[f"{side}: {fault.name}"].append(outcome)
    found = [
        {
            "fault": name,
            "visits": len(met),
            "endings": dict(sorted(Counter(outcome.ended for outcome in met).items())),
            "wrong": sum(bool(outcome.wrong) for outcome in met),
            "detected_ms": _quantiles([outcome.detected for outcome in met]),
        }
        for name, met in sorted(by_fault.items())
    ]
    return [*found, {"take_over_ms": _quantiles([outcome.taken_over for outcome in outcomes])}]


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Two sentences and a table."""
    texts, asked = available(outcomes)
    *faults, last = rows(outcomes)
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    lines = [
        f"{len(outcomes)} visits, {wrong} of them not as they must be. With the gateway up {texts} of {asked} ended "
        f"in a text. Take-over, from the detected fault to the first text of the cloud, without the gateway's own time "
        f"({last['take_over_ms']['count']} of them): {_cell(last['take_over_ms'])} ms (p50, p95, p99).",
        "",
        "| fault | visits | endings | detected after, ms (p50, p95, p99) |",
        "|---|---|---|---|",
    ]
    for row in faults:
        endings = ", ".join(f"{ending} {count}" for ending, count in row["endings"].items())
        lines.append(f"| {row['fault']} | {row['visits']} | {endings} | {_cell(row['detected_ms'])} |")
    return "\n".join(lines)


def keep(outcomes: Sequence[Outcome], adapter: str, seed: int, results: Path) -> Path:
    """Writes the rows as ``visits.jsonl`` into ``results``; returns the file."""
    results.mkdir(parents=True, exist_ok=True)
    texts, asked = available(outcomes)
    first = {
        "bench": "visits",
        "adapter": adapter,
        "visits": len(outcomes),
        "seed": seed,
        "asked": asked,
        "texts": texts,
    }
    file = results / "visits.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [first, *rows(outcomes)]), encoding="utf-8")
    return file


def _quantiles(values: Sequence[float | None]) -> Row:
    known = [value for value in values if value is not None]
    found = {f"p{share}": percentile(known, share) for share in QUANTILES}
    return {"count": len(known), **{name: value and round(value, 1) for name, value in found.items()}}


def _cell(found: Row) -> str:
    return ", ".join(f"{found[f'p{share}']:.0f}" for share in QUANTILES) if found["count"] else "–"
