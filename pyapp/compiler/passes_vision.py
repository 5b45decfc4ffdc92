"""Passes over a vision graph. Each is a pure function Graph → Graph that may be left out."""

from __future__ import annotations

from .graph import Graph, Op
from .passes import Pass


def fuse_residual(graph: Graph) -> Graph:
    """conv(x) + r  →  one pointwise conv with ``residual`` r: r is read once and the sum never goes through memory.

    Only where nobody else reads the convolution's own result, and where r is not the convolution's x (a dispatch may
    not bind one range twice as writable). The fused operation takes the addition's place, where r is known to exist.
    """
    fused: dict[str, Op] = {}
    gone: set[str] = set()
    for add in (op for op in graph.ops if op.kind == "sum"):
        a, b = add.inputs["a"], add.inputs["b"]
        for own, residual in ((a, b), (b, a)):
            conv = graph.producer(own)
            if (
                conv is None
                or conv.name in gone
                or own == residual
                or not _pointwise(conv)
                or conv.attrs.get("activation")
                or "residual" in conv.inputs
                or residual in conv.inputs.values()
                or not _only_read_by(graph, own, add)
                or graph.tensors[residual].shape != graph.tensors[own].shape
            ):
                continue
            fused[add.name] = conv.with_(inputs={**conv.inputs, "residual": residual}, output=add.output)
            gone.add(conv.name)
            break
    return graph.with_ops(fused.get(op.name, op) for op in graph.ops if op.name not in gone)


def fuse_activation(graph: Graph) -> Graph:
    """activation(conv(x))  →  a conv with ``activation``, which it applies last (after a residual)."""
    fused: dict[str, Op] = {}
    gone: set[str] = set()
    for op in (op for op in graph.ops if op.kind == "activation"):
        conv = graph.producer(op.inputs["x"])
        if conv is None or conv.kind != "conv" or conv.attrs.get("activation"):
            continue
        if _only_read_by(graph, conv.output, op):
            attrs = {**conv.attrs, "activation": op.attrs["activation"]}
            fused[op.name] = conv.with_(attrs=attrs, output=op.output)
            gone.add(conv.name)
    return graph.with_ops(fused.get(op.name, op) for op in graph.ops if op.name not in gone)


VISION_PASSES: tuple[Pass, ...] = (fuse_residual, fuse_activation)
"""In this order: a residual goes into a convolution that has no activation yet."""


def _pointwise(op: Op) -> bool:
    return op.kind == "conv" and op.attrs["kernel"] == 1 and op.attrs["stride"] == 1 and op.attrs["groups"] == 1


def _only_read_by(graph: Graph, tensor: str, reader: Op) -> bool:
    return graph.tensors[tensor].kind == "activation" and [op.name for op in graph.readers(tensor)] == [reader.name]
