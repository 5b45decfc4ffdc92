"""Every kernel of the decoder, run once on this device and compared with NumPy: a driver that computes rubbish is found
out before it writes.

The kernels are the model's own, with its own constants and weights. A tiny decoder beside it would be compiled from
the same sources with other constants: other code, and twice as many pipelines. So nothing is compiled or made for the
check, it also shows that the weights have come to the right places, and it names the kernel that is wrong. Each
distinct kernel of both plans is dispatched alone on made-up inputs (``selfcheck_cases.py``) at the end of loading:
about fifteen, each with a write or two, one dispatch and a read or two. The workspace is cleared afterwards.

What a kernel must give is known but for the rounding of float32: the tolerances are those of the kernel tests.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..compiler.graph import Tensor
from ..errors import DeviceLost
from ..gpu.plan import Plan
from ..models.decoder import rope_table
from ..text.sampling import SamplingParams
from ..weights.formats import row_sizes, unpack
from .language import LanguageRunner
from .selfcheck_cases import POSITIONS, Case, Cases, kernels_of
from .state import StepState as Words
from .state import state_words

log = logging.getLogger(__name__)

Array = NDArray[Any]
TOLERANCE = 1e-9
"""Of sum((value - reference)²) / sum(reference²)."""
HALF_TOLERANCE = 1e-6
"""The same of float16 that was written: a value at the border of two halves may go to either."""


class Verdicts(Protocol):
    """Which kernels have been found right lately, on earlier visits too."""

    async def passed(self, kernels: str) -> bool: ...

    async def keep(self, kernels: str) -> None: ...


@dataclass(frozen=True)
class Finding:
    """How far a kernel was from NumPy, over the tolerance: at most 1 is right. None where nothing could be compared,
    because the weights themselves are no numbers."""

    operation: str
    kernel: str
    error: float | None


@dataclass(frozen=True)
class Report:
    """What was found, and the milliseconds it took."""

    findings: tuple[Finding, ...]
    ms: float

    @property
    def wrong(self) -> list[Finding]:
        """Farthest first."""
        found = [each for each in self.findings if each.error is not None and not each.error <= 1]
        return sorted(found, key=lambda each: -(each.error or 0))

    @property
    def complete(self) -> bool:
        return all(each.error is not None for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {"kernels": [asdict(each) for each in self.findings], "ms": self.ms}


def name_of(*plans: Plan) -> str:
    """A short name of what the plans are made of: each distinct kernel with all its constants, so formats as well."""
    kernels = sorted({repr((d.shader, tuple(b.buffer_type for b in d.bindings))) for p in plans for d in p.dispatches})
    return hashlib.sha256("\n".join(kernels).encode()).hexdigest()[:32]


async def vouch(
    runner: LanguageRunner, verdicts: Verdicts | None, progress: Callable[[int, int], None] = lambda done, total: None
) -> Report | None:
    """Checks the kernels, unless ``verdicts`` has it that they were right; None then. Raises ``DeviceLost`` of the kind
    wrong_result where one is not. Callers hold the lease, and nothing of the workspace is in use."""
    name = name_of(runner.decode_plan, runner.prefill_plan)
    if verdicts is not None and await verdicts.passed(name):
        return None
    report = await check(runner, progress)
    log.info("%d kernels compared with NumPy in %.0f ms", len(report.findings), report.ms)
    if report.wrong:
        raise _wrong_result(report)
    if verdicts is not None and report.complete:
        await verdicts.keep(name)
    return report


async def check(
    runner: LanguageRunner, progress: Callable[[int, int], None] = lambda done, total: None
) -> Report:  # fmt: skip
    """Runs every distinct kernel of ``runner`` once and compares it with NumPy. Raises ``DeviceLost``."""
    start = time.perf_counter()
    # What both plans have in common is tried with the several tokens of a chunk.
    plans = runner.prefill_plan, runner.decode_plan
    turns = rope_table(runner.config, min(POSITIONS, runner.context), runner.rope_factors)
    rows = _Stored(runner)
    makers = [
        Cases(graph, plan, runner.context, rows.rows, turns)
        for graph, plan in zip(reversed(runner.graphs()), plans, strict=True)
    ]  # fmt: skip
    todo = kernels_of(*plans)
    findings = []
    progress(0, len(todo))
    runner.written = runner.context
    try:
        for number, (which, index) in enumerate(todo):
            dispatch = plans[which].dispatches[index]
            errors = [await _run(runner, makers[which], case) for case in await makers[which].of(index)]
            known = [error for error in errors if error is not None]
            findings.append(Finding(dispatch.operation, dispatch.shader.label, max(known, default=None)))
            progress(number + 1, len(todo))
    finally:
        runner.clear_cache()
        runner.clear_activations()
    return Report(tuple(findings), (time.perf_counter() - start) * 1000)


async def _run(runner: LanguageRunner, maker: Cases, case: Case) -> float | None:
    """The error of a case over its tolerance; None where NumPy has no number to compare with."""
    plan, tensors = maker.plan, maker.graph.tensors
    steps = runner.decode if plan is runner.decode_plan else runner.prefill
    for name, row, value in case.given:
        runner.put(plan, name, row * _row_bytes(tensors[name]), value)
    runner.put(plan, "state", 0, _words(case))
    for _ in range(case.steps or 1):
        await steps.run(((case.dispatch, case.dispatch + 1),), tiles=-(-case.state.count // plan.tile))
    if case.after is not None:
        return 0.0 if await _sampled(runner, plan, case) else float("inf")
    found: list[float | None] = []
    for name, row, columns, wanted in case.wanted:
        row_bytes = _row_bytes(tensors[name])
        raw = await runner.read(plan, name, row * row_bytes, len(wanted) * row_bytes)
        half = tensors[name].dtype == "f16"
        values = raw.view(np.float16 if half else np.float32).reshape(len(wanted), -1)[:, columns]
        error = _error(values, wanted)
        found.append(error if error is None else error / (HALF_TOLERANCE if half else TOLERANCE))
    return max((error for error in found if error is not None), default=None)


async def _sampled(runner: LanguageRunner, plan: Plan, case: Case) -> bool:
    """Whether sampling has left the state that NumPy has."""
    after = case.after
    assert after is not None
    words = Words((await runner.read(plan, "state", 0, 256)).view(np.uint32))
    left = words.token, words.position, words.stopped, words.step, words.ids_since(0)
    return left == (after.token, after.position, after.stop, after.step, after.ids)


def _words(case: Case) -> Array:
    state = case.state
    params = SamplingParams(temperature=state.temperature, top_k=state.top_k, top_p=state.top_p, seed=state.seed)
    return state_words(
        params, position=state.position, count=state.count, token=state.token, limit=state.limit, ends=()
    )  # fmt: skip


def _row_bytes(tensor: Tensor) -> int:
    """Bytes from one row of a tensor to the next; one of three dimensions is a single row."""
    return tensor.nbytes // (tensor.shape[0] if len(tensor.shape) < 3 else 1)


def _error(values: Array, wanted: Array) -> float | None:
    known = np.isfinite(wanted)
    if not known.any():
        return None
    value, reference = values[known].astype(np.float64), wanted[known].astype(np.float64)
    if not np.isfinite(value).all():
        return float("inf")
    return float(np.square(value - reference).sum() / max(np.square(reference).sum(), 1e-30))


class _Stored:
    """Rows of the weights as the store has them."""

    def __init__(self, runner: LanguageRunner) -> None:
        self._weights = runner.weights
        self._tensors: dict[str, Tensor] = {
            name: tensor for graph in runner.graphs() for name, tensor in graph.tensors.items()
        }

    async def rows(self, name: str, numbers: Array) -> Array:
        """float32 [numbers, K]; of a vector, its values at ``numbers``."""
        tensor, entry = self._tensors[name], self._weights.entries[name]
        k = tensor.shape[1] if len(tensor.shape) == 2 else 1
        quants, scales = row_sizes(tensor.fmt, k)
        out = np.empty((len(numbers), k), np.float32)
        for begin, end in _runs(numbers):
            first, count = int(numbers[begin]), end - begin
            sections = [
                await self._bytes(offset + first * row, count * row)
                for offset, row in ((entry.quants_offset, quants), (entry.scales_offset, scales))
            ]
            out[begin:end] = unpack(tensor.fmt, sections[0], sections[1], count, k)
        return out if len(tensor.shape) == 2 else out[:, 0]

    async def _bytes(self, offset: int, nbytes: int) -> Array:
        if not nbytes:
            return np.zeros(0, np.uint8)
        return np.frombuffer((await self._weights.reader.read_js(offset, nbytes)).to_bytes(), np.uint8)


def _runs(numbers: Array) -> list[tuple[int, int]]:
    """[from, to) of the stretches in which each number is one more than the one before."""
    edges = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
    return list(pairwise(edges))


def _wrong_result(report: Report) -> DeviceLost:
    worst = report.wrong[0]
    assert worst.error is not None
    names = ", ".join(dict.fromkeys(each.kernel for each in report.wrong))
    return DeviceLost(
        f"This GPU computes wrong results: {len(report.wrong)} of {len(report.findings)} kernels differ from what they "
        f"must give, {worst.kernel} the most. An update of the browser or of the graphics driver may help.",
        kind="wrong_result",
        kernels=names,
        operation=worst.operation,
        error=worst.error if np.isfinite(worst.error) else None,
    )
