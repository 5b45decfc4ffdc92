"""NumPy float32 of the vision operations, NHWC. Quick enough to classify a picture in WebAssembly (see ``product``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .graph import Op

if TYPE_CHECKING:
    from .reference import Run

Float = NDArray[np.float32]
HAS_BLAS = sys.platform != "emscripten"
"""Pyodide's NumPy is built without a BLAS: its matmul adds one product after another."""


def product(x: Float, w: Float) -> Float:
    """x [P, K] · w [K, N] → [P, N].

    Without a BLAS, einsum over two operands that are contiguous along K runs unrolled and is 2.5 times as fast as
    matmul (measured in Pyodide 314.0.3: 2.4 against 0.9 GMAC/s), except on short K. It wants w as the transpose of a
    contiguous [N, K] array; any other w is copied into that form first.
    """
    if HAS_BLAS or x.shape[1] < 64:
        return np.matmul(x, w)
    return np.einsum("pk,nk->pn", np.ascontiguousarray(x), np.ascontiguousarray(w.T))


def pad(x: Float, padding: tuple[int, int, int, int]) -> Float:
    """x [h, w, C] with zeros around it: (top, left, bottom, right)."""
    top, left, bottom, right = padding
    if not any(padding):
        return x
    h, w, c = x.shape
    out = np.zeros((h + top + bottom, w + left + right, c), np.float32)
    out[top : top + h, left : left + w] = x
    return out


def convolve(x: Float, w: Float, kernel: int, stride: int, padding: tuple[int, int, int, int]) -> Float:
    """Dense: x [h, w, Cin], w [kernel·kernel·Cin, Cout] → [h', w', Cout]."""
    x = pad(x, padding)
    h, width = (x.shape[0] - kernel) // stride + 1, (x.shape[1] - kernel) // stride + 1
    taps = [
        x[ky : ky + (h - 1) * stride + 1 : stride, kx : kx + (width - 1) * stride + 1 : stride]
        for ky in range(kernel)
        for kx in range(kernel)
    ]
    columns = taps[0] if len(taps) == 1 else np.concatenate(taps, axis=-1)
    return product(columns.reshape(h * width, -1), w).reshape(h, width, -1)


def convolve_depthwise(x: Float, w: Float, kernel: int, stride: int, padding: tuple[int, int, int, int]) -> Float:
    """Each channel by itself: x [h, w, C], w [kernel·kernel, C] → [h', w', C], a shifted product a tap."""
    x = pad(x, padding)
    h, width, c = (x.shape[0] - kernel) // stride + 1, (x.shape[1] - kernel) // stride + 1, x.shape[2]
    out, term = np.empty((h, width, c), np.float32), np.empty((h, width, c), np.float32)
    for tap in range(kernel * kernel):
        y, column = divmod(tap, kernel)
        shifted = x[y : y + (h - 1) * stride + 1 : stride, column : column + (width - 1) * stride + 1 : stride]
        np.multiply(shifted, w[tap], out=term if tap else out)
        if tap:
            out += term
    return out


def conv(run: Run, op: Op) -> Float:
    """y = activation(conv(normalised x) + bias + residual); x may be [P, C] for kernel 1."""
    attrs = op.attrs
    x: Any = run.need(op, "x")
    if attrs.get("normalise"):
        mean, scale = attrs["normalise"]
        x = (x.astype(np.float32) - np.float32(mean)) / np.float32(scale)
    w: Any = run.need(op, "weight")
    kernel, stride, padding, groups = attrs["kernel"], attrs["stride"], tuple(attrs["pad"]), attrs["groups"]
    if x.ndim == 2:
        y = product(x, w)
    elif groups == 1:
        y = convolve(x, w, kernel, stride, padding)
    elif groups == x.shape[2] == w.shape[1]:
        y = convolve_depthwise(x, w, kernel, stride, padding)
    else:
        raise NotImplementedError(f"conv {op.name}: {groups} groups of {x.shape[2]} channels")
    for role in ("bias", "residual"):
        term: Any = run.input(op, role)
        if term is not None:
            y += term
    return activate(y, attrs.get("activation", ""), out=y)


def activate(x: Float, activation: str, out: Float | None = None) -> Float:
    """relu6, relu or none ("") of x, into ``out`` where given."""
    if activation == "relu6":
        return np.clip(x, np.float32(0), np.float32(6), out=out)
    if activation == "relu":
        return np.maximum(x, np.float32(0), out=out)
    if activation == "":
        return x
    raise NotImplementedError(f"activation {activation!r}")


def activation(run: Run, op: Op) -> Float:
    x: Any = run.need(op, "x")
    return activate(x, op.attrs["activation"])


def sum_(run: Run, op: Op) -> Float:
    a: Any = run.need(op, "a")
    b: Any = run.need(op, "b")
    return a + b


def global_pool(run: Run, op: Op) -> Float:
    x: Any = run.need(op, "x")
    return x.reshape(-1, x.shape[-1]).mean(axis=0, dtype=np.float32, keepdims=True)


VISION: dict[str, Callable[[Run, Op], Any]] = {
    "conv": conv,
    "activation": activation,
    "sum": sum_,
    "global_pool": global_pool,
}
