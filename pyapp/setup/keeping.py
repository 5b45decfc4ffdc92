"""Where a bench's figures of a real GPU are kept: its rows, its tables and its chart, below ``docs/``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def keep_report(
    docs: Path, name: str, text: str, rows: list[dict[str, Any]], chart: tuple[str, Callable[[Path], None]]
) -> None:
    """Writes ``results/<name>.jsonl``, ``<name>.md`` with ``text``, and the chart (its file's name, what draws it)."""
    results = docs / "results" / f"{name}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    page, (file, draw) = docs / f"{name}.md", chart
    page.write_text(text, encoding="utf-8")
    draw(docs / file)
    print(f"Written: {results}, {page}, {docs / file}")
