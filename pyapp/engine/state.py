"""The step state as the host writes and reads it: the words of ``shaders/state.wgsl``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import BadModel
from ..text.sampling import SamplingParams

RING = 32
MAX_ENDS = 12
HEAD_WORDS = 24
LEAST = 1e-6
"""A smaller temperature or top_p draws as this one does, the most probable token: float32 cannot tell it from 0."""
_IDS = 24


def state_words(
    params: SamplingParams, *, position: int, count: int, step: int = 0, token: int = 0, limit: int, ends: Iterable[int]
) -> np.ndarray:
    """uint32 [24]: everything but the ring of ids. ``ends``: at most 12 token ids that stop the sequence."""
    words = np.zeros(HEAD_WORDS, np.uint32)
    end_ids = list(ends)
    if len(end_ids) > MAX_ENDS:
        raise BadModel(f"The model names {len(end_ids)} end tokens; at most {MAX_ENDS} are supported.")
    words[:8] = (token, position, 0, step, count, limit, len(end_ids), params.seed & 0xFFFFFFFF)
    temperature = max(params.temperature, LEAST) if params.temperature > 0 else 1.0
    words[8:10] = np.array([temperature, max(params.top_p, LEAST)], np.float32).view(np.uint32)
    words[10:12] = (params.top_k, RING)
    words[12 : 12 + len(end_ids)] = end_ids
    return words


@dataclass(frozen=True)
class StepState:
    """A copy of the state as it was after some submit."""

    words: np.ndarray

    @property
    def step(self) -> int:
        return int(self.words[3])

    @property
    def position(self) -> int:
        return int(self.words[1])

    @property
    def token(self) -> int:
        return int(self.words[0])

    @property
    def stopped(self) -> bool:
        return bool(self.words[2])

    def ids_since(self, step: int) -> list[int]:
        """Ids sampled after the first ``step`` ones; at most the ring's 32."""
        return [int(self.words[_IDS + i % RING]) for i in range(step, self.step)]
