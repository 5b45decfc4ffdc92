"""A language model on the device: its plans bound to the pool, prompts run in chunks, single steps submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from ..compiler.graph import DTYPE_BYTES, CacheDtype, Graph
from ..compiler.lowering import lower
from ..compiler.passes import Pass, decoder_passes, fuse
from ..compiler.products import NO_SHAPES, Shapes, token_tile
from ..errors import ContextFull
from ..gpu.device import Device
from ..gpu.kernels import Kernels
from ..gpu.lease import Lease
from ..gpu.limits import DeviceLimits
from ..gpu.plan import Binding, Plan
from ..gpu.pool import STATE_BYTES, Pool, Region
from ..gpu.replay import Ranges, Replay, arrived, hasten, read_back
from ..gpu.residency import Residency, WeightSet
from ..models.decoder import (
    MOST_HEADS,
    DecoderConfig,
    Pieces,
    build_graph,
    cache_shapes,
    config_from_gguf,
    rope_table,
)
from ..models.decoder_weights import matrix_formats, recipes_by_block
from ..text.sampling import SamplingParams
from ..weights.blocks import BLOCK_BYTES, blocks_of
from ..weights.gguf import GGUFFile, read_gguf
from ..weights.packing import PackLayout, pack, plan_layout
from .assets import Progress, packed_blob
from .sizing import Weights
from .state import StepState, state_words
from .steps import Spans, Steps, steps_for

NAME = "language"
CHUNK = 256
"""The most tokens of a prompt that run at once."""
SPLITS = 32
"""Parts that attention over a long context is split into while decoding; 4 at least."""
MOST_PARTS = 4 * MOST_HEADS
"""Of all heads together: a product that merges them has 4 bytes of each in a quarter of the workgroup memory of any
device."""


def splits_of(config: DecoderConfig, limits: DeviceLimits) -> int:
    """Parts that attention of a model is split into on a device, a multiple of 4: what they leave fits one binding."""
    left = 4 * config.heads * (config.head_dim + 4)
    return max(4, min(SPLITS, MOST_PARTS // config.heads, limits.max_binding // left) // 4 * 4)


def chunk_of(config: DecoderConfig, context: int, limits: DeviceLimits) -> int:
    """Tokens of a prompt that run at once with a cache of ``context`` positions: what one binding holds."""
    widest = 4 * max(2 * config.ff, config.q_rows + 2 * config.kv_rows, config.hidden)
    tile = token_tile(limits)
    return max(tile, min(CHUNK, context, limits.max_binding // widest) // tile * tile)


class LanguageModel:
    """What is known of the model before it has a device: file, figures, packed layout."""

    def __init__(self, stored: Any, file: GGUFFile) -> None:
        self.stored = stored
        self.file = file
        self.config: DecoderConfig = config_from_gguf(file.metadata, file.tensors)
        self._blocks = recipes_by_block(self.config, file.tensors)
        self.layout: PackLayout = plan_layout(self._blocks)
        self.formats = matrix_formats(self._blocks)
        self.shapes: Shapes = NO_SHAPES
        """Of the products of one token, for plans asked for from now on."""
        self._graphs: dict[Any, tuple[Graph, Graph]] = {}
        self._plans: dict[Any, tuple[Plan, Plan]] = {}

    def weights(self, limits: DeviceLimits) -> Weights:
        """The blocks that the weights move in on a device. The vectors and the embedding are read all over a step."""
        blocks = blocks_of(self.layout, min(BLOCK_BYTES, limits.max_binding, limits.max_buffer))
        layers = next(index for index, block in enumerate(blocks) if block.name.startswith("layers."))
        return Weights(blocks, least=layers)

    @classmethod
    async def open(cls, stored: Any) -> LanguageModel:
        """Reads the file's head. Raises ``BadModel`` for a file that is none, or one that cannot run."""
        return cls(stored, await read_gguf(stored.source))

    async def blob(self, progress: Progress) -> Any:
        async def fill(sink: Any) -> None:
            await pack(
                self.file,
                self.stored.source,
                self.layout,
                sink,
                lambda _, done, total: progress("prepare", done, total),
            )

        return await packed_blob(self.stored.key, self.layout, fill, progress)

    async def rope_factors(self) -> np.ndarray | None:
        """The file's per-pair frequency divisors (``rope_freqs.weight``), if it has any."""
        info = self.file.tensors.get("rope_freqs.weight")
        if info is None:
            return None
        raw = await self.stored.source.read(info.offset, info.nbytes)
        return np.frombuffer(raw.tobytes(), np.float32).astype(np.float64)

    def plans(self, limits: DeviceLimits, context: int, pieces: Pieces, kv: CacheDtype = "f32") -> tuple[Plan, Plan]:
        """(decode, prefill) plans for a cache of ``context`` positions, over weights that lie in ``pieces`` (those not
        named: together), in the present ``shapes``. Kept: whoever sizes the pool asks before and after."""
        key = (*_key(limits, context, pieces, kv), tuple(sorted(self.shapes.items())))
        if key not in self._plans:
            decode, prefill = self.graphs(limits, context, pieces, kv)
            self._plans[key] = lower(decode, limits, shapes=self.shapes), lower(prefill, limits, shapes=self.shapes)
        return self._plans[key]

    def graphs(self, limits: DeviceLimits, context: int, pieces: Pieces, kv: CacheDtype) -> tuple[Graph, Graph]:
        """The fused graphs that ``plans`` of the same arguments carries out."""
        key = _key(limits, context, pieces, kv)
        if key not in self._graphs:
            passes, cut = decoder_passes(limits), _cut(pieces)
            chunk = chunk_of(self.config, context, limits)
            self._graphs[key] = (
                self._fused(1, splits_of(self.config, limits), context, cut, kv, passes),
                self._fused(chunk, 1, context, cut, kv, passes),
            )
        return self._graphs[key]

    def step_graph(self, context: int, pieces: Pieces, kv: CacheDtype, passes: Iterable[Pass], splits: int) -> Graph:
        """The graph of a step, fused by ``passes``: for whoever measures others than that of ``plans``."""
        return self._fused(1, splits, context, _cut(pieces), kv, passes)

    def _fused(
        self, tokens: int, splits: int, context: int, cut: Pieces, kv: CacheDtype, passes: Iterable[Pass]
    ) -> Graph:
        graph = build_graph(self.config, self.formats, tokens=tokens, context=context, splits=splits, pieces=cut, kv=kv)
        return fuse(graph, passes)


