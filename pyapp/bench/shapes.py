"""Which shapes of kernels are tried: all that are valid of a product of one token, of a chunk's, and of attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from math import ceil, dist, log2
from typing import Any, TypeVar

from ..compiler import products
from ..compiler.graph import Graph, Op
from ..compiler.lower_attention import split_fits, split_params
from ..compiler.products import VectorShape, candidates
from ..engine.tuner import in_shape
from ..gpu.limits import DeviceLimits
from ..gpu.plan import Dispatch, Plan, Shader

SPLIT_COUNTS, LEAST_PARTS = (16, 32, 64), (32, 64, 128)
"""Of ``attention_split.wgsl``: parts of the context, positions that a part has at least."""
SPLIT_WORKGROUPS = ((64, 32), (128, 32), (128, 64), (256, 64), (256, 128))
"""And (invocations, positions at a time)."""
TILE_ROWS, TILE_TOKENS = (32, 64, 128), (16, 32, 64, 128)
EACH = (2, 4, 8)
"""Rows, and tokens, that an invocation of ``matmul.wgsl`` makes."""

S = TypeVar("S")


def spread(shapes: Iterable[S], first: S) -> list[S]:
    """``shapes`` with ``first`` before all, then each time the one that is farthest from those before it (Gonzalez
    1985), in doublings of its figures: however few of them are tried, they are not all of a kind."""
    places = {shape: [log2(each) for each in astuple(shape)] for shape in (first, *shapes)}  # type: ignore[call-overload]
    order, gaps = [], dict.fromkeys(places, 0.0)
    latest: S | None = first
    while latest is not None:
        order.append(latest)
        del gaps[latest]
        away = {shape: dist(places[shape], places[latest]) for shape in gaps}
        gaps = {shape: min(gap or away[shape], away[shape]) for shape, gap in gaps.items()}
        latest = max(gaps, key=lambda shape: gaps[shape], default=None)
    return order


@dataclass(frozen=True)
class Products:
    """The products of a step that have one key, and so one shape."""

    key: str
    ops: tuple[Op, ...]
    candidates: tuple[VectorShape, ...]

    def dispatches(
        self, rows: Mapping[str, list[Dispatch]], graph: Graph, limits: DeviceLimits, shape: VectorShape
    ) -> list[Dispatch]:
        """All of them in that shape; ``rows``: of the graph's plan, by operation."""
        return in_shape(self.ops, rows, graph, limits, {self.key: shape})


def products_of(graph: Graph, limits: DeviceLimits) -> list[Products]:
    """The distinct products of a decode graph for which there are shapes to choose from."""
    out = []
    for key, ops in products.products_of(graph).items():
        weight = graph.tensors[ops[0].inputs["weight"]]
        shapes = candidates(limits, weight, ops[0].attrs.get("epilogue", ""))
        if shapes:
            out.append(Products(key, tuple(ops), tuple(shapes)))
    return out


def shape_of(dispatch: Dispatch) -> VectorShape:
    """The shape that a dispatch of ``matvec.wgsl`` has."""
    params = dict(dispatch.shader.params)
    return VectorShape(params["LANES"], params["ROWS"], params["WG"])


@dataclass(frozen=True)
class AttentionShape:
    """How attention of one token is cut: parts of the context, positions a part has at least; invocations of a
    workgroup, positions it takes at a time."""

    splits: int
    least: int
    workgroup: int
    chunk: int


