"""What the bench of kernels can be asked for: the query of ``bench.html``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BadArgument
from .options import count_of, names_of
from .synthetic import SHAPES

PARTS = ("ceilings", "kernels", "shapes", "fusions")
COUNTS = ("reps", "submit", "seconds", "pool", "room")


@dataclass(frozen=True)
class KernelOptions:
    """``models`` are names of ``synthetic.SHAPES`` (weights are made up), of models of the site, or URLs; ``vision`` of
    the site's, or a URL; ``none`` is none. ``contexts`` are the positions at which a step is measured, ``reps`` how
    often everything is, in submits of about ``submit`` ms. The sweep of shapes takes about so many ``seconds``, for all
    models together. ``pool`` and ``room`` are in MiB: what a model's engine may take, and what the ceilings are
    measured in.
    """

    adapter: str = "auto"
    parts: tuple[str, ...] = PARTS
    models: tuple[str, ...] = ("smollm2-135m", "qwen2.5-1.5b")
    vision: str | None = "efficientnet-lite0"
    contexts: tuple[int, ...] = (128, 4096)
    reps: int = 3
    submit: int = 40
    seconds: int = 60
    pool: int = 2048
    room: int = 1024

    @classmethod
    def of(cls, query: Mapping[str, str]) -> KernelOptions:
        """Reads a query; names it does not know are for others. Raises ``BadArgument``."""
        vision = query.get("vision", cls.vision)
        contexts = [each for each in query.get("contexts", "").split(",") if each]
        made = cls(
            adapter=query.get("adapter", cls.adapter),
            parts=names_of(query, "parts", PARTS),
            models=_models(query.get("models"), cls.models),
            vision=None if vision == "none" else vision,
            contexts=tuple(count_of({"contexts": each}, "contexts", 1) for each in contexts) or cls.contexts,
            **{name: count_of(query, name, getattr(cls, name)) for name in COUNTS},
        )
        if made.submit > 100:
            raise BadArgument(f"submit is {made.submit} ms; a submit may take at most 100.", argument="submit")
        return made

    @property
    def submit_seconds(self) -> float:
        return self.submit / 1000

    @property
    def longest_context(self) -> int:
        return max(self.contexts)


def _models(text: str | None, fallback: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(each for each in (text or "").split(",") if each)
    return () if names == ("none",) else names or fallback


def is_made_up(model: str) -> bool:
    """Whether a model's weights are made up here."""
    return model in SHAPES
