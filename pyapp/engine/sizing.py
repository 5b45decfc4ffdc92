"""How large the pool's slabs must be and where the weights go: what the chosen models need, cut to the budget.

What gives way first where the budget is small: a context beyond ``COMFORTABLE_CONTEXT``; then the models lying side by
side (they overlap, and a switch moves what overlaps); then the KV cache being float32 (it is float16 where that alone
keeps a comfortable context beside resident weights); then the context down to ``LEAST_CONTEXT``; then the weights being
resident (some of their blocks are streamed through a window each step). Less than that is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from ..compiler.graph import CacheDtype
from ..errors import OutOfMemory
from ..gpu.allocator import ALIGNMENT, aligned
from ..gpu.placement import Placement, place
from ..gpu.pool import slab_sizes
from ..weights.blocks import Block

LEAST_CONTEXT = 256
"""Fewer positions than this are of no use for a prompt and an answer."""
STREAMED_CONTEXT = 512
"""What a streamed model gets, where it can: its weights make better use of the rest."""
COMFORTABLE_CONTEXT = 2048
SPARE = 256 << 10
"""Bytes of slabs that are not worth looking for."""
NEVER = 1 << 62
"""Bytes that no budget has: some block is larger than the largest buffer."""


@dataclass(frozen=True)
class Weights:
    """One model's blocks; ``least`` of the first ones are read all over a step, and must stay. ``downward``: its homes
    grow from the high end of the slabs."""

    blocks: tuple[Block, ...]
    least: int = 0
    downward: bool = False

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    @property
    def largest_piece(self) -> int:
        """Bytes of the largest piece that must lie in one slab."""
        extents = (nbytes for block in self.blocks for _, nbytes in block.extents)
        return max((block.nbytes for block in self.blocks) if self.downward else extents)


@dataclass(frozen=True)
class Need:
    """What the models ask for, in bytes. ``weights``: the language model's first, if there is one; ``activations``: the
    largest plan's peak; ``per_position``: KV cache and RoPE table of one position, over all layers;
    ``position_in_layer``: the cache of one position in one layer; ``layers``: how many caches there are; ``kv``: how
    the cache holds its values.
    """

    weights: tuple[Weights, ...]
    activations: int
    per_position: int = 0
    position_in_layer: int = 0
    layers: int = 0
    full_context: int = 0
    kv: CacheDtype = "f32"

    @property
    def comfortable(self) -> int:
        """Positions that a conversation can do with."""
        return min(self.full_context, COMFORTABLE_CONTEXT)

    def longest_context(self, max_buffer: int, max_binding: int) -> int:
        """The most positions: the model's, or what one binding, of one buffer, holds of a layer's cache."""
        in_layer, together = self.position_in_layer, min(max_binding, max_buffer)
        return min(self.full_context, together // in_layer) if in_layer else self.full_context

    def with_half_cache(self) -> Need:
        """What a float16 cache needs instead of the float32 one."""
        half = self.position_in_layer // 2
        return replace(self, per_position=self.per_position - self.layers * half, position_in_layer=half, kv="f16")


@dataclass(frozen=True)
class Sizing:
    """Bytes of the slabs of each role, the positions that the cache has and how it holds its values, and the homes of
    each model's weights."""

    weights: int
    workspace: int
    context: int
    placements: tuple[Placement, ...]
    kv: CacheDtype = "f32"


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


def size_pool(budget: int, need: Need, max_buffer: int, max_binding: int, stream_below: float = 1.0) -> Sizing:
    """The slabs within ``budget`` bytes, and what lies where in them.

    ``stream_below``: the language model is streamed unless the weights' room is at least this many times its bytes; its
    homes then take one ``stream_below``-th of the room, and the rest of it stays free for other models.

    Raises ``OutOfMemory`` with the figures when the models cannot even be streamed.
    """
    if need.activations > max_buffer:
        raise OutOfMemory(
            f"The activations need {need.activations} bytes in one buffer, and this device's hold {max_buffer}; "
            "choose a smaller model.",
            need=need.activations,
            limit=max_buffer,
        )
    sizer = _Sizer(need, max_buffer, max_binding, stream_below)
    together, alone = sizer.least_weights(apart=True), sizer.least_weights(apart=False)
    narrow = replace(sizer, need=need.with_half_cache())
    if not sizer.comfortable(budget - alone) and narrow.comfortable(budget - alone):
        sizer = narrow
    most = sizer.most
    least, comfortable = min(most, LEAST_CONTEXT), min(most, COMFORTABLE_CONTEXT)
    if together + sizer.workspace(comfortable) <= budget:
        return sizer.sizing(together, sizer.longest_context(comfortable, most, budget - together))
    if alone + sizer.workspace(comfortable) <= budget:
        weights = (budget - sizer.workspace(comfortable)) // ALIGNMENT * ALIGNMENT
        return sizer.sizing(weights if sizer.resident(weights) else alone, comfortable)
    if alone + sizer.workspace(least) <= budget:
        return sizer.sizing(alone, sizer.longest_context(least, comfortable, budget - alone))
    return _streamed(sizer, budget, [min(most, STREAMED_CONTEXT), least])


