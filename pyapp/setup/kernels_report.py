"""What the bench of kernels measured, for people: tables for the terminal and the docs, and a roofline chart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .keeping import keep_report
from .roofline import draw

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]
BEST = 5
"""Shapes that are shown of each kernel, beside the present one; the rows have all of them."""


def report(title: str, rows: list[Row], docs: Path, *, keep: bool) -> None:
    """Prints the tables of the rows of the bench of kernels among ``rows``; with ``keep`` writes them, the tables and
    the chart into ``docs``: figures of an emulated GPU are not worth keeping."""
    ours = [row for row in rows if row.get("bench") == "kernels"]
    text = markdown(ours)
    print(text)
    if not keep:
        return
    chart = "![Kernels under the measured ceilings](roofline.svg)"
    page = f"# Kernels\n\n{title}. How to read it: `performance.md`.\n\n{text}\n\n{chart}\n"
    keep_report(docs, "kernels", page, rows, ("roofline.svg", lambda file: draw(ours, file)))


def markdown(rows: list[Row]) -> str:
    """The tables, each with a heading; what failed is listed at the end."""
    good = [row for row in rows if "error" not in row]
    parts = [
        _section("Ceilings", _of(good, "ceiling"), CEILINGS),
        _section("Whole runs", _of(good, "step"), STEPS),
        *(_section(f"Kernels of {name}", some, KERNELS) for name, some in _by_run(_of(good, "kernel"))),
        _section("Cost of each fusion", _of(good, "fusion"), FUSIONS),
        _section("Products of one token, by shape", _best(_of(good, "shape"), "model", "product"), SHAPES),
        _section("A step in the fastest shapes", _of(good, "tuned"), TUNED),
        _section("Attention of one token, by shape", _best(_of(good, "attention"), "model", "context"), ATTENTION),
        _section("Products of a chunk, by tile", _best(_of(good, "tile"), "model", "operation"), TILES),
    ]
    left_out = [f"{row['model']}: {row['shapes']} shapes of {row['what']}" for row in _of(good, "left out")]
    wrong = [_failure(row) for row in rows if "error" in row]
    parts += [_list("Left out for want of time", left_out), _list("Failed", wrong)]
    return "\n\n".join(part for part in parts if part)


def _failure(row: Row) -> str:
    about = " ".join(str(row[name]) for name in ("model", "ceiling", "what") if name in row)
    return f"{about}: {row['error']}" if about else str(row["error"])


def _list(name: str, items: Sequence[str]) -> str:
    return "\n".join([f"### {name}", "", *(f"- {item}" for item in items)]) if items else ""


def _of(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row.get("row") == kind]


def _section(name: str, rows: Sequence[Row], columns: Sequence[Column]) -> str:
    if not rows:
        return ""
    head = "| " + " | ".join(title for title, _ in columns) + " |"
    lines = ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows]
    return "\n".join([f"### {name}", "", head, "|" + "---|" * len(columns), *lines])


def _by_run(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Rows of kernels by model, phase and context; those that take most of a run first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        place = f" at {row['context']}" if row.get("context") else ""
        found.setdefault(f"{row['model']}, {row['phase']}{place}", []).append(row)
    return [(name, sorted(some, key=lambda row: -row["count"] * row["us"])) for name, some in found.items()]


def _best(rows: Iterable[Row], *keys: str) -> list[Row]:
    """Of the rows with the same ``keys``, the present one and the fastest."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    out = []
    for some in found.values():
        ranked = sorted(some, key=lambda row: float(row["step_us" if "step_us" in row else "us"]))
        out += [row for number, row in enumerate(ranked) if number < BEST or row["present"]]
    return out


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _number(name: str, title: str = "") -> Column:
    return title or name, lambda row: _figure(row.get(name))


def _word(name: str, title: str = "") -> Column:
    return title or name, lambda row: str(row.get(name) if row.get(name) is not None else "")


def _mega(name: str, title: str) -> Column:
    return title, lambda row: _figure(row[name] / 1e6 if row.get(name) is not None else None)


def _about(row: Row) -> str:
    parts = (("pipelines", "{} pipelines"), ("via", "{}"), ("ranges", "{} ranges in turn"))
    return " ".join(text.format(row[name]) for name, text in parts if name in row)


_CLOCK = _word("clock")
_PRESENT: Column = ("present", lambda row: "yes" if row["present"] else "")
CEILINGS: tuple[Column, ...] = (
    _word("ceiling"), ("of", _about), _mega("bytes", "MB"), _number("us"), _number("us_min", "least us"), _CLOCK,
    _number("wall_us", "wall us"), _number("GBps", "GB/s"), _number("GFLOPs", "GFLOP/s"),
)  # fmt: skip
STEPS: tuple[Column, ...] = (
    _word("model"), _word("phase"), _word("context"), _number("us"), _number("us_min", "least us"), _CLOCK,
    _number("wall_us", "wall us"), _number("kernels_us", "sum of kernels us"), _word("dispatches"),
    _mega("bytes", "MB"), _number("GBps", "GB/s"), ("stopped", lambda row: "yes" if row.get("stopped") else ""),
)  # fmt: skip
KERNELS: tuple[Column, ...] = (
    _word("operation"), _word("kernel"), ("workgroups", lambda row: "x".join(map(str, row["workgroups"]))),
    _word("workgroup", "size"), _word("count"), _number("us"), _number("us_min", "least us"),
    _number("us_repeated", "repeated us"), _number("us_in_place", "in place us"), _CLOCK, _mega("bytes", "MB"),
    _number("GBps", "GB/s"), _number("GFLOPs", "GFLOP/s"), ("share", lambda row: _share(row.get("share"))),
    _word("bound"), ("of read", lambda row: _share(row.get("of_read"))),
)  # fmt: skip
FUSIONS: tuple[Column, ...] = (
    _word("model"), _word("without"), _word("context"), _number("us"), _number("fused_us", "fused us"),
    _number("cost_us", "cost us"), _CLOCK, _word("dispatches"), _word("fused_dispatches", "fused dispatches"),
    _mega("bytes", "MB"), _mega("fused_bytes", "fused MB"), _word("stopped"),
)  # fmt: skip
SHAPES: tuple[Column, ...] = (
    _word("model"), _word("product"), _word("lanes"), _word("rows"), _word("workgroup"), _number("us"),
    _number("us_min", "least us"), _CLOCK, _number("GBps", "GB/s"), _PRESENT,
)  # fmt: skip
TUNED: tuple[Column, ...] = (
    _word("model"), _word("context"), _number("us"), _number("present_us", "present us"), _CLOCK,
    _number("difference", "largest difference of a logit"), _number("largest", "largest logit"),
)  # fmt: skip
ATTENTION: tuple[Column, ...] = (
    _word("model"), _word("context"), _word("splits"), _word("least"), _word("workgroup"), _word("chunk"),
    _number("us"),
    _number("step_us", "step us"), _CLOCK, _PRESENT,
)  # fmt: skip
TILES: tuple[Column, ...] = (
    _word("model"), _word("operation"), _word("tile_n"), _word("tile_m"), _word("rows"), _word("tokens"),
    _word("workgroup"), _number("us"), _CLOCK, _number("GFLOPs", "GFLOP/s"), _PRESENT,
)  # fmt: skip
