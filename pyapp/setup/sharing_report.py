"""What the bench of sharing measured, for people: a table for the terminal and the docs, and a chart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .keeping import keep_report

Row = dict[str, Any]
MB = 1e6
COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("models", lambda row: row["pair"]),
    ("setup", lambda row: row["setup"]),
    ("budget MB", lambda row: _figure(row["budget"] / MB)),
    ("peak MB", lambda row: _figure(row["peak"] / MB)),
    ("context", lambda row: str(row["context"])),
    ("cache", lambda row: row["cache"]),
    ("moved a round MB", lambda row: _figure(row["moved_per_round"] / MB)),
    ("to vision ms, p95", lambda row: _pair(row, "to_vision_ms", "to_vision_p95_ms")),
    ("to language ms, p95", lambda row: _pair(row, "to_language_ms", "to_language_p95_ms")),
    ("time over bytes/rate", lambda row: _pair(row, "to_vision_ratio", "to_language_ratio")),
    ("first token ms", lambda row: _figure(row["first_token_ms"])),
    ("tokens/s", lambda row: _figure(row["tokens_per_s"])),
    ("failures", lambda row: str(row["failures"])),
)
"""Titles, and what stands below them in the row of a setup that ran."""


def report(title: str, rows: list[Row], docs: Path, *, keep: bool) -> None:
    """Prints the table of the rows of sharing among ``rows``; with ``keep`` writes them, the table and the chart into
    ``docs``: figures of an emulated GPU are not worth keeping."""
    shared = [row for row in rows if row.get("bench") == "sharing"]
    text = markdown(shared)
    print(text)
    if not keep:
        return
    chart = "![Bytes and switches by setup](sharing.svg)"
    page = f"# Sharing\n\n{title}. How to read it: `performance.md`.\n\n{text}\n\n{chart}\n"
    drawn = [row for row in shared if "peak" in row or "refused" in row]
    keep_report(docs, "sharing", page, rows, ("sharing.svg", lambda file: draw(drawn, file)))


def markdown(rows: list[Row]) -> str:
    """A table with a line for each setup; one that was refused, or failed, says why below it."""
    lines = ["| " + " | ".join(name for name, _ in COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    notes = []
    for row in rows:
        if "peak" in row:
            lines.append("| " + " | ".join(cell(row) for _, cell in COLUMNS) + " |")
            continue
        label, word = (
            f"{row.get('pair', '')} {row.get('setup', '')}".strip(),
            "refused" if "refused" in row else "failed",
        )
        cells = [
            row.get("pair", ""),
            row.get("setup", ""),
            _figure(row["budget"] / MB) if "budget" in row else "",
            word,
        ]
        lines.append("| " + " | ".join(cells + [""] * (len(COLUMNS) - len(cells))) + " |")
        notes.append(f"{label}: {row.get('refused') or row.get('error')}")
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def draw(rows: list[Row], file: Path) -> None:
    """An SVG: for each pair and setup, peak GPU bytes (hatched where it was refused: what it would take), and the time
    of a switch either way."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "sharing", "font.size": 9})
    from matplotlib import pyplot

    labels = [f"{row['pair']}\n{row['setup']}" for row in rows]
    places = list(range(len(rows)))
    ran = [(at, row) for at, row in zip(places, rows, strict=True) if "peak" in row]
    refused = [(at, row) for at, row in zip(places, rows, strict=True) if "peak" not in row]
    figure, (memory, time) = pyplot.subplots(1, 2, figsize=(12, 3.6), layout="constrained")
    memory.bar([at for at, _ in ran], [row["peak"] / MB for _, row in ran], color="#4c78a8", label="peak")
    if refused:
        needs = [row["need"] / MB for _, row in refused]
        memory.bar([at for at, _ in refused], needs, fill=False, hatch="//", edgecolor="#e45756", label="refused: need")
    memory.plot(places, [row["budget"] / MB for row in rows], "k_", markersize=22, label="budget")
    memory.set_ylabel("GPU memory, MB")
    memory.legend()
    for shift, model, colour in ((-0.2, "vision", "#f58518"), (0.2, "language", "#54a24b")):
        heights = [row[f"to_{model}_ms"] for _, row in ran]
        above = [max(0.0, row[f"to_{model}_p95_ms"] - row[f"to_{model}_ms"]) for _, row in ran]
        spread = [[0.0] * len(ran), above]
        time.bar([at + shift for at, _ in ran], heights, 0.4, yerr=spread, color=colour, label=f"to {model}", capsize=2)
    time.set_ylabel("switch, ms (median; bar: p95)")
    time.set_yscale("symlog", linthresh=1)
    time.legend()
    for axes in (memory, time):
        axes.set_xticks(places, labels)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _pair(row: Row, one: str, other: str) -> str:
    return f"{_figure(row[one])}, {_figure(row[other])}"
