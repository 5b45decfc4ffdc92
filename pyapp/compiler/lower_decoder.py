"""Kernels for a decoder's operations: which WGSL file, specialised how, over how many workgroups.

``products.py`` chooses among the kernels of a matrix product, ``lower_attention.py`` among those of attention. Lanes
never exceed the smallest subgroup that the device may run with, and a device without subgroups gets one lane, which
needs no reduction at all.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from ..errors import BadModel
from ..gpu.limits import DeviceLimits
from ..gpu.plan import Binding, Dispatch, Shader
from ..weights.blocks import row_step
from ..weights.formats import row_sizes
from .graph import Graph, Op, Tensor
from .lower_attention import MERGE, MIN_SPLIT, cache_bytes, gang, half_cache, lower_attention, lower_attention_merge
from .products import NO_SHAPES, WORKGROUP, Shapes, lanes_for, product, product_key, usable


def weight_bytes(tensor: Tensor, rows: int | None = None) -> int:
    """Bytes that reading ``rows`` rows (all) of a packed weight [N, K] takes, scales with them."""
    n, k = tensor.shape
    return (rows or n) * sum(row_sizes(tensor.fmt, k))


def has_scales(tensor: Tensor) -> bool:
    """Whether a packed weight has a section of scales."""
    return row_sizes(tensor.fmt, tensor.shape[1])[1] > 0


def pieces_of(tensor: Tensor, limits: DeviceLimits) -> list[tuple[int, int]]:
    """(first row, rows) of each run of a weight's rows that lies together and that one binding can hold.

    Runs start where the offsets of both sections and of the float32 results are multiples of 256 bytes. Raises BadModel
    where no run is small enough.
    """
    n, k = tensor.shape
    row, step = row_sizes(tensor.fmt, k)[0], row_step(tensor.fmt, k)
    most = limits.max_binding // row // step * step
    out = []
    for start, count in tensor.pieces or ((0, n),):
        if count * row <= limits.max_binding:
            out.append((start, count))
            continue
        if not most:
            raise BadModel(
                f"{step} rows of {tensor.name} take {step * row} bytes, and one binding of this device holds "
                f"{limits.max_binding}; choose a smaller model.",
                need=step * row,
                limit=limits.max_binding,
            )
        out += [(first, min(most, start + count - first)) for first in range(start, start + count, most)]
    return out


def _weight_bindings(tensor: Tensor, first: int, rows: int) -> list[Binding]:
    n, k = tensor.shape
    bindings = []
    for slot, (section, row) in enumerate(zip(("quants", "scales"), row_sizes(tensor.fmt, k), strict=True)):
        if row:
            whole = rows == n
            size = None if whole else (rows * row + 3) // 4 * 4
            bindings.append(Binding(slot, tensor.name, "read", section, 0 if whole else first * row, size))  # type: ignore[arg-type]
    return bindings


def lower_linear(op: Op, graph: Graph, limits: DeviceLimits, shapes: Shapes = NO_SHAPES) -> list[Dispatch]:
    weight = graph.tensors[op.inputs["weight"]]
    n_all, k = weight.shape
    x = graph.tensors[op.inputs["x"]]
    prologue, epilogue = op.attrs.get("prologue", ""), op.attrs.get("epilogue", "")
    last = op.attrs.get("x_row") == "last"
    tokens = 1 if prologue == "attention_merge" or last else x.shape[0]
    told = shapes.get(product_key(weight, prologue, epilogue))
    shape = told if told and usable(limits, weight, epilogue, told) else None
    kernel = product(limits, weight, tokens, prologue, epilogue, shape)
    outputs = {"silu_mul": n_all // 2, "rope_cache": op.attrs.get("q_rows", n_all)}.get(epilogue, n_all)
    pieces = pieces_of(weight, limits)
    if len(pieces) > 1 and epilogue in ("silu_mul", "rope_cache"):
        raise BadModel(
            f"{op.name} needs its {n_all} rows in one binding, and this device's bindings hold {pieces[0][1]} of them.",
            rows=n_all,
        )
    out: list[Dispatch] = []
    for first, n in pieces:
        shader = Shader.of(
            kernel.file,
            **kernel.params,
            FMT=weight.fmt,
            SCALES=has_scales(weight),
            K=k,
            N=n,
            STRIDE=outputs,
            PROLOGUE=prologue,
            EPILOGUE=epilogue or "store",
            BIAS="bias" in op.inputs,
            X_ROW="last" if last else "",
            EPS=float(op.attrs.get("eps", 0.0)),
            D=op.attrs.get("head_dim", 0),
            Q_ROWS=op.attrs.get("q_rows", 0),
            KV_ROWS=op.attrs.get("kv_rows", 0),
            SPLITS=op.attrs.get("splits", 0),
            MIN_SPLIT=MIN_SPLIT,
            MERGE=MERGE,
            GANG=gang(op.attrs["splits"], kernel.params.get("LANES", 1)) if prologue == "attention_merge" else 1,
            HALF_CACHE=half_cache(op, graph),
        )
        bindings = [
            *_weight_bindings(weight, first, n),
            Binding(2, op.inputs["x"], "read_write"),
            Binding(3, op.output, "read_write", offset=first * 4),
            Binding(4, "state", "read"),
        ]
        if prologue == "rms_norm":
            bindings.append(Binding(5, op.inputs["gain"], "read", "quants"))
        if "bias" in op.inputs:
            bindings.append(Binding(6, op.inputs["bias"], "read", "quants", offset=first * 4))
        if epilogue == "rope_cache":
            bindings.append(Binding(7, op.inputs["kv"], "read_write"))
            bindings.append(Binding(8, op.inputs["rope"], "read_write"))
        written = tokens * 4 * n
        if epilogue == "rope_cache":
            written -= tokens * 2 * op.attrs["kv_rows"] * (4 - cache_bytes(op, graph))
        out.append(
            Dispatch(
                op.name,
                shader,
                tuple(bindings),
                (ceil(n / kernel.rows), ceil(tokens / kernel.tokens), 1),
                bytes=weight_bytes(weight, n) + tokens * 4 * k + written,
                flops=2 * tokens * n * k,
                per_tile=tokens > 1,
            )
        )
    return out


def lower_embed(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    table = graph.tensors[op.inputs["table"]]
    tokens, k = graph.tensors[op.output].shape
    out = []
    for first, n in pieces_of(table, limits):
        shader = Shader.of(
            "embed", FMT=table.fmt, SCALES=has_scales(table), K=k, N=n, ROW0=first, WG=WORKGROUP, IDS=tokens > 1
        )
        bindings = [
            *_weight_bindings(table, first, n),
            Binding(2, op.output, "read_write"),
            Binding(3, "state", "read"),
        ]
        if tokens > 1:
            bindings.append(Binding(4, op.inputs["ids"], "read_write"))
        out.append(
            Dispatch(
                op.name,
                shader,
                tuple(bindings),
                (ceil(k / 32 / WORKGROUP), tokens, 1),
                bytes=weight_bytes(table, tokens) + tokens * k * 4,
                flops=tokens * k,
                per_tile=tokens > 1,
            )
        )
    return out


def _elementwise(op: Op, shader: Shader, roles: tuple[str, ...], width: int, tokens: int) -> Dispatch:
    bindings = [Binding(slot, op.inputs.get(role, op.output), "read_write") for slot, role in enumerate(roles)]
    bindings.append(Binding(len(roles), "state", "read"))
    return Dispatch(
        op.name,
        shader,
        tuple(bindings),
        (ceil(width / WORKGROUP), tokens, 1),
        bytes=tokens * width * 12,
        flops=tokens * width,
        per_tile=tokens > 1,
    )


def lower_rms_norm(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    tokens, h = graph.tensors[op.output].shape
    lanes = lanes_for(limits)
    shader = Shader.of(
        "rms_norm", H=h, EPS=float(op.attrs["eps"]), LANES=lanes, LOG_LANES=lanes.bit_length() - 1, WG=WORKGROUP
    )
    bindings = (
        Binding(0, op.inputs["x"], "read_write"),
        Binding(1, op.inputs["gain"], "read", "quants"),
        Binding(2, op.output, "read_write"),
        Binding(3, "state", "read"),
    )
    groups = ceil(tokens / (WORKGROUP // lanes))
    return [Dispatch(op.name, shader, bindings, (groups, 1, 1), bytes=tokens * h * 12, flops=tokens * h * 4)]


def lower_rope_cache(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    heads, kv_heads, d = (op.attrs[key] for key in ("heads", "kv_heads", "head_dim"))
    tokens, width = graph.tensors[op.inputs["qkv"]].shape
    norm = "q_gain" in op.inputs
    shader = Shader.of(
        "rope_cache",
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        NORM=norm,
        EPS=float(op.attrs.get("eps", 0.0)),
        WG=WORKGROUP,
        HALF_CACHE=half_cache(op, graph),
    )
    bindings = [
        Binding(0, op.inputs["qkv"], "read_write"),
        Binding(1, op.output, "read_write"),
        Binding(2, "state", "read"),
        Binding(3, op.inputs["kv"], "read_write"),
        Binding(4, op.inputs["rope"], "read_write"),
    ]
    if norm:
        bindings += [
            Binding(5, op.inputs["q_gain"], "read", "quants"),
            Binding(6, op.inputs["k_gain"], "read", "quants"),
        ]
    groups = (ceil((heads + 2 * kv_heads) / WORKGROUP), tokens, 1)
    return [
        Dispatch(
            op.name,
            shader,
            tuple(bindings),
            groups,
            bytes=tokens * (width * 4 + heads * d * 4 + 2 * kv_heads * d * cache_bytes(op, graph)),
            flops=tokens * width * 3,
            per_tile=tokens > 1,
        )
    ]


def lower_silu_mul(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    tokens, f = graph.tensors[op.output].shape
    shader = Shader.of("silu_mul", F=f, WG=WORKGROUP)
    return [_elementwise(op, shader, ("x", "y"), f, tokens)]


def lower_add(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    tokens, h = graph.tensors[op.output].shape
    shader = Shader.of("add", H=h, WG=WORKGROUP)
    return [_elementwise(op, shader, ("x", "y"), h, tokens)]


def lower_sample(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    vocab = graph.tensors[op.inputs["logits"]].shape[1]
    # One workgroup walks the vocabulary: as wide as the device allows, but narrow where a barrier is dear. Loads that
    # wait together only lengthen the text where a load does not wait.
    wide, loads = (WORKGROUP, 1) if limits.software else (min(256, limits.max_invocations), 8)
    bindings = (Binding(0, op.inputs["logits"], "read_write"), Binding(1, "state", "read_write"))
    shader = Shader.of("sample_greedy" if op.attrs["greedy"] else "sample", V=vocab, WG=wide, LOADS=loads)
    return [Dispatch(op.name, shader, bindings, (1, 1, 1), bytes=vocab * 4, flops=vocab)]


LOWERINGS: dict[str, Callable[[Op, Graph, DeviceLimits], list[Dispatch]]] = {
    "linear": lower_linear,
    "embed": lower_embed,
    "attention": lower_attention,
    "attention_merge": lower_attention_merge,
    "rms_norm": lower_rms_norm,
    "rope_cache": lower_rope_cache,
    "head_norm_rope_cache": lower_rope_cache,
    "silu_mul": lower_silu_mul,
    "add": lower_add,
    "sample": lower_sample,
}
