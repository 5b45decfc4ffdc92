"""What the kernels of a decoder are tried with: made-up inputs of one dispatch, and what NumPy makes of them.

A matrix product is compared on rows at the beginning, in the middle and at the end of its weight, since NumPy would
take seconds for all of them: the operation is cut to these rows and handed to ``compiler/reference.py``. The others are
compared whole. Inputs are drawn anew for each dispatch, about as large as a model's; weights are the model's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compiler.graph import Graph, Op
from ..compiler.reference import OPERATIONS, Run, StepState
from ..compiler.reference_decoder import attention_parts
from ..gpu.plan import Dispatch, Plan

Array = NDArray[Any]
Rows = Callable[[str, Array], Awaitable[Array]]
"""``rows(weight, numbers)`` -> float32 [numbers, K]; of a vector, its values at ``numbers``."""
SOME = 8
"""Rows of a weight that are compared at its beginning, in its middle and at its end."""
POSITIONS = 130
"""Of the cache that attention reads: more than two of the parts that it is split into while decoding."""
LIKELY = 8
"""The most tokens that sampling may draw."""
NO_WEIGHTS: dict[str, Array] = {}
STEPS = 8
"""Tokens that each way to sample draws, one after the other."""


@dataclass
class Case:
    """One dispatch, what it is given and what must come of it.

    ``given``: values of tensors from (row) on; ``wanted``: values of chosen columns of a tensor's rows from (row) on.
    """

    dispatch: int
    state: StepState
    given: list[tuple[str, int, Array]] = field(default_factory=list)
    wanted: list[tuple[str, int, Array, Array]] = field(default_factory=list)
    steps: int = 0
    """How often it is run: a way to sample, which leaves ``after``."""
    after: StepState | None = None


def kernels_of(*plans: Plan) -> list[tuple[int, int]]:
    """(plan, dispatch) where each distinct kernel of the plans runs for the first time."""
    first: dict[Any, tuple[int, int]] = {}
    for number, plan in enumerate(plans):
        for index, dispatch in enumerate(plan.dispatches):
            first.setdefault(dispatch.shader, (number, index))
    return list(first.values())


@dataclass(frozen=True)
class Cases:
    """Makes the cases of one plan. ``turns``: the RoPE table, float32 [positions, head size / 2, 2]."""

    graph: Graph
    plan: Plan
    context: int
    rows: Rows
    turns: Array

    async def of(self, index: int) -> list[Case]:
        """The cases of one dispatch."""
        dispatch = self.plan.dispatches[index]
        op = next(op for op in self.graph.ops if op.name == dispatch.operation)
        random = np.random.default_rng(index)
        if op.kind == "sample":
            return list(self._sampling(index, op, dict(dispatch.shader.params)["WG"]))
        # Of a chunk a whole tile and a part of one.
        count = min(self.plan.tile + 1, self.graph.tensors["ids"].shape[0]) if self.plan.tile > 1 else 1
        position = min(POSITIONS, self.context) - count
        case = Case(index, StepState(position=position, count=count))
        if op.kind == "embed":
            return [await self._embed(case, op, dispatch, random)]
        values = self._inputs(op, case.state, random)
        case.given += [(name, row, value) for name, (row, value) in values.items()]
        cut = await self._cut(op, dispatch, {name: value for name, (_, value) in values.items()}, case.state)
        run = Run(self.graph, cut.weights.__getitem__, case.state, cut.values)
        with np.errstate(all="ignore"):  # a damaged weight may be anything
            result = OPERATIONS[cut.op.kind](run, cut.op)
        assert result is not None
        if op.kind == "attention":
            result, cut.columns = self._used_parts(op, case.state, result)
        case.wanted.append((op.output, 0, cut.columns, result))
        if cut.cache is not None:
            stored = run.values[op.inputs["kv"]][position : position + count]
            case.wanted.append((op.inputs["kv"], position, cut.cache, stored))
        return [case]

    # -- what is given ------------------------------------------------------------------------------------------

    def _inputs(self, op: Op, state: StepState, random: np.random.Generator) -> dict[str, tuple[int, Array]]:
        """By tensor: the first row, and values of the operation's activations and of the cache that it reads."""
        out: dict[str, tuple[int, Array]] = {}
        for role, name in op.inputs.items():
            tensor = self.graph.tensors[name]
            if tensor.kind == "weight" or name == "rope" or (role == "kv" and op.kind != "attention"):
                continue
            if role == "kv":
                shape = (state.position + state.count, tensor.shape[1])
                out[name] = 0, random.standard_normal(shape).astype(np.float16 if tensor.dtype == "f16" else np.float32)
            elif len(tensor.shape) == 3:
                out[name] = 0, self._parts(tensor.shape, state.position + 1, random)
            else:
                out[name] = 0, random.standard_normal((min(state.count, tensor.shape[0]), tensor.shape[1]), np.float32)
        return out

    def _parts(self, shape: tuple[int, ...], positions: int, random: np.random.Generator) -> Array:
        """Partial results of attention; the parts that so many positions do not need hold zeros."""
        parts: Array = random.standard_normal(shape, np.float32)
        parts[..., -3] = random.uniform(1, 9, shape[:2])
        parts[..., -2:] = 0
        parts[:, attention_parts(positions, shape[1]) :] = 0
        return parts

    # -- the operation, cut ---------------------------------------------------------------------------------------

    async def _cut(self, op: Op, dispatch: Dispatch, values: dict[str, Array], state: StepState) -> _Cut:
        weights: dict[str, Array] = {}
        for role in ("gain", "q_gain", "k_gain"):
            if role in op.inputs:
                name = op.inputs[role]
                weights[name] = await self.rows(name, np.arange(self.graph.tensors[name].shape[0]))
        width = int(np.prod(self.graph.tensors[op.output].shape[1:]))
        cut = _Cut(op, weights, dict(values), np.arange(width))
        if "rope" in op.inputs:
            cut.values["rope"] = self.turns
        if op.kind == "linear":
            numbers = cut.to_rows(*_piece(dispatch))
            name = op.inputs["weight"]
            weights[name] = await self.rows(name, numbers)
            if "bias" in op.inputs:
                weights[op.inputs["bias"]] = await self.rows(op.inputs["bias"], numbers)
            if "residual" in op.inputs:
                residual = op.inputs["residual"]
                cut.values[residual] = values[residual][:, cut.columns]
        elif "rope" in op.inputs:
            cut.cache = np.arange(self.graph.tensors[op.inputs["kv"]].shape[1])
        if cut.cache is not None:
            half = self.graph.tensors[op.inputs["kv"]].dtype == "f16"
            shape = (state.position + state.count, len(cut.cache))
            cut.values[op.inputs["kv"]] = np.zeros(shape, np.float16 if half else np.float32)
        return cut

    def _used_parts(self, op: Op, state: StepState, result: Array) -> tuple[Array, Array]:
        """Of a split attention what is left of each head by the parts that are used, with its columns in the output."""
        if result.ndim == 2:
            return result, np.arange(result.shape[1])
        heads, splits, width = result.shape
        used = attention_parts(state.position + 1, splits)
        columns = np.arange(heads * splits * width).reshape(heads, splits, width)[:, :used]
        return result[:, :used].reshape(1, -1), columns.reshape(-1)

    async def _embed(self, case: Case, op: Op, dispatch: Dispatch, random: np.random.Generator) -> Case:
        values = dict(dispatch.shader.params)
        ids = values["ROW0"] + random.integers(0, values["N"], case.state.count)
        ids[-1] = values["ROW0"] + values["N"] - 1
        if values["IDS"]:
            case.given.append((op.inputs["ids"], 0, ids.astype(np.uint32)))
        else:
            case.state = replace(case.state, token=int(ids[0]))
        wanted = await self.rows(op.inputs["table"], ids)
        case.wanted.append((op.output, 0, np.arange(wanted.shape[1]), wanted))
        return case

    # -- sampling -------------------------------------------------------------------------------------------------

    def _sampling(self, index: int, op: Op, walk: int) -> Iterator[Case]:
        """Some tokens among many that are out of the question, and logits of which none is a number. What draws does so
        from a list of the largest, and from all where top_k is as many as its invocations."""
        vocab = self.graph.tensors[op.inputs["logits"]].shape[1]
        # All over the vocabulary, in pairs that one invocation walks.
        spread = np.linspace(0, vocab - 1, LIKELY // 2).astype(np.int64)
        likely = np.unique(np.concatenate([spread, spread - walk]).clip(0))
        logits = np.full((1, vocab), -30, np.float32)
        logits[0, likely] = 2 - 0.3 * ((np.arange(len(likely)) * 3 + 1) % LIKELY)
        draws = StepState(seed=7, walk=walk)
        if not op.attrs["greedy"]:
            draws = replace(draws, temperature=0.8, top_k=5, top_p=0.9)
        todo = [(draws, logits), (draws, np.full_like(logits, np.nan))]
        if not op.attrs["greedy"]:
            todo.append((replace(draws, top_k=walk), logits))
        for begin, given in todo:
            after = replace(begin, ids=[])
            run = Run(self.graph, NO_WEIGHTS.__getitem__, after, {op.inputs["logits"]: given})
            for _ in range(STEPS):
                OPERATIONS["sample"](run, op)
            yield Case(index, begin, [(op.inputs["logits"], 0, given)], steps=STEPS, after=after)


@dataclass
class _Cut:
    """An operation on some of its rows: which columns of the output, and of the cache, these are."""

    op: Op
    weights: dict[str, Array]
    values: dict[str, Array]
    columns: Array
    cache: Array | None = None

    def to_rows(self, first: int, count: int) -> Array:
        """Cuts a product to some of the ``count`` rows from ``first`` on; returns their numbers."""
        attrs = self.op.attrs
        match attrs.get("epilogue", ""):
            case "silu_mul":
                self.columns = _some(count // 2)
                return np.concatenate([self.columns, self.columns + count // 2])
            case "rope_cache":
                d, q_rows, kv_rows = attrs["head_dim"], attrs["q_rows"], attrs["kv_rows"]
                self.columns, keys = _end_heads(q_rows, d), _end_heads(kv_rows, d)
                self.cache = np.concatenate([keys, kv_rows + keys])
                self.op = self.op.with_(attrs={**attrs, "q_rows": len(self.columns), "kv_rows": len(keys)})
                return np.concatenate([self.columns, q_rows + self.cache])
        self.columns = first + _some(count)
        return self.columns


def _piece(dispatch: Dispatch) -> tuple[int, int]:
    """(first row, rows) of the weight that a product's dispatch goes over."""
    [output] = [binding for binding in dispatch.bindings if binding.slot == 3]
    return output.offset // 4, dict(dispatch.shader.params)["N"]


def _some(count: int) -> Array:
    """Up to three runs of ``SOME`` of ``count`` numbers."""
    starts = (0, (count - SOME) // 2, count - SOME)
    return np.unique(np.concatenate([np.arange(max(0, start), min(count, max(0, start) + SOME)) for start in starts]))


def _end_heads(rows: int, d: int) -> Array:
    """The rows of the first head and of the last one."""
    return np.unique(np.concatenate([np.arange(d), np.arange(rows - d, rows)]))
