"""The roofline chart (Williams, Waterman and Patterson 2009) of the bench of kernels: what each kernel does a second
over the operations it has for a byte, under the ceilings that the same page measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
COLOURS = {"decode": "#4c78a8", "prefill": "#f58518", "vision": "#54a24b"}
NAMED, MOST_NAMED = 0.02, 10
"""Kernels that take a smaller share of their run, or are not among so many of them, are dots without a name."""
HEIGHT = 8.5
"""Points of a label."""


def draw(rows: list[Row], file: Path) -> None:
    """An SVG: a panel a model, a point a kernel, in both axes' logarithms. Nothing without kernels."""
    kernels = [row for row in rows if row.get("row") == "kernel" and row["count"] and row["flops"] and row["bytes"]]
    models = list(dict.fromkeys(row["model"] for row in kernels))
    if not models:
        return
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "roofline", "font.size": 9})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(models), 1, figsize=(10, 5 * len(models)), squeeze=False)
    margin = 0.5 / (5 * len(models))
    figure.subplots_adjust(left=0.07, right=0.98, bottom=margin, top=1 - margin / 1.5, hspace=0.22)
    bandwidths, flops = _ceilings(rows)
    for panel, model in zip(panels[:, 0], models, strict=True):
        some = [row for row in kernels if row["model"] == model]
        points = [(row["flops"] / row["bytes"], row["GFLOPs"]) for row in some]
        low, high = _around([x for x, _ in points], 3)
        _roofs(panel, low, high, bandwidths, flops)
        for phase, colour in COLOURS.items():
            own = [point for point, row in zip(points, some, strict=True) if row["phase"] == phase]
            if own:
                panel.plot(*zip(*own, strict=True), "o", color=colour, markersize=5, label=phase)
        panel.set(
            xscale="log", yscale="log", title=model, xlabel="operations a byte", ylabel="GFLOP/s", xlim=(low, high)
        )
        tops = [y for _, y in points] + ([flops] if flops else [])
        panel.set_ylim(_around([y for _, y in points], 3)[0], max(tops) * 3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(loc="upper left")
        _labels(panel, some)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _ceilings(rows: list[Row]) -> tuple[list[tuple[str, float]], float]:
    """((what, GB/s) of memory and of the cache, GFLOP/s): the largest range and the fastest one."""
    reads = [row for row in rows if row.get("ceiling") == "read" and "GBps" in row]
    rates = [row["GFLOPs"] for row in rows if row.get("ceiling") == "arithmetic" and "GFLOPs" in row]
    found = []
    if reads:
        again = [row for row in reads if "ranges" not in row]
        memory, cache = max(again, key=lambda row: row["bytes"]), max(again, key=lambda row: row["GBps"])
        found.append(("memory", memory["GBps"]))
        if cache is not memory:
            found.append((f"{cache['bytes'] / 1e6:.0f} MB again and again", cache["GBps"]))
    return found, max(rates, default=0.0)


def _roofs(panel: Any, low: float, high: float, bandwidths: Sequence[tuple[str, float]], flops: float) -> None:
    for (what, rate), style in zip(bandwidths, ("-", "--"), strict=False):
        end = min(high, flops / rate) if flops else high
        if end > low:
            panel.plot([low, end], [low * rate, end * rate], style, color="#777777", label=f"{what}: {rate:,.0f} GB/s")
    if flops and bandwidths:
        start = max(low, flops / bandwidths[0][1])
        panel.plot([start, high], [flops, flops], "-", color="#b0413e", label=f"arithmetic: {flops:,.0f} GFLOP/s")


def _around(values: Sequence[float], factor: float) -> tuple[float, float]:
    return min(values) / factor, max(values) * factor


def named(rows: Sequence[Row]) -> list[tuple[float, float, str]]:
    """(operations a byte, GFLOP/s, label) of the kernels that matter to their run; one label where several runs have
    the same kernel at about the same place."""
    runs: dict[Any, list[Row]] = {}
    for row in rows:
        runs.setdefault((row["phase"], row["context"]), []).append(row)
    found: dict[Any, tuple[float, float, str]] = {}
    for run in runs.values():
        total = sum(map(_time, run))
        for row in sorted(run, key=_time, reverse=True)[:MOST_NAMED]:
            if _time(row) >= NAMED * total:
                label = _label(row)
                point = row["flops"] / row["bytes"], row["GFLOPs"]
                found.setdefault((row["phase"], label.partition(",")[0]), (*point, label))
    return list(found.values())


def _time(row: Row) -> float:
    return float(row["count"] * row["us"])


def _label(row: Row) -> str:
    attention = row["kernel"].startswith("attention")
    name = "attention" if attention else re.sub(r"^layers\.\d+\.|_out$", "", row["operation"])
    at = f" at {row['context']}" if attention and row["context"] else ""
    return f"{name}{at}" + (f", {row['share']:.0%}" if row.get("share") is not None else "")


def _labels(panel: Any, rows: Sequence[Row]) -> None:
    """Names beside the points, moved up or down until none covers another; a line leads to one that was moved far."""
    points = named(rows)
    scale = panel.figure.dpi / 72
    places = [(*panel.transData.transform((x, y)), text) for x, y, text in points]
    taken: list[tuple[float, float, float, float]] = []
    step = HEIGHT * scale * 1.25
    for (x, y, text), point in sorted(zip(places, points, strict=True), key=lambda each: -each[0][1]):
        wide = len(text) * HEIGHT * scale * 0.55
        for number in range(60):
            shift = (number + 1) // 2 * (step / 2) * (1 if number % 2 else -1)
            box = (x + 7 * scale, y + shift - step / 2, x + 7 * scale + wide, y + shift + step / 2)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                break
        taken.append(box)
        far = abs(shift) > step
        panel.annotate(
            text, point[:2], xytext=(8, shift / scale), textcoords="offset points", fontsize=HEIGHT - 1, va="center",
            arrowprops={"arrowstyle": "-", "color": "#aaaaaa", "linewidth": 0.6} if far else None,
        )  # fmt: skip