def _cut(pieces: Pieces) -> Pieces:
    return {tensor: runs for tensor, runs in pieces.items() if len(runs) > 1}


def _key(limits: DeviceLimits, context: int, pieces: Pieces, kv: CacheDtype) -> tuple[Any, ...]:
    return limits, context, tuple(sorted(_cut(pieces).items())), kv


class LanguageRunner:
    """The model bound to a pool. Callers hold the lease of ``language`` while they use it."""

    def __init__(
        self, model: LanguageModel, plans: tuple[Plan, Plan], context: int, kv: CacheDtype, device: Device, pool: Pool,
        residency: Residency,
    ) -> None:  # fmt: skip
        """``kv``: how the cache holds its values; the ``plans`` are for ``context`` positions of it."""
        self.model = model
        self.config = model.config
        self.context = context
        self.kv: CacheDtype = kv
        self.device = device
        self.decode_plan, self.prefill_plan = plans
        self._pool = pool
        self._residency = residency
        self.chunk = chunk_of(model.config, context, device.limits)
        self._caches: dict[str, Region] = {}
        self.written = 0
        """Positions of the cache that hold something."""
        self.cleared = False
        """Whether the last submit has left nothing in the activations. Who ends the lease looks, and takes it back."""

    async def bind_memory(self, activations: Region, rope_factors: np.ndarray | None) -> None:
        """Takes the cache's regions and fills the RoPE table."""
        self._activations = activations
        for name, shape in cache_shapes(self.config, self.context).items():
            width = DTYPE_BYTES["f32" if name == "rope" else self.kv]
            region = self._pool.take("workspace", width * prod(shape), NAME, name)
            assert region is not None, "the pool was sized for it"
            self._caches[name] = region
        self.rope_factors = rope_factors
        table = rope_table(self.config, self.context, rope_factors)
        self._write(self._caches["rope"].slice(0, table.nbytes), table)
        self._state = await self._pool.state_buffer()
        self._ring = await self._pool.readback_ring(STATE_BYTES)
        self._logits_staging = (await self._pool.readback_ring(self.config.vocab * 4, slots=1))[0]
        self._next_slot = 0

    def build(self, kernels: Kernels) -> None:
        """Binds the plans to their fixed homes."""
        self.decode = self._steps(kernels, self.decode_plan)
        self.prefill = self._steps(kernels, self.prefill_plan)
        self._ids = self._resolve(self.prefill_plan, Binding(0, "ids", "read_write"))
        caches = [region.slice(0, region.size) for name, region in self._caches.items() if name != "rope"]
        filled = [(buffer, offset, None) for buffer, offset, _ in caches]
        activations = self._activations.slice(0, self._activations.size)
        self._filled = Ranges(self.device, filled)
        self._used = Ranges(self.device, [activations])
        self._all = Ranges(self.device, [*filled, activations])

    def _steps(self, kernels: Kernels, plan: Plan) -> Steps:
        return steps_for(self.bound(kernels, plan), self.device, self._residency, NAME)

    def bound(self, kernels: Kernels, plan: Plan) -> Replay:
        """A plan over this model's weights and caches, bound where they lie. Raises ``OutOfPool`` where its activations
        do not fit those of the runner's own plans."""
        return Replay(self.device, kernels, plan, lambda binding: self._resolve(plan, binding))

    async def rebuild(self, kernels: Kernels, shapes: Shapes) -> None:
        """Runs its products in other shapes from now on. Raises ``NoDevice``, and all is as before, where the driver
        refuses a kernel."""
        before, self.model.shapes = self.model.shapes, shapes
        try:
            plans = self.model.plans(self.device.limits, self.context, self.pieces, self.kv)
            await kernels.prepare(dispatch for plan in plans for dispatch in plan.dispatches)
        except BaseException:
            self.model.shapes = before
            raise
        self.decode_plan, self.prefill_plan = plans
        self.build(kernels)

    def _resolve(self, plan: Plan, b: Binding) -> tuple[Any, int, int]:
        if b.tensor == "state":
            return self._state, 0, STATE_BYTES
        if b.section != "data":
            return self._residency.locate(NAME, b.tensor, b.section, b.offset, b.nbytes)
        if b.tensor in self._caches:
            region, offset = self._caches[b.tensor], 0
            size = region.size
        else:
            region, offset = self._activations, plan.memory.offsets[b.tensor]
            size = plan.memory.sizes[b.tensor]
        return region.slice(offset + b.offset, b.nbytes or size - b.offset)

    def _write(self, place: tuple[Any, int, int], array: np.ndarray) -> None:
        buffer, offset, _ = place
        self.device.write(buffer, offset, np.ascontiguousarray(array))

    # -- steps --------------------------------------------------------------------------------------------------

    def _spans(self, plan: Plan, greedy: bool) -> Spans:
        first, second = plan.marks["sample_greedy"], plan.marks["sample_random"]
        return ((0, first + 1),) if greedy else ((0, first), (second, second + 1))

    def check_room(self, tokens: int) -> None:
        if not 0 < tokens <= self.context:
            raise ContextFull(
                f"The prompt has {tokens} tokens and the context holds {self.context}; shorten the text.",
                tokens=tokens,
                context=self.context,
            )

    def _begin(self, lease: Lease) -> None:
        """Before each submit. Raises ``StaleLease``."""
        lease.check()
        self.cleared = False

    async def _run_chunk(
        self, lease: Lease, ids: list[int], start: int, spans: Spans, words: np.ndarray, copy: bool
    ) -> Any:
        self._begin(lease)
        self._write(self._ids, np.array(ids, np.uint32))
        self._write((self._state, 0, 0), words)
        self.written = max(self.written, start + len(ids))
        tile = self.prefill_plan.tile
        tiles = (len(ids) + tile - 1) // tile
        if not copy:
            await self.prefill.run(spans, tiles=tiles)
            return None
        return await self.prefill.run(spans, tiles=tiles, copy=(self._state, 0, STATE_BYTES), staging=self._slot())

    def _slot(self) -> Any:
        self._next_slot = (self._next_slot + 1) % len(self._ring)
        return self._ring[self._next_slot]

    async def start(
        self, lease: Lease, ids: list[int], params: SamplingParams, ends: Iterable[int], *, step: int = 0, limit: int
    ) -> Any:
        """Runs a prompt from an empty cache and samples the first token; returns the promise of the state after it.

        ``step``: tokens of this answer sampled before (they are part of ``ids``). Raises ``ContextFull``.
        """
        self.check_room(len(ids))
        end_ids = tuple(ends)
        promise = None
        for begin in range(0, len(ids), self.chunk):
            part = ids[begin : begin + self.chunk]
            last = begin + self.chunk >= len(ids)
            plan = self.prefill_plan
            spans = self._spans(plan, params.temperature <= 0) if last else ((0, plan.marks["logits"]),)
            words = state_words(params, position=begin, count=len(part), step=step, limit=limit, ends=end_ids)
            promise = await self._run_chunk(lease, part, begin, spans, words, copy=last)
        hasten(self.device, promise)
        return promise

    async def steps(self, lease: Lease, params: SamplingParams, count: int) -> Any:
        """Submits ``count`` decode steps at once; returns the promise of the state after them."""
        self._begin(lease)
        self.written = min(self.context, self.written + count)
        return await self.decode.run(
            self._spans(self.decode_plan, params.temperature <= 0),
            repeat=count,
            copy=(self._state, 0, STATE_BYTES),
            staging=self._slot(),
        )

    async def state(self, promise: Any) -> StepState:
        """Waits for a submit. Raises ``DeviceLost``."""
        data = await arrived(self.device, promise, "running the language model")
        return StepState(np.frombuffer(data, np.uint32))

    # -- looking inside -----------------------------------------------------------------------------------------

    async def _read_logits(self, lease: Lease, spans: Spans) -> np.ndarray:
        self._begin(lease)
        plan = self.prefill_plan
        size = self.config.vocab * 4
        place = self._resolve(plan, Binding(0, "logits", "read_write"))
        promise = await self.prefill.run(spans, copy=(place[0], place[1], size), staging=self._logits_staging)
        return np.frombuffer(await arrived(self.device, promise, "reading logits"), np.float32)

    async def all_logits(
        self, lease: Lease, ids: list[int], visit: Callable[[int, np.ndarray], None], *, last_only: bool
    ) -> None:
        """Runs ``ids`` from an empty cache and calls ``visit(position, logits [vocab])`` for each (or the last)."""
        self.check_room(len(ids))
        plan = self.prefill_plan
        head = plan.marks["logits"]
        params = SamplingParams()
        for begin in range(0, len(ids), self.chunk):
            part = ids[begin : begin + self.chunk]
            words = state_words(params, position=begin, count=len(part), limit=1, ends=())
            await self._run_chunk(lease, part, begin, ((0, head),), words, copy=False)
            final = begin + self.chunk >= len(ids)
            for row in range(len(part)) if not last_only else (range(len(part) - 1, len(part)) if final else ()):
                words = state_words(params, position=begin, count=row + 1, limit=1, ends=())
                self._write((self._state, 0, 0), words)
                visit(begin + row, await self._read_logits(lease, ((head, plan.marks["sample_greedy"]),)))

    def graphs(self) -> tuple[Graph, Graph]:
        """What ``decode_plan`` and ``prefill_plan`` carry out."""
        return self.model.graphs(self.device.limits, self.context, self.pieces, self.kv)

    @property
    def pieces(self) -> Pieces:
        """Where the weights are cut."""
        return self.weights.placement.pieces(self.weights.blocks)

    @property
    def weights(self) -> WeightSet:
        """Where the weights lie in the blob, and its reader."""
        return self._residency.sets[NAME]

    def put(self, plan: Plan, tensor: str, offset: int, array: np.ndarray) -> None:
        """Writes over a tensor that is no weight, from a byte on; over the step state where that is its name."""
        binding = Binding(0, tensor, "read_write", offset=offset, nbytes=array.nbytes)
        self._write(self._resolve(plan, binding), array)

    async def read(self, plan: Plan, tensor: str, offset: int, nbytes: int) -> np.ndarray:
        """Bytes of a tensor that is no weight (uint8), once all is done that was submitted. Raises ``DeviceLost``."""
        out = np.empty(nbytes, np.uint8)
        step = self._logits_staging.size // 256 * 256
        for at in range(0, nbytes, step):
            size = min(step, nbytes - at)
            place = self._resolve(plan, Binding(0, tensor, "read_write", offset=offset + at, nbytes=size))
            promise = read_back(self.device, place, self._logits_staging)
            out[at : at + size] = np.frombuffer(await arrived(self.device, promise, f"reading {tensor}"), np.uint8)
        return out

    def hold_at(self, position: int, count: int = 1, params: SamplingParams | None = None) -> None:
        """Puts the state at ``count`` tokens from a position of the cache on, as if all before them had been written; a
        profile's starting point."""
        words = state_words(params or SamplingParams(), position=position, count=count, limit=1 << 30, ends=())
        self._write((self._state, 0, 0), words)
        self.written = self.context

    @property
    def filled_bytes(self) -> int:
        """Bytes of each layer's cache that hold something."""
        return self.written * self.config.kv_row_bytes(self.kv)

    def clear_cache(self) -> None:
        """Zeros over the positions that were written: the conversation has ended."""
        if self.written and self._there:
            self._filled.clear(self.filled_bytes)
        self.written = 0

    def clear_all(self) -> None:
        """Zeros over what was written, in one submit: the conversation has ended, and nothing runs in this lease any
        more."""
        if self._there:
            self._all.clear(self.filled_bytes)
            self.cleared = True
        self.written = 0

    @property
    def _there(self) -> bool:
        return not self.device.lost.is_set() and not self.device.closed

    def clear_activations(self) -> None:
        self._used.clear()
