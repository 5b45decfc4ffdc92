"""What a case must give by NumPy, and how far a GPU's answer is from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.compiler.reference import StepState, run
from pyapp.engine.state import state_words
from pyapp.text.sampling import SamplingParams

from .case import HALF_TOLERANCE, Case

Array = NDArray[Any]
GUARD = 256
"""Bytes of NaN bound behind every tensor, which must stay and must not show in any result."""


def words_of(state: StepState) -> Array:
    """A step state as the GPU has it before anything was sampled (uint32 [64]); the ring holds what no step writes."""
    params = SamplingParams(temperature=state.temperature, top_k=state.top_k, top_p=state.top_p, seed=state.seed)
    words = np.full(64, 0xFFFFFFFF, np.uint32)
    words[:24] = state_words(
        params, position=state.position, count=state.count, step=state.step, token=state.token, limit=state.limit,
        ends=sorted(state.ends),
    )  # fmt: skip
    words[2] = state.stop
    return words


def words_after(state: StepState, ids: list[int], first_step: int) -> Array:
    """The words of a state, with what the steps from ``first_step`` on left in its ring (uint32 [64])."""
    words = words_of(state)
    for step, token in enumerate(ids, first_step):
        words[24 + step % 32] = token
    return words


def guarded(value: Array) -> Array:
    """The words of ``value`` with NaN behind them (uint32)."""
    out = np.full((value.nbytes + 3) // 4 * 4 + GUARD, 0xFF, np.uint8)
    out[: value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return out.view(np.uint32)


def initial(case: Case) -> dict[str, Array]:
    """The guarded words of every tensor but weights and state. What is not given holds NaN: a value which no kernel
    writes cannot pass for one."""
    return {
        name: guarded(case.values.get(name, np.full(tensor.shape, np.nan, np.float32)))
        for name, tensor in case.graph.tensors.items()
        if tensor.kind not in ("weight", "state")
    }


def expected(case: Case, state: StepState) -> dict[str, Array]:
    """The outputs by NumPy; rows past ``state.count`` are left out."""
    inputs = {}
    for name, value in case.values.items():
        chunk = case.graph.tensors[name].kind == "input" and len(value) > 1 and name != "ids"
        inputs[name] = value[: state.count].copy() if chunk else value.copy()
    values = run(case.graph, inputs, case.weight, replace(state))
    return {name: values[name] for name in case.outputs}


def normalised_squared_error(value: Array, reference: Array) -> float:
    """sum((value - reference)²) / sum(reference²), in float64; infinite where value is not finite."""
    if not np.isfinite(value).all():
        return float("inf")
    wanted = reference.astype(np.float64)
    return float(np.square(value - wanted).sum() / max(np.square(wanted).sum(), 1e-30))


def compared(case: Case, state: StepState, words: dict[str, Array]) -> tuple[float, list[str]]:
    """The largest error of the float32 outputs after a run at ``state``, and what else is wrong with the ``words`` of
    all tensors: rows of no token, guards and inputs must be as they were, and float16 within HALF_TOLERANCE."""
    worst, faults, before = 0.0, [], initial(case)
    wanted = expected(case, state)
    for name, value in wanted.items():
        half = case.graph.tensors[name].dtype == "f16"
        end = value.size // 2 if half else value.size
        found = words[name][:end].view(np.float16 if half else np.float32)
        error = normalised_squared_error(found.astype(np.float32), value.reshape(-1))
        if not half:
            worst = max(worst, error)
        elif not error <= HALF_TOLERANCE:
            faults.append(f"an error of {error:.1e} in {name} at position {state.position}")
        if not np.array_equal(words[name][end:], before[name][end:]):
            faults.append(f"wrote past the {state.count} rows of {name} at position {state.position}")
    read = before.keys() - wanted.keys() - {op.output for op in case.graph.ops}
    changed = [name for name in read if not np.array_equal(words[name], before[name])]
    return worst, faults + [f"wrote to {name}, which it only reads" for name in changed]
