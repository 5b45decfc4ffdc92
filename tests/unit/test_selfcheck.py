"""The check of the kernels without a GPU: what it compares with, and what follows from what it finds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyapp.compiler.graph import NO_TOKEN, CacheDtype
from pyapp.compiler.lowering import lower
from pyapp.compiler.passes import decoder_passes, fuse
from pyapp.compiler.products import SIMPLE_TILE
from pyapp.compiler.reference import OPERATIONS, Run
from pyapp.engine import selfcheck
from pyapp.engine.selfcheck import Finding, Report, name_of, vouch
from pyapp.engine.selfcheck_cases import STEPS, Case, Cases, kernels_of
from pyapp.errors import DeviceLost
from pyapp.gpu.limits import DeviceLimits
from tests.unit.tiny_models import CONTEXT, Tiny

Array = NDArray[Any]
WHOLE = DeviceLimits(subgroup=4, software=True)
CUT = DeviceLimits()


def plans(tiny: Tiny, limits: DeviceLimits, kv: CacheDtype = "f32") -> list[Any]:
    """(graph, plan) of a chunk of 8 tokens and of one token. Cut: by the smallest bindings that will do."""
    if limits == CUT:
        limits = replace(CUT, max_binding=max(32 << 10, CONTEXT * tiny.config.kv_row_bytes(kv)))
    graphs = [fuse(tiny.graph(*shape, kv=kv), decoder_passes(limits)) for shape in ((8, 1), (1, 4))]
    return [(graph, lower(graph, limits)) for graph in graphs]


async def cases(tiny: Tiny, limits: DeviceLimits, kv: CacheDtype = "f32") -> list[tuple[Any, Case]]:
    """The cases of every kernel, with its graph and operation."""

    async def rows(name: str, numbers: Array) -> Array:
        return tiny.weights[name][numbers]

    both = plans(tiny, limits, kv)
    out: list[tuple[Any, Case]] = []
    for which, index in kernels_of(*(plan for _, plan in both)):
        graph, plan = both[which]
        made = await Cases(graph, plan, CONTEXT, rows, tiny.caches()["rope"]).of(index)
        op = next(op for op in graph.ops if op.name == plan.dispatches[index].operation)
        out += [(SimpleNamespace(graph=graph, op=op), case) for case in made]
    return out


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("limits", [WHOLE, CUT], ids=["whole", "cut"])
@pytest.mark.parametrize("name", ["tiny-qwen2-Q4_1-tied", "tiny-qwen3-Q8_0-tied", "tiny-llama-BF16-tied"])
async def test_what_is_wanted_of_some_rows_is_what_the_whole_operation_gives(
    name: str, limits: DeviceLimits, kv: CacheDtype
) -> None:
    tiny = await Tiny.open(name)
    kinds, compared = set(), 0
    for at, case in await cases(tiny, limits, kv):
        graph, op = at.graph, at.op
        kinds.add(op.kind)
        values: dict[str, Array] = {**tiny.caches(kv), **{tensor: value for tensor, _, value in case.given}}
        run = Run(graph, tiny.weights.__getitem__, replace(case.state), values)
        if case.after is not None:
            run.state.ids = []
            for _ in range(case.steps):
                OPERATIONS["sample"](run, op)
            assert run.state == case.after
            continue
        result = OPERATIONS[op.kind](run, op)
        assert result is not None
        values[op.output] = result
        for tensor, row, columns, wanted in case.wanted:
            assert np.isfinite(wanted).all()
            shape = graph.tensors[tensor].shape
            whole = values[tensor].reshape(1, -1) if len(shape) == 3 else values[tensor]
            found = whole[row : row + len(wanted)][:, columns]
            np.testing.assert_allclose(found, wanted, rtol=2e-3 if wanted.dtype == np.float16 else 2e-5, atol=1e-5)
            compared += 1
    assert compared >= len(kinds)
    assert {"embed", "linear", "attention", "sample"} <= kinds


async def test_cases_use_a_part_of_a_tile_and_more_than_one_part_of_attention() -> None:
    tiny = await Tiny.open("tiny-qwen2-Q4_1-tied")
    states = {at.op.kind + str(case.state.count): case.state for at, case in await cases(tiny, WHOLE)}
    assert f"linear{SIMPLE_TILE + 1}" in states
    assert states["attention1"].position == CONTEXT - 1


async def test_sampling_draws_several_tokens_and_ends_without_numbers() -> None:
    tiny = await Tiny.open("tiny-qwen2-Q4_1-tied")
    after: dict[tuple[bool, bool], Any] = {
        (at.op.attrs["greedy"], bool(np.isnan(case.given[0][2]).all())): case.after
        for at, case in await cases(tiny, WHOLE)
        if at.op.kind == "sample"
    }
    assert len(after[True, False].ids) == STEPS
    assert len(set(after[False, False].ids)) > 2
    for greedy in (True, False):
        assert (after[greedy, True].ids, after[greedy, True].stop) == ([NO_TOKEN], True)


async def test_a_name_stands_for_the_kernels_with_their_formats() -> None:
    names = []
    for name in ("tiny-qwen2-Q4_1-tied", "tiny-qwen2-Q8_0-tied"):
        tiny = await Tiny.open(name)
        for limits, kv in ((WHOLE, "f32"), (WHOLE, "f16"), (CUT, "f32")):
            names.append(name_of(*(plan for _, plan in plans(tiny, limits, kv))))  # type: ignore[arg-type]
            assert name_of(*(plan for _, plan in plans(tiny, limits, kv))) == names[-1]  # type: ignore[arg-type]
    assert len(set(names)) == 6


# -- what follows from what is found ----------------------------------------------------------------------------------


class Known:
    """Verdicts in a set."""

    def __init__(self, *, passed: bool = False) -> None:
        self.answer = passed
        self.kept: list[str] = []

    async def passed(self, kernels: str) -> bool:
        return self.answer

    async def keep(self, kernels: str) -> None:
        self.kept.append(kernels)


def found(monkeypatch: pytest.MonkeyPatch, *errors: float | None) -> Any:
    """A runner whose kernels have these errors."""
    report = Report(tuple(Finding(f"op {i}", f"kernel {i}", error) for i, error in enumerate(errors)), 12.0)

    async def check(runner: Any, progress: Any) -> Report:
        await asyncio.sleep(0)
        return report

    monkeypatch.setattr(selfcheck, "check", check)
    empty = SimpleNamespace(dispatches=())
    return SimpleNamespace(decode_plan=empty, prefill_plan=empty)


async def test_right_kernels_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known()
    report = await vouch(found(monkeypatch, 0.0, 1.0), known)
    assert report is not None
    assert report.ms == 12.0
    assert len(known.kept) == 1


async def test_known_kernels_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await vouch(found(monkeypatch, 5.0), Known(passed=True)) is None


@pytest.mark.parametrize("error", [1.01, float("inf"), float("nan")])
async def test_a_wrong_kernel_is_named_with_the_figures(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    known = Known()
    with pytest.raises(DeviceLost, match="1 of 3 kernels differ from what they must give, kernel 1 the most") as caught:
        await vouch(found(monkeypatch, 0.0, error, 0.5), known)
    details = caught.value.details
    assert (details["kind"], details["kernels"], details["operation"]) == ("wrong_result", "kernel 1", "op 1")
    assert details["error"] in (error, None)
    assert known.kept == []


async def test_weights_that_are_no_numbers_prove_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Known()
    assert await vouch(found(monkeypatch, 0.0, None), known) is not None
    assert known.kept == []
