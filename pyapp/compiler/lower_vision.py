"""Kernels for a vision model's operations: which WGSL file, specialised how, over how many workgroups.

All tensors are NHWC and all kernels read four channels at a time, so channel counts must be multiples of 4.
The layers' sizes are figures, not parameters of the shader: a browser compiles a handful of pipelines, not one a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Any

from ..errors import BadModel
from ..gpu.limits import DeviceLimits
from ..gpu.plan import FIGURES, Binding, Dispatch, Shader
from .graph import Graph, Op

WORKGROUP = 64
ENOUGH = 1 << 15
"""Invocations that a GPU should have at once to be busy: below that, a pointwise product's K is split."""
MOST_SPLITS = 16
MIN_SPLIT_STEPS = 4
"""The fewest vec4 of K that a split is left with."""
STEM_GROUPS = 8
"""vec4 of outputs an invocation of the stem, at most."""
FIGURES_SLOT = 5
RUN = 4
"""Neighbouring pixels an invocation of a depthwise convolution."""


def lower_conv(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    """The kernel that fits: stem (bytes in), pointwise or depthwise. Raises BadModel for any other convolution."""
    kernel, stride, groups = (op.attrs[key] for key in ("kernel", "stride", "groups"))
    channels = graph.tensors[op.inputs["x"]].shape[-1]
    if "normalise" in op.attrs and groups == 1:
        return [_stem(op, graph, limits)]
    if kernel == 1 and stride == 1 and groups == 1:
        return [_pointwise(op, graph, limits)]
    if groups == channels == graph.tensors[op.output].shape[-1]:
        return [_depthwise(op, graph, limits)]
    raise BadModel(
        f"The layer {op.name} is a convolution of kernel {kernel}, stride {stride} and {groups} groups over {channels} "
        "channels; Tandem runs 1 x 1 and depthwise ones, and dense ones on the picture itself.",
        layer=op.name,
    )


def lower_global_pool(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    *size, channels = graph.tensors[op.inputs["x"]].shape
    _fours(op, channels)
    pixels = prod(size)
    shader = Shader.of("global_pool", P=pixels, C=channels, WG=WORKGROUP)
    bindings = (_data(0, op.inputs["x"]), _data(1, op.output))
    return [_dispatch(op, graph, limits, shader, bindings, channels // 4, pixels * channels)]


def lower_map(op: Op, graph: Graph, limits: DeviceLimits) -> list[Dispatch]:
    """An ``activation`` or a ``sum`` that no producer took in."""
    values = prod(graph.tensors[op.output].shape)
    _fours(op, values)
    a, b = op.inputs["x" if op.kind == "activation" else "a"], op.inputs.get("b")
    if a == b:
        raise BadModel(f"The layer {op.name} adds a tensor to itself, which no kernel does.", layer=op.name)
    shader = Shader.of("map", N=values // 4, SUM=b is not None, ACTIVATION=op.attrs.get("activation", ""), WG=WORKGROUP)
    bindings = [_data(0, a), _data(1, op.output)]
    if b is not None:
        bindings.append(_data(2, b))
    return [_dispatch(op, graph, limits, shader, tuple(bindings), values // 4, values)]


LOWERINGS: dict[str, Callable[[Op, Graph, DeviceLimits], list[Dispatch]]] = {
    "conv": lower_conv,
    "activation": lower_map,
    "sum": lower_map,
    "global_pool": lower_global_pool,
}


def _stem(op: Op, graph: Graph, limits: DeviceLimits) -> Dispatch:
    cin = graph.tensors[op.inputs["x"]].shape[2]
    cout = graph.tensors[op.output].shape[2]
    _fours(op, cout)
    groups = max(size for size in range(1, STEM_GROUPS + 1) if cout // 4 % size == 0)
    mean, scale = op.attrs["normalise"]
    window = _window(op, graph)
    shader = Shader.of(
        "conv_stem", CIN=cin, COUT=cout, GROUPS=groups, MEAN=float(mean), SCALE=float(scale),
        ACTIVATION=op.attrs.get("activation", ""), WG=WORKGROUP, **window,
    )  # fmt: skip
    pixels = window["HO"] * window["WO"]
    flops = 2 * pixels * cout * cin * window["KERNEL"] ** 2
    return _dispatch(op, graph, limits, shader, _conv_bindings(op), pixels * (cout // 4 // groups), flops)


def _depthwise(op: Op, graph: Graph, limits: DeviceLimits) -> Dispatch:
    channels = graph.tensors[op.output].shape[2]
    _fours(op, channels)
    window = _window(op, graph)
    shader = Shader.of(
        "depthwise", RUN=RUN, KERNEL=window["KERNEL"], STRIDE=window["STRIDE"], WG=WORKGROUP,
        ACTIVATION=op.attrs.get("activation", ""),
    )  # fmt: skip
    sizes = (window[name] for name in ("H", "W", "HO", "WO", "TOP", "LEFT"))
    pixels = window["HO"] * window["WO"]
    invocations = window["HO"] * ceil(window["WO"] / RUN) * channels // 4
    flops = 2 * pixels * channels * window["KERNEL"] ** 2
    figures = (*sizes, channels // 4, ceil(window["WO"] / RUN))
    return _dispatch(op, graph, limits, shader, _conv_bindings(op), invocations, flops, figures)


def _pointwise(op: Op, graph: Graph, limits: DeviceLimits) -> Dispatch:
    *size, k = graph.tensors[op.inputs["x"]].shape
    n = graph.tensors[op.output].shape[-1]
    _fours(op, k, n)
    pixels = prod(size)
    tile_pixels, tile_outs = (4, 2) if pixels > 1 else (1, 1)
    tiles = ceil(pixels / tile_pixels) * ceil(n / 4 / tile_outs)
    splits = _splits(tiles, k // 4, limits)
    bindings = _conv_bindings(op)
    if "residual" in op.inputs:
        bindings += (_data(4, op.inputs["residual"]),)
    shader = Shader.of(
        "pointwise", PIXELS=tile_pixels, OUTS=tile_outs, SPLITS=splits, WG=WORKGROUP,
        ACTIVATION=op.attrs.get("activation", ""), RESIDUAL="residual" in op.inputs,
    )  # fmt: skip
    figures = (pixels, k // 4, n // 4, ceil(n / 4 / tile_outs))
    return _dispatch(op, graph, limits, shader, bindings, tiles * splits, 2 * pixels * k * n, figures)


def _splits(tiles: int, steps: int, limits: DeviceLimits) -> int:
    """Invocations that share a tile, a power of two; one on a software device, where a barrier is dear."""
    if limits.software:
        return 1
    splits = 1
    while splits < MOST_SPLITS and tiles * splits < ENOUGH and steps >= splits * 2 * MIN_SPLIT_STEPS:
        splits *= 2
    return splits


def _window(op: Op, graph: Graph) -> dict[str, int]:
    """The shader's figures of a sliding window."""
    h, w, _ = graph.tensors[op.inputs["x"]].shape
    ho, wo, _ = graph.tensors[op.output].shape
    top, left, _, _ = op.attrs["pad"]
    return {
        "KERNEL": op.attrs["kernel"], "STRIDE": op.attrs["stride"], "H": h, "W": w, "HO": ho, "WO": wo,
        "TOP": top, "LEFT": left,
    }  # fmt: skip


def _conv_bindings(op: Op) -> tuple[Binding, ...]:
    return (
        _data(0, op.inputs["x"]),
        Binding(1, op.inputs["weight"], "read", "quants"),
        Binding(2, op.inputs["bias"], "read", "quants"),
        _data(3, op.output),
    )


def _data(slot: int, tensor: str) -> Binding:
    return Binding(slot, tensor, "read_write")


def _dispatch(
    op: Op,
    graph: Graph,
    limits: DeviceLimits,
    shader: Shader,
    bindings: tuple[Binding, ...],
    invocations: int,
    flops: int,
    figures: tuple[int, ...] = (),
) -> Dispatch:
    """With the workgroups in rows where one row would pass the device's limit. Bytes: every tensor once."""
    groups = ceil(invocations / WORKGROUP)
    rows = ceil(groups / limits.max_workgroups)
    nbytes = sum(graph.tensors[name].nbytes for name in (*op.inputs.values(), op.output))
    if figures:
        bindings += (Binding(FIGURES_SLOT, FIGURES, "read", nbytes=4 * len(figures)),)
    return Dispatch(op.name, shader, bindings, (ceil(groups / rows), rows, 1), nbytes, flops, figures=figures)


def _fours(op: Op, *counts: Any) -> None:
    for count in counts:
        if count % 4:
            raise BadModel(
                f"The layer {op.name} has {count} channels; Tandem's kernels need a multiple of 4.", layer=op.name
            )
