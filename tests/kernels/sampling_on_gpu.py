"""Runs in Pyodide, in a worker of the page: the samplers on the GPU. The comparison is the test's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .case import Case
from .decoder_on_gpu import Bound, DecoderRunner
from .sampling_cases import (
    Draws,
    barely_reached,
    frequencies,
    greedy_cases,
    random_cases,
    sure_cases,
)


def as_case(draws: Draws) -> Case:
    return Case(draws.name, draws.graph, {"logits": draws.logits[None]}, {}, (), draws.states)


async def states_after() -> dict[str, list[list[int]]]:
    """The step state (64 words) after each case's steps from each of its states, by the case's kind and name."""
    found: dict[str, list[list[int]]] = {}
    kinds = {
        "greedy": greedy_cases(),
        "random": random_cases(),
        "sure": sure_cases(),
        "edge": [barely_reached()],
    }
    for kind, each in kinds.items():
        found |= {f"{kind}: {name}": words for name, words in (await _run(each)).items()}
    return found


async def dice(temperature: float, seeds: int, top_k: int, top_p: float) -> list[list[int]]:
    """The 32 ids that each seed draws."""
    draws = frequencies(temperature, seeds, top_k, top_p)
    return [words[24:56] for words in (await _run([draws]))[draws.name]]


async def _run(todo: Iterable[Draws]) -> dict[str, list[list[int]]]:
    runner = await DecoderRunner.open()
    found: dict[str, list[list[int]]] = {}
    for draws in todo:
        case = as_case(draws)
        await runner.kernels.prepare(runner.plan(case).dispatches)
        bound = Bound(runner, case)
        bound.initial["logits"] = draws.words
        async with runner.device.guarded(case.name):
            found[draws.name] = []
            for state in case.states:
                await bound.run(state, repeat=draws.steps)
                found[draws.name].append((await runner.read_state()).tolist())
        bound.close()
    uncaught: Any = runner.close()
    assert not uncaught, uncaught
    return found
