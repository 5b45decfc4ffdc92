"""Where the models' bytes went, decision by decision: what the engine did, and when the cloud was preferred to it.

Each is ``{"when": ms since 1970, "model": str, "need": bytes, "room": bytes, "action": str}``; the action is
"resident", "stream" or "cloud".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

MOST = 32
MIB = 1 << 20


class Decisions:
    """The last ``MOST`` of them, over all engines that the client has had."""

    def __init__(self, cloud_below: float) -> None:
        self._cloud_below = cloud_below
        self._kept: list[dict[str, Any]] = []
        self._engine: Any = None
        self.why_cloud: str | None = None
        """The sentence for why the cloud writes although the device could; None where it need not."""

    def listed(self) -> list[dict[str, Any]]:
        """Oldest first. A copy."""
        current = [] if self._engine is None else self._engine.decisions
        return sorted((dict(each) for each in (*self._kept, *current)), key=lambda each: each["when"])[-MOST:]

    def begin(self, engine: Any, *, has_cloud: bool) -> None:
        """A new engine: from now on its decisions count too. ``has_cloud``: whether the cloud may take its texts."""
        self._engine = engine
        self.why_cloud = None
        if has_cloud and engine.room < self._cloud_below:
            made = _language(engine)
            self.why_cloud = (
                f"The language model needs {_mib(made['need'])} MiB of GPU memory and the pool has room for "
                f"{_mib(made['room'])} MiB ({engine.room:.0%}, less than {self._cloud_below:.0%}), so the cloud "
                "writes, and the device when the cloud fails."
            )
            self._kept.append({**made, "when": int(time.time() * 1000), "action": "cloud"})

    def end(self) -> None:
        """The engine is gone; what it decided stays on the list."""
        self._kept, self._engine = self.listed(), None


def _language(engine: Any) -> Mapping[str, Any]:
    """The engine's last decision about its language model: the one whose share of room is ``engine.room``."""
    return min(reversed(engine.decisions), key=lambda each: abs(each["room"] / each["need"] - engine.room))


def _mib(count: int) -> str:
    return f"{count / MIB:,.0f}"
