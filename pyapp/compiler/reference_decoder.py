"""NumPy float32 of the decoder operations: what the kernels of ``lower_decoder.py`` and ``lower_attention.py`` compute.

Formulas: RMSNorm (Zhang and Sennrich 2019), RoPE on neighbouring pairs (Su et al. 2021), grouped attention (Ainslie et
al. 2023), SwiGLU (Shazeer 2020), top-k then top-p sampling (Holtzman et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .graph import NO_TOKEN, Op
from .lower_attention import MIN_SPLIT

if TYPE_CHECKING:
    from .reference import Run

Float = NDArray[np.float32]
HALF_MAX = 65504.0
"""The largest float16: a float16 cache keeps what lies beyond it there."""


@dataclass
class StepState:
    """The step state of ``shaders/state.wgsl``. ``ids``: every token sampled so far (there a ring of the last ones).

    A graph may hold both ways to sample; temperature 0 runs the greedy one, any other the random one.
    """

    token: int = 0
    position: int = 0
    stop: bool = False
    step: int = 0
    count: int = 1
    limit: int = 1 << 30
    ends: frozenset[int] = frozenset()
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    ids: list[int] = field(default_factory=list)
    walk: int = 64
    """Invocations that sampling shares the vocabulary among: tokens are walked by ``id % walk``, then by id."""


def embed(run: Run, op: Op) -> Float:
    tokens = run.graph.tensors[op.output].shape[0]
    table: Any = run.need(op, "table")
    ids: Any = [run.state.token] if tokens == 1 else run.need(op, "ids")[: run.state.count]
    return np.asarray(table[ids], np.float32)


def normalised(x: Float, eps: float) -> Float:
    """x / sqrt(mean(x²) + eps) along the last axis."""
    squares: Any = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return x / np.sqrt(squares + np.float32(eps))


def rms_norm(run: Run, op: Op) -> Float:
    x: Any = run.need(op, "x")
    gain: Any = run.need(op, "gain")
    return normalised(x, op.attrs["eps"]) * gain


def linear(run: Run, op: Op) -> Float | None:
    prologue, epilogue = op.attrs.get("prologue", ""), op.attrs.get("epilogue", "")
    x: Any = run.need(op, "x")
    if prologue == "attention_merge":
        x = attention_merge(run, op)
    elif prologue == "rms_norm":
        x = rms_norm(run, op)
    if op.attrs.get("x_row") == "last":
        x = x[-1:]
    weight: Any = run.need(op, "weight")
    y = x @ weight.T
    bias: Any = run.input(op, "bias")
    if bias is not None:
        y = y + bias
    if epilogue == "residual":
        residual: Any = run.need(op, "residual")
        return residual + y
    if epilogue == "silu_mul":
        return gated(y)
    if epilogue == "rope_cache":
        heads = op.attrs["q_rows"] // op.attrs["head_dim"], op.attrs["kv_rows"] // op.attrs["head_dim"]
        return turn_and_store(run, op, y, *heads, op.attrs["head_dim"])
    return y


def gated(x: Float) -> Float:
    """silu(gate) · up of x = gate | up; silu(v) = v / (1 + exp(-v))."""
    gate, up = np.split(x, 2, axis=-1)
    one: Any = np.float32(1)
    with np.errstate(over="ignore"):  # exp(-v) = inf gives the right 0
        return gate / (one + np.exp(-gate)) * up


def silu_mul(run: Run, op: Op) -> Float:
    x: Any = run.need(op, "x")
    return gated(x)


def add(run: Run, op: Op) -> Float:
    x: Any = run.need(op, "x")
    residual: Any = run.need(op, "residual")
    return residual + x


def rope_cache(run: Run, op: Op) -> Float:
    qkv: Any = run.need(op, "qkv")
    return turn_and_store(run, op, qkv, op.attrs["heads"], op.attrs["kv_heads"], op.attrs["head_dim"])


def turn_and_store(run: Run, op: Op, qkv: Float, heads: int, kv_heads: int, d: int) -> Float:
    """qkv [T, (heads + 2·kv_heads)·d] → q [T, heads·d] turned; k (turned) and v go to the cache [C, 2·kv_heads·d]."""
    tokens = len(qkv)
    first = run.state.position
    parts = qkv.reshape(tokens, heads + 2 * kv_heads, d)
    q, k, v = np.split(parts, [heads, heads + kv_heads], axis=1)
    if "q_gain" in op.inputs:
        q_gain: Any = run.need(op, "q_gain")
        k_gain: Any = run.need(op, "k_gain")
        q, k = normalised(q, op.attrs["eps"]) * q_gain, normalised(k, op.attrs["eps"]) * k_gain
    table: Any = run.need(op, "rope")
    turns = table[first : first + tokens]
    if not run.state.stop:
        cache: Any = run.need(op, "kv")
        stored = np.concatenate([turned(k, turns), v], axis=1)
        if cache.dtype == np.float16:
            stored = stored.clip(-HALF_MAX, HALF_MAX)
        cache[first : first + tokens] = stored.reshape(tokens, -1)
    return turned(q, turns).reshape(tokens, heads * d)


def turned(x: Float, turns: Float) -> Float:
    """Pairs (2i, 2i + 1) of x [T, heads, d] by the angle whose (cos, sin) is turns [T, d / 2, 2]."""
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = turns[:, None, :, 0], turns[:, None, :, 1]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def split_length(positions: int, splits: int) -> int:
    """Positions that each part of a split attention covers."""
    return max(MIN_SPLIT, -(-positions // splits))


def attention_parts(positions: int, splits: int) -> int:
    """How many of the parts that attention is split into so many positions need."""
    return -(-positions // split_length(positions, splits))


def attention(run: Run, op: Op) -> Float:
    """Causal attention of the chunk's tokens over the cache; with splits > 1 the partial results of one token.

    A part leaves [values · exp(score - top) summed | top | sum of exp(score - top) | 0 | 0]; an unused part all zeros.
    """
    heads, kv_heads, d, splits = (op.attrs[key] for key in ("heads", "kv_heads", "head_dim", "splits"))
    q: Any = run.need(op, "q")
    cache: Any = run.need(op, "kv")
    tokens = len(q)
    q = q.reshape(tokens, heads, d) * np.float32(d**-0.5)
    cache = cache.astype(np.float32).reshape(len(cache), 2, kv_heads, d)
    out = np.zeros((tokens, heads, splits, d + 4), np.float32)
    for t in range(tokens):
        n = run.state.position + t + 1
        length = split_length(n, splits) if splits > 1 else n
        for part, begin in enumerate(range(0, n, length)):
            end = min(n, begin + length)
            # Query heads that share a key head are neighbours.
            k, v = (np.repeat(cache[begin:end, i], heads // kv_heads, axis=1) for i in (0, 1))
            scores = np.einsum("hd,phd->hp", q[t], k)
            top = scores.max(axis=1)
            weights = np.exp(scores - top[:, None])
            out[t, :, part, :d] = np.einsum("hp,phd->hd", weights, v)
            out[t, :, part, d], out[t, :, part, d + 1] = top, weights.sum(axis=1)
    if splits > 1:
        return out[0]
    whole: Any = out[:, :, 0, :d] / out[:, :, 0, d + 1, None]
    return whole.reshape(tokens, heads * d)


def attention_merge(run: Run, op: Op) -> Float:
    """Partial results [heads, splits, d + 4] → [1, heads · d]."""
    x: Any = run.need(op, "x")
    d = x.shape[-1] - 4
    tops, totals = x[..., d], x[..., d + 1]
    used = totals > 0
    scale = np.where(
        used, np.exp(np.where(used, tops - tops.max(axis=1, keepdims=True, where=used, initial=-3e38), 0)), 0
    )
    total = (scale * totals).sum(axis=1, keepdims=True)
    merged = np.einsum("hs,hsd->hd", scale.astype(np.float32), x[..., :d]) / total
    result: Any = merged.astype(np.float32).reshape(1, -1)
    return result


def last_row(run: Run, op: Op) -> Float:
    x: Any = run.need(op, "x")
    return x[-1:]


def sample(run: Run, op: Op) -> None:
    logits: Any = run.need(op, "logits")
    state = run.state
    if state.stop or op.attrs["greedy"] != (state.temperature == 0):
        return
    numbers: Any = np.where(np.isfinite(logits[0]), logits[0], -np.inf)
    if np.isneginf(numbers).all():
        token = NO_TOKEN
    else:
        token = int(np.argmax(numbers)) if op.attrs["greedy"] else draw(numbers, state)
    state.ids.append(token)
    state.token = token
    state.position += state.count
    state.count = 1
    state.step += 1
    state.stop = token == NO_TOKEN or token in state.ends or state.step >= state.limit


def draw(logits: Float, state: StepState) -> int:
    """A token by temperature, then top_k, then top_p; ties at a border stay in. One of the ``logits`` is finite."""
    mass = np.exp((logits.astype(np.float64) - logits.max()) / state.temperature)
    kept = kept_tokens(logits, mass, state.top_k, state.top_p)
    order = np.argsort(np.arange(len(logits)) % state.walk, kind="stable")
    order = order[kept[order]]
    running = np.cumsum(mass[order])
    return int(order[np.searchsorted(running, uniform_draw(state.seed, state.step) * running[-1], side="right")])


def kept_tokens(logits: Float, mass: NDArray[np.float64], top_k: int, top_p: float) -> NDArray[np.bool_]:
    """Which tokens may be drawn: the top_k largest (0: all), of them the fewest largest that hold top_p of the mass."""
    border = -np.inf
    if 0 < top_k < len(logits):
        border = np.partition(logits, -top_k)[-top_k]
    if top_p < 1:
        order = np.argsort(-logits, kind="stable")
        order = order[logits[order] >= border]
        held = np.cumsum(mass[order])
        border = max(border, logits[order[np.searchsorted(held, top_p * held[-1])]])
    return logits >= border


def uniform_draw(seed: int, step: int) -> float:
    """PCG (O'Neill 2014) over seed and step, in [0, 1): the function of the same name in ``shaders/sample.wgsl``."""
    mask = 0xFFFFFFFF

    def permute(h: int) -> int:
        h = (((h >> ((h >> 28) + 4)) ^ h) * 277803737) & mask
        return (h >> 22) ^ h

    h = permute(((seed ^ (step * 0x9E3779B9 & mask)) * 747796405 + 2891336453) & mask)
    h = permute((h * 747796405 + 2891336453 + step) & mask)
    return (h >> 8) / 16777216.0


DECODER: dict[str, Callable[[Run, Op], Any]] = {
    "embed": embed,
    "rms_norm": rms_norm,
    "linear": linear,
    "head_norm_rope_cache": rope_cache,
    "rope_cache": rope_cache,
    "attention": attention,
    "attention_merge": attention_merge,
    "add": add,
    "silu_mul": silu_mul,
    "last_row": last_row,
    "sample": sample,
}
