"""What the bench of sharing can be asked for: the query of ``bench.html``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BadArgument
from .synthetic import SHAPES

PAIRS = ("real", "synthetic")
SETUPS = ("held", "roomy", "tight", "small")


@dataclass(frozen=True)
class Options:
    """``budgets`` are setups: ``held`` is both models held for good, the others are leases in a pool of that size.
    ``model`` and ``vision`` are the real pair: names of models of the site, or URLs; ``shapes`` the synthetic one's.
    ``prompt`` and ``tokens`` count the ids that go in and come out of each text; ``pool`` is in MiB. Rounds of a setup
    end early once they took so many ``seconds``, but not before the first.
    """

    adapter: str = "auto"
    pairs: tuple[str, ...] = PAIRS
    budgets: tuple[str, ...] = SETUPS
    rounds: int = 30
    seconds: int = 40
    tokens: int = 32
    prompt: int = 64
    model: str = "smollm2-135m"
    vision: str = "efficientnet-lite0"
    shapes: str = "qwen2.5-1.5b"
    pool: int = 900

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Options:
        """Reads a query; names it does not know are for others. Raises ``BadArgument``."""
        made = cls(
            adapter=query.get("adapter", cls.adapter),
            pairs=names_of(query, "pairs", PAIRS),
            budgets=names_of(query, "budgets", SETUPS),
            model=query.get("model", cls.model),
            vision=query.get("vision", cls.vision),
            shapes=query.get("shapes", cls.shapes),
            **{
                name: count_of(query, name, getattr(cls, name))
                for name in ("rounds", "seconds", "tokens", "prompt", "pool")
            },
        )
        if made.shapes not in SHAPES:
            raise BadArgument(f"shapes is {made.shapes!r}; it must be one of {', '.join(SHAPES)}.", argument="shapes")
        return made


def names_of(query: Mapping[str, str], name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The option ``name``: some of ``known`` with commas between them, all where it names none."""
    wanted = [each for each in query.get(name, "").split(",") if each]
    for each in wanted:
        if each not in known:
            raise BadArgument(f"{name} has {each!r}; known are {', '.join(known)}.", argument=name)
    return tuple(wanted) or known


def count_of(query: Mapping[str, str], name: str, fallback: int) -> int:
    """The option ``name``: a whole number from 1 on."""
    text = query.get(name, str(fallback))
    if not text.isascii() or not text.isdigit() or not int(text):
        raise BadArgument(f"{name} is {text!r}; it must be a whole number from 1 on.", argument=name)
    return int(text)