def attention_shapes(plan: Plan, limits: DeviceLimits) -> list[AttentionShape]:
    """The valid shapes of a step's ``attention_split.wgsl``; none where it has another kernel."""
    dispatch = next((each for each in plan.dispatches if each.shader.file == "attention_split"), None)
    if dispatch is None:
        return []
    params = dict(dispatch.shader.params)
    sharers, d = params["HEADS"] // params["KV_HEADS"], params["D"]
    shapes = [AttentionShape(n, least, *cut) for n in SPLIT_COUNTS for least in LEAST_PARTS for cut in SPLIT_WORKGROUPS]

    def valid(shape: AttentionShape) -> bool:
        parts, groups = shape.workgroup // shape.chunk, shape.workgroup // (d // 4)
        # A position's score is made by whole vec4 of its key, and a chunk's values by whole rounds of the workgroup.
        even = d // 4 % parts == 0 and groups > 0 and shape.chunk % groups == 0
        merged = 4 * params["HEADS"] * shape.splits <= limits.max_workgroup_storage // 2
        return even and merged and split_fits(sharers, d, shape.workgroup, shape.chunk, limits)

    return [shape for shape in shapes if valid(shape)]


def attention_shape_of(plan: Plan) -> AttentionShape:
    """The shape that a step's attention has."""
    params = dict(next(each for each in plan.dispatches if each.shader.file == "attention_split").shader.params)
    return AttentionShape(*(params[name] for name in ("SPLITS", "MIN_SPLIT", "WG", "CHUNK")))


def with_attention(plan: Plan, shape: AttentionShape, limits: DeviceLimits) -> Plan:
    """A step's plan with its attention in another shape; its ``splits`` must be those of the plan's graph."""
    out = []
    for dispatch in plan.dispatches:
        params = dict(dispatch.shader.params)
        changes: dict[str, Any] = {}
        if params.get("SPLITS"):
            changes["MIN_SPLIT"] = shape.least
        if dispatch.shader.file == "attention_split":
            changes |= split_params(shape.workgroup, shape.chunk, limits)
        out.append(replace(dispatch, shader=_changed(dispatch.shader, changes)) if changes else dispatch)
    return replace(plan, dispatches=tuple(out))


@dataclass(frozen=True)
class Tile:
    """What a workgroup of ``matmul.wgsl`` makes: rows by tokens, so many of each an invocation."""

    tile_n: int
    tile_m: int
    rows: int
    tokens: int

    @property
    def workgroup(self) -> int:
        return self.tile_n // self.rows * (self.tile_m // self.tokens)


def tiles(limits: DeviceLimits) -> list[Tile]:
    """The valid tiles: the first TILE_N invocations bring weights, and the others must share the inputs evenly."""
    shapes = [Tile(n, m, r, t) for n in TILE_ROWS for m in TILE_TOKENS for r in EACH for t in EACH]

    def valid(tile: Tile) -> bool:
        others = tile.workgroup - tile.tile_n
        nbytes = (tile.tile_n + tile.tile_m) * 9 * 16 + tile.tile_m * 8 * 4
        return (
            others > 0
            and others % 8 == 0
            and tile.tile_m * 8 % others == 0
            and 64 <= tile.workgroup <= limits.max_invocations
            and nbytes <= limits.max_workgroup_storage
        )

    return [tile for tile in shapes if valid(tile)]


def tile_of(dispatch: Dispatch) -> Tile:
    """The tile that a dispatch of ``matmul.wgsl`` has."""
    params = dict(dispatch.shader.params)
    return Tile(params["TILE_N"], params["TILE_M"], params["ROWS"], params["TOKENS"])


def with_tile(dispatches: Iterable[Dispatch], tile: Tile) -> list[Dispatch]:
    """Dispatches of ``matmul.wgsl`` for whole chunks, cut into other tiles."""
    out = []
    for dispatch in dispatches:
        params = dict(dispatch.shader.params)
        changes = {
            "TILE_N": tile.tile_n,
            "TILE_M": tile.tile_m,
            "ROWS": tile.rows,
            "TOKENS": tile.tokens,
            "WG": tile.workgroup,
        }
        groups = (ceil(params["N"] / tile.tile_n), ceil(params["CHUNK"] / tile.tile_m), 1)
        out.append(replace(dispatch, shader=_changed(dispatch.shader, changes), workgroups=groups, per_tile=False))
    return out


def _changed(shader: Shader, changes: Mapping[str, Any]) -> Shader:
    return Shader.of(shader.file, **{**dict(shader.params), **changes})
