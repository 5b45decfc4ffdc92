"""How large the pool's slabs must be: what the chosen models need at full context, cut to the budget."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..compiler.memory import aligned
from ..errors import OutOfMemory

LEAST_CONTEXT = 256
"""Fewer positions than this are of no use for a prompt and an answer."""


@dataclass(frozen=True)
class Need:
    """What the models ask for, in bytes.

    ``weights``: each model's packed size; ``largest_block``: of any of them;
    ``activations``: the largest plan's peak; ``per_position``: KV cache and RoPE table of one position, in all layers;
    ``position_in_layer``: the widest single cache of one position; ``layers``: how many caches there are.
    """

    weights: tuple[int, ...]
    largest_block: int
    activations: int
    per_position: int = 0
    position_in_layer: int = 0
    layers: int = 0
    full_context: int = 0


@dataclass(frozen=True)
class Sizing:
    """Bytes of the slabs of each role, and the positions that the cache has."""

    weights: int
    workspace: int
    context: int


def _in_slabs(nbytes: int, piece: int, largest_buffer: int) -> int:
    """Bytes to take so that pieces up to ``piece`` bytes fit although none may straddle two buffers."""
    slabs = ceil(nbytes / largest_buffer)
    return nbytes if slabs < 2 else nbytes + piece * slabs


def size_pool(budget: int, need: Need, max_buffer: int, max_binding: int) -> Sizing:
    """The sizes of the slabs within ``budget`` bytes.

    Full context first; else as much of it as there is room for; else the models take turns in one model's room.
    Raises ``OutOfMemory`` with the figures when not even the largest model fits.
    """
    context = need.full_context
    if need.position_in_layer:
        context = min(context, max_binding // need.position_in_layer)
    least = min(context, LEAST_CONTEXT)
    for weights in dict.fromkeys((sum(need.weights), max(need.weights, default=0))):
        weights = _in_slabs(aligned(weights), need.largest_block, max_buffer)
        wanted = context
        while True:
            workspace = _workspace(need, wanted, max_buffer)
            if weights + workspace <= budget:
                return Sizing(weights, workspace, wanted)
            room = budget - weights - _workspace(need, 0, max_buffer)
            # Slack between slabs makes the first estimate a little high now and then.
            fit = min(wanted - 1, room // need.per_position) if need.per_position else 0
            if fit < least or not need.per_position:
                break
            wanted = fit
    least_bytes = max(need.weights, default=0) + _workspace(need, least, max_buffer)
    raise OutOfMemory(
        f"The models need at least {least_bytes} bytes of GPU memory and the pool's budget is {budget}; "
        "give it more MiB or choose a smaller model.",
        need=least_bytes,
        budget=budget,
    )


def _workspace(need: Need, context: int, max_buffer: int) -> int:
    # Each layer's cache and the table are regions of their own, rounded up to 256 bytes.
    nbytes = aligned(need.activations) + context * need.per_position + (need.layers + 1) * 256
    piece = max(need.activations, context * need.position_in_layer)
    return _in_slabs(aligned(nbytes), aligned(piece), max_buffer)
