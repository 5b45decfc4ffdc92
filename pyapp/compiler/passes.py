"""Fusions of a decoder graph: each a function Graph → Graph that may be left out, which is how its worth is measured.

The passes only merge what one kernel can do in one walk over its weights; the result means the same, which
``reference.py`` shows for every combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from ..gpu.limits import DeviceLimits
from .graph import Graph, Op, Tensor
from .lower_decoder import pieces_of

Pass = Callable[[Graph], Graph]
Fits = Callable[[Tensor], bool]


def _only_reader(graph: Graph, tensor: str) -> Op | None:
    readers = graph.readers(tensor)
    return readers[0] if len(readers) == 1 else None


def _into_epilogue(
    graph: Graph, kind: str, epilogue: str, takes: tuple[str, ...] = (), reads_as: str | None = None,
    fits: Fits | None = None,
) -> Graph:  # fmt: skip
    """linear → an operation of ``kind`` that alone reads it becomes a linear with that ``epilogue``.

    ``takes``: inputs that the linear takes over; ``reads_as``: the role in which the product must be read, if any will
    not do; ``fits``: whether the weight lies in one binding, which an epilogue needs that goes by the rows' numbers.
    """
    ops: list[Op] = []
    dropped: set[str] = set()
    for op in graph.ops:
        reader = _only_reader(graph, op.output) if op.kind == "linear" and not op.attrs.get("epilogue") else None
        if (
            reader
            and reader.kind == kind
            and (reads_as is None or reader.inputs[reads_as] == op.output)
            and (fits is None or fits(graph.tensors[op.inputs["weight"]]))
        ):
            op = op.with_(
                output=reader.output,
                inputs={**op.inputs, **{role: reader.inputs[role] for role in takes}},
                attrs={**reader.attrs, **op.attrs, "epilogue": epilogue},
            )
            dropped.add(reader.name)
        ops.append(op)
    return graph.with_ops(op for op in ops if op.name not in dropped)


def fuse_silu_mul(graph: Graph, fits: Fits | None = None) -> Graph:
    """linear(gate|up) → silu_mul becomes one linear that writes silu(gate) · up."""
    return _into_epilogue(graph, "silu_mul", "silu_mul", fits=fits)


def fuse_residual(graph: Graph) -> Graph:
    """linear → add becomes a linear that adds onto the residual stream where it lies."""
    return _into_epilogue(graph, "add", "residual", takes=("residual",), reads_as="x")


def fuse_rope_cache(graph: Graph, fits: Fits | None = None) -> Graph:
    """linear(q|k|v) → rope_cache: the rows turn in pairs as they are written, k and v go straight to the cache."""
    return _into_epilogue(graph, "rope_cache", "rope_cache", takes=("kv", "rope"), fits=fits)


def fuse_rms_norm(graph: Graph) -> Graph:
    """rms_norm → linear: the factor 1/rms multiplies the sums, so the norm rides in the product's own walk."""
    ops: list[Op] = []
    norms: dict[str, Op] = {}
    for op in graph.ops:
        if op.kind == "rms_norm" and all(
            reader.kind == "linear" and not reader.attrs.get("prologue") for reader in graph.readers(op.output)
        ):
            norms[op.output] = op
            continue
        norm = norms.get(op.inputs.get("x", "")) if op.kind == "linear" else None
        if norm:
            op = op.with_(
                inputs={**op.inputs, "x": norm.inputs["x"], "gain": norm.inputs["gain"]},
                attrs={**op.attrs, "prologue": "rms_norm", "eps": norm.attrs["eps"]},
            )
        ops.append(op)
    return graph.with_ops(ops)


def fuse_attention_merge(graph: Graph) -> Graph:
    """attention_merge → linear: the output projection puts the partial results together as it reads them."""
    ops: list[Op] = []
    merges: dict[str, Op] = {}
    for op in graph.ops:
        if op.kind == "attention_merge":
            reader = _only_reader(graph, op.output)
            if reader and reader.kind == "linear" and not reader.attrs.get("prologue"):
                merges[op.output] = op
                continue
        merge = merges.get(op.inputs.get("x", "")) if op.kind == "linear" else None
        if merge:
            op = op.with_(
                inputs={**op.inputs, "x": merge.inputs["x"]},
                attrs={**merge.attrs, **op.attrs, "prologue": "attention_merge"},
            )
        ops.append(op)
    return graph.with_ops(ops)


DECODER_PASSES: dict[str, Pass] = {
    "silu_mul": fuse_silu_mul,
    "residual": fuse_residual,
    "rope_cache": fuse_rope_cache,
    "rms_norm": fuse_rms_norm,
    "attention_merge": fuse_attention_merge,
}


def decoder_passes(limits: DeviceLimits, without: Iterable[str] = ()) -> list[Pass]:
    """``DECODER_PASSES`` for a device: what goes by rows only where the device's bindings hold all of them. ``without``
    names some that are left out."""

    def fits(weight: Tensor) -> bool:
        return len(pieces_of(weight, limits)) == 1

    by_rows: dict[str, Pass] = {
        "silu_mul": partial(fuse_silu_mul, fits=fits),
        "rope_cache": partial(fuse_rope_cache, fits=fits),
    }
    left_out = set(without)
    return [each for name, each in {**DECODER_PASSES, **by_rows}.items() if name not in left_out]


def fuse(graph: Graph, passes: Iterable[Pass] = tuple(DECODER_PASSES.values())) -> Graph:
    for each in passes:
        graph = each(graph)
    return graph
