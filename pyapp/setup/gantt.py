"""The timeline of a start as text: a line a stage, and when it ran as a bar over the whole."""

from __future__ import annotations

from typing import Any

WIDTH = 60


def gantt(rows: list[dict[str, Any]], width: int = WIDTH) -> str:
    """Rows of ``bench`` "timeline" (stage, from_ms, to_ms, waited_for), in their order. Empty for none."""
    if not rows:
        return ""
    names = max(len(str(row["stage"])) for row in rows)
    end = max(1, *(row["to_ms"] for row in rows))
    lines = [f"{'stage':{names}} {'from':>7} {'to':>7} {'ms':>7} |{'':{width}}| waited for"]
    for row in rows:
        begin = min(width - 1, max(0, row["from_ms"] * width // end))
        length = max(1, -(-row["to_ms"] * width // end) - begin)
        bar = (" " * begin + "#" * length).ljust(width)[:width]
        figures = f"{row['from_ms']:>7} {row['to_ms']:>7} {row['to_ms'] - row['from_ms']:>7}"
        lines.append(f"{row['stage']:{names}} {figures} |{bar}| {row['waited_for']}".rstrip())
    return "\n".join(lines)
