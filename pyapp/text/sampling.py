"""How the next token is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BadArgument

MAX_SEED = 2**32 - 1
"""The GPU's generator takes 32 bits."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters; ``validated`` checks them.

    max_tokens: at most so many tokens are generated, 1 or more.
    temperature: 0 takes the most probable token each time; higher is freer. 0 to 2, as the cloud has it.
    top_k: draw from the k most probable tokens only; 0 means all.
    top_p: draw from the smallest set of tokens whose probabilities reach p; above 0, 1 means all.
    seed: the same seed gives the same text on the same device; 0 to 2**32 - 1.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def validated(self) -> SamplingParams:
        """The same parameters as int and float (JavaScript has no int). Raises BadArgument for one out of range."""
        return replace(
            self,
            max_tokens=_whole("max_tokens", self.max_tokens, 1, 2**31 - 1),
            temperature=_real("temperature", self.temperature, 0.0, 2.0),
            top_k=_whole("top_k", self.top_k, 0, 2**31 - 1),
            top_p=_real("top_p", self.top_p, 0.0, 1.0, above=True),
            seed=_whole("seed", self.seed, 0, MAX_SEED),
        )


def _whole(name: str, value: Any, low: int, high: int) -> int:
    number = _number(name, value)
    if number != math.floor(number) or not low <= number <= high:
        raise BadArgument(f"{name} is {value!r}: give a whole number from {low} to {high}.", name=name, value=value)
    return int(number)


def _real(name: str, value: Any, low: float, high: float, above: bool = False) -> float:
    number = float(_number(name, value))
    if not low <= number <= high or (above and number == low):
        span = f"above {low:g}, up to {high:g}" if above else f"from {low:g} to {high:g}"
        raise BadArgument(f"{name} is {value!r}: give a number {span}.", name=name, value=value)
    return number


def _number(name: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadArgument(f"{name} is {str(value)[:40]!r}: give a number.", name=name, value=str(value)[:40])
    return value
