"""How large the pool's slabs must be: what the chosen models need at full context, cut to the budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, permutations

from ..errors import OutOfMemory
from ..gpu.allocator import ALIGNMENT, aligned

LEAST_CONTEXT = 256
"""Fewer positions than this are of no use for a prompt and an answer."""


@dataclass(frozen=True)
class Need:
    """What the models ask for, in bytes. ``blocks``: of each model's weights; ``activations``: the largest plan's peak;
    ``per_position``: KV cache and RoPE table of one position, over all layers; ``position_in_layer``: the cache of one
    position in one layer; ``layers``: how many caches there are.
    """

    blocks: tuple[tuple[int, ...], ...]
    activations: int
    per_position: int = 0
    position_in_layer: int = 0
    layers: int = 0
    full_context: int = 0

    @property
    def largest_block(self) -> int:
        return max(map(max, self.blocks))


@dataclass(frozen=True)
class Sizing:
    """Bytes of the slabs of each role, and the positions that the cache has."""

    weights: int
    workspace: int
    context: int


def first_fit(pieces: Iterable[int], largest: int) -> int:
    """Bytes to take in slabs of at most ``largest`` bytes so that ``Pool.take`` finds room for ``pieces`` in this
    order: none straddles two slabs. More bytes than that never make it worse."""
    largest = largest // ALIGNMENT * ALIGNMENT
    free: list[int] = []
    for piece in pieces:
        size = max(ALIGNMENT, aligned(piece))
        index = next((i for i, room in enumerate(free) if room >= size), len(free))
        if index == len(free):
            free.append(largest)
        free[index] -= size
    return len(free) * largest - free[-1] if free else 0


def size_pool(budget: int, need: Need, max_buffer: int, max_binding: int) -> Sizing:
    """The sizes of the slabs within ``budget`` bytes.

    Full context first; else as much of it as there is room for; else the models take turns in one model's room.
    Raises ``OutOfMemory`` with the figures when not even the largest model fits.
    """
    most = need.full_context
    if need.position_in_layer:
        most = min(most, max_binding // need.position_in_layer)
    least = min(most, LEAST_CONTEXT)
    # Whichever model becomes resident first, all fit; in turns each has the slabs to itself, if need be.
    side_by_side = max(first_fit(chain(*order), max_buffer) for order in permutations(need.blocks))
    in_turns = max(first_fit(blocks, max_buffer) for blocks in need.blocks)
    for weights in (side_by_side, in_turns):
        if weights + _workspace(need, least, max_buffer) <= budget:
            context = _longest_context(need, least, most, max_buffer, budget - weights)
            return Sizing(weights, _workspace(need, context, max_buffer), context)
    least_bytes = in_turns + _workspace(need, least, max_buffer)
    raise OutOfMemory(
        f"The models need at least {least_bytes} bytes of GPU memory and the pool's budget is {budget}; "
        "give it more MiB or choose a smaller model.",
        need=least_bytes,
        budget=budget,
    )


def _longest_context(need: Need, least: int, most: int, max_buffer: int, room: int) -> int:
    """The most positions, of which ``least`` fit, whose workspace takes at most ``room`` bytes."""
    while least < most:
        middle = (least + most + 1) // 2
        if _workspace(need, middle, max_buffer) <= room:
            least = middle
        else:
            most = middle - 1
    return least


def _workspace(need: Need, context: int, max_buffer: int) -> int:
    # As the engine takes them: the activations, the RoPE table, each layer's cache.
    table = need.per_position - need.layers * need.position_in_layer
    caches = [table, *[need.position_in_layer] * need.layers] if context and need.layers else []
    return first_fit([need.activations, *(context * each for each in caches)], max_buffer)