def _streamed(sizer: _Sizer, budget: int, contexts: Sequence[int]) -> Sizing:
    for context in contexts:
        weights = (budget - sizer.workspace(context)) // ALIGNMENT * ALIGNMENT
        try:
            if weights > 0:
                return sizer.sizing(weights, context)
        except OutOfMemory:
            continue
    least = sizer.workspace(contexts[-1]) + sizer.streamed_weights()
    raise OutOfMemory(
        f"The models need at least {least} bytes of GPU memory and the pool's budget is {budget}; "
        "give it more MiB or choose a smaller model.",
        need=least,
        budget=budget,
    )


@dataclass(frozen=True)
class _Sizer:
    need: Need
    max_buffer: int
    max_binding: int
    stream_below: float

    @property
    def most(self) -> int:
        return self.need.longest_context(self.max_buffer, self.max_binding)

    def comfortable(self, room: int) -> bool:
        """Whether a comfortable context's workspace takes at most ``room`` bytes."""
        wanted = self.need.comfortable
        return wanted <= self.most and self.workspace(wanted) <= room

    def workspace(self, context: int) -> int:
        # As the engine takes them: the activations, the RoPE table, each layer's cache.
        need = self.need
        table = need.per_position - need.layers * need.position_in_layer
        caches = [table, *[need.position_in_layer] * need.layers] if context and need.layers else []
        return first_fit([need.activations, *(context * each for each in caches)], self.max_buffer)

    def longest_context(self, least: int, most: int, room: int) -> int:
        """The most positions, of which ``least`` fit, whose workspace takes at most ``room`` bytes."""
        while least < most:
            middle = (least + most + 1) // 2
            if self.workspace(middle) <= room:
                least = middle
            else:
                most = middle - 1
        return least

    def placements(self, weights: int) -> tuple[Placement, ...]:
        slabs = slab_sizes(weights, self.max_buffer)
        out = []
        for number, model in enumerate(self.need.weights):
            room = int(weights / self.stream_below) if number == 0 and self.need.layers else None
            out.append(place(model.blocks, slabs, room=room, least=model.least, downward=model.downward))
        return tuple(out)

    def resident(self, weights: int, *, apart: bool = False) -> bool:
        """Whether all models can be resident in so many bytes, each in its turn or (``apart``) at the same time."""
        try:
            placements = self.placements(weights)
        except OutOfMemory:
            return False
        return not any(each.streamed for each in placements) and not (apart and overlap(placements))

    def least_weights(self, *, apart: bool) -> int:
        """Bytes of slabs that hold the models, each in its turn or at the same time."""
        each = [model.nbytes for model in self.need.weights]
        if self.need.layers and self.stream_below > 1:
            each[0] = aligned(ceil(each[0] * self.stream_below)) + ALIGNMENT  # what rounding takes when it is divided
        least = sum(each) if apart else max(each)
        if max(model.largest_piece for model in self.need.weights) > self.max_buffer // ALIGNMENT * ALIGNMENT:
            return NEVER
        # Where a slab ends, a place may be left that is too small for what comes next: at most half of the slabs is
        # lost so (next-fit), in each direction.
        most = 2 * least + 2 * self.max_buffer
        if self.resident(least, apart=apart):
            return least
        while least + SPARE < most:
            middle = (least + most) // 2 // ALIGNMENT * ALIGNMENT
            least, most = (least, middle) if self.resident(middle, apart=apart) else (middle, most)
        return most if self.resident(most, apart=apart) else NEVER

    def streamed_weights(self) -> int:
        """About the fewest bytes of slabs in which every model runs."""
        low, high = ALIGNMENT, max(self.least_weights(apart=False), ALIGNMENT)
        if high >= NEVER:
            return sum(model.nbytes for model in self.need.weights)
        while low < high:
            middle = (low + high) // 2 // ALIGNMENT * ALIGNMENT
            try:
                self.placements(middle)
                high = middle
            except OutOfMemory:
                low = middle + ALIGNMENT
        return high

    def sizing(self, weights: int, context: int) -> Sizing:
        return Sizing(weights, self.workspace(context), context, self.placements(weights), self.need.kv)


def overlap(placements: Sequence[Placement]) -> int:
    """Bytes of the slabs that belong to the homes of more than one model."""
    spans = sorted(
        (home.slab, home.offset, home.offset + home.nbytes, number)
        for number, placement in enumerate(placements)
        for home in {home for homes in placement.homes for home in homes}
    )
    total = 0
    for index, (slab, _, end, number) in enumerate(spans):
        for other_slab, other_start, other_end, other in spans[index + 1 :]:
            if other_slab != slab or other_start >= end:
                break
            if other != number:
                total += min(end, other_end) - other_start
    return total
