"""The two models that share a pool, and the budgets that make them do so in different ways."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from ..engine.language import LanguageModel
from ..engine.loading import size_for
from ..engine.sizing import COMFORTABLE_CONTEXT, STREAMED_CONTEXT
from ..engine.vision import VisionModel
from ..errors import OutOfMemory
from ..gpu.limits import DeviceLimits
from ..weights.store import ensure_model
from . import synthetic
from .options import Options

UNIT = 256
PLENTY = 1 << 50
"""More bytes than any need: what is taken then is the need."""
SMALL = 0.6
"""The share of the language model's weights that the small budget has room for."""
MIB = 1 << 20


def quiet(stage: str, loaded: int, total: int | None = None) -> None:
    """Nobody watches a bench load."""


@dataclass(frozen=True)
class Pair:
    """``limit``: bytes of the budget that the pair is about, if there is one; ``close`` lets go of the models."""

    name: str
    language: LanguageModel
    vision: VisionModel
    limit: int | None
    close: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Needs:
    """Bytes, at a context of 2,048 positions at most. ``language`` and ``vision`` alone, each in a pool of its own;
    ``together`` in one pool, weights apart; ``small``: the workspace, and ``SMALL`` of the language model's weights."""

    language: int
    vision: int
    together: int
    small: int


def needs_of(pair: Pair, limits: DeviceLimits) -> Needs:
    """What a pair takes on a device. Raises ``BadModel`` where the device's bindings are too small for a model."""
    config = pair.language.config
    position = config.kv_bytes_per_token + config.head_dim * 4

    def need(language: LanguageModel | None, vision: VisionModel | None, budget: int = PLENTY) -> tuple[int, int, int]:
        sizing = size_for(limits, budget, language, vision, vision.lowered(limits) if vision else None).sizing
        return sizing.weights, sizing.workspace, sizing.context

    def at_most(context: int, workspace: int, most: int) -> int:
        return workspace - max(0, context - most) * position

    alone, alone_workspace, alone_context = need(pair.language, None)
    looking, looking_workspace, _ = need(None, pair.vision)
    both, workspace, context = need(pair.language, pair.vision)
    room = int(pair.language.layout.total * SMALL) // UNIT * UNIT
    small = at_most(context, workspace, STREAMED_CONTEXT) + room
    with suppress(OutOfMemory):  # which the bench will be told again
        # Where weights are cut, fewer operations fuse, and the activations grow.
        small = need(pair.language, pair.vision, small)[1] + room
    return Needs(
        language=alone + at_most(alone_context, alone_workspace, COMFORTABLE_CONTEXT),
        vision=looking + looking_workspace,
        together=both + at_most(context, workspace, COMFORTABLE_CONTEXT),
        small=small,
    )


def budgets_of(pair: Pair, needs: Needs) -> dict[str, int]:
    """Bytes by setup. Where both do not fit the pair's limit, that is tight, and what both are to be held in for good;
    else tight is a pool in which half of the smaller model overlaps the other one."""
    limit = pair.limit if pair.limit and pair.limit < needs.together else None
    language, vision = pair.language.layout.total, pair.vision.layout.total
    overlap = min(language, vision) // 2 // UNIT * UNIT
    return {
        "held": limit or needs.language + needs.vision,
        "roomy": needs.together,
        "tight": limit or needs.together - overlap,
        "small": needs.small,
    }


async def open_pair(name: str, options: Options, base: str) -> Pair:
    """The pair ``real`` or ``synthetic``; ``base`` is the site's address. Raises: BadWeights, BadModel."""
    return await (_real(options, base) if name == "real" else _synthetic(options))


async def _real(options: Options, base: str) -> Pair:
    def url(model: str) -> str:
        return model if "/" in model else f"{base}models/{model}/manifest.json"

    language = await ensure_model(url(options.model), quiet)
    vision = await ensure_model(url(options.vision), quiet)

    async def close() -> None:
        await language.close()
        await vision.close()

    return Pair("real", await LanguageModel.open(language), await VisionModel.open(vision), None, close)


async def _synthetic(options: Options) -> Pair:
    language = await synthetic.language_model(options.shapes)
    vision = await synthetic.vision_model(options.shapes)

    async def close() -> None:
        for model in (language, vision):
            await model.stored.discard(model.layout)

    return Pair("synthetic", language, vision, options.pool * MIB, close)
