"""What the cloud's tokens cost, and what a text that the device wrote saved of it."""

from __future__ import annotations

from dataclasses import dataclass

from ..routing.telemetry import Record

DEFAULT_CURRENCY = "USD"


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens in the cloud."""

    prompt: float = 0.0
    completion: float = 0.0
    currency: str = DEFAULT_CURRENCY

    def saved(self, record: Record) -> float:
        """What the cloud would have cost for the device's share. Where the cloud wrote too it read the prompt, so only
        the device's tokens are saved."""
        prompt = 0 if record["cloud_tokens"] or not record["device_tokens"] else record["prompt_tokens"]
        return (prompt * self.prompt + record["device_tokens"] * self.completion) / 1e6
