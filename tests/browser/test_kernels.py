"""The decoder's kernels in a real browser, through the same FFI path as the product, against NumPy."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.pyodide_page import PyodidePage
from tests.kernels.case import TOLERANCE
from tests.kernels.decoder_cases import cases
from tests.kernels.expected import words_after
from tests.kernels.sampling_cases import (
    DICE,
    Draws,
    frequencies,
    greedy_cases,
    random_cases,
    sure_cases,
)

FILES = [
    "kernels/attention_cases.py",
    "kernels/case.py",
    "kernels/decoder_cases.py",
    "kernels/decoder_on_gpu.py",
    "kernels/expected.py",
    "kernels/linear_cases.py",
    "kernels/sampling_cases.py",
    "kernels/sampling_on_gpu.py",
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def python(browser: Browser, site: str) -> AsyncIterator[PyodidePage]:
    async with PyodidePage.opened(browser, site, 300_000) as page:
        yield page


async def test_decoder_kernels_equal_numpy(python: PyodidePage) -> None:
    found = await python.run("kernels.decoder_on_gpu", "compare", FILES)
    assert set(found["errors"]) == {case.name for case in cases()}
    assert {name: error for name, error in found["errors"].items() if not error <= TOLERANCE} == {}
    assert found["faults"] == []
    assert found["uncaught"] == []


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def after(python: PyodidePage) -> dict[str, list[list[int]]]:
    """The step states (64 words) that the GPU ended in, by kind and name of the case."""
    return await python.run("kernels.sampling_on_gpu", "states_after", FILES)


@pytest.mark.parametrize(
    ("kind", "draws"),
    [*(("greedy", each) for each in greedy_cases()), *(("random", each) for each in random_cases())],
    ids=lambda value: value.name if isinstance(value, Draws) else value,
)
async def test_a_sampler_leaves_the_state_that_numpy_does(
    after: dict[str, list[list[int]]], kind: str, draws: Draws
) -> None:
    wanted = [
        words_after(state, state.ids, begin.step).tolist()
        for state, begin in zip(draws.expected(), draws.states, strict=True)
    ]
    assert after[f"{kind}: {draws.name}"] == wanted


@pytest.mark.parametrize("draws", list(sure_cases()), ids=lambda draws: draws.name)
async def test_sure_draws_are_greedy(after: dict[str, list[list[int]]], draws: Draws) -> None:
    best = int(np.argmax(draws.logits))
    assert [words[24:56] for words in after[f"sure: {draws.name}"]] == [[best] * 32] * len(draws.states)


async def test_a_token_that_cannot_come_does_not_come_by_rounding(after: dict[str, list[list[int]]]) -> None:
    assert after["edge: barely reached"][0][24] in (7, 71, 135)


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 6, 0.9)])
async def test_draws_follow_the_distribution(python: PyodidePage, temperature: float, top_k: int, top_p: float) -> None:
    ids = np.array(await python.run(
        "kernels.sampling_on_gpu", "dice", FILES, temperature=temperature, seeds=96, top_k=top_k, top_p=top_p
    ))  # fmt: skip
    assert ids.shape == (96, 32)
    p = np.exp(DICE.astype(np.float64) / temperature)
    order = np.argsort(-p)[: top_k or len(p)]
    held = np.cumsum(p[order]) / p[order].sum()
    kept = order[: int(np.searchsorted(held, top_p)) + 1] if top_p < 1 else order
    assert set(ids.reshape(-1).tolist()) <= set(kept.tolist())
    p = np.where(np.isin(np.arange(len(p)), kept), p, 0)
    p /= p.sum()
    assert chi_square(np.bincount(ids.reshape(-1), minlength=len(p)), p) < 5
    # Each step of all seeds by itself, and each seed's steps: neither neighbouring seeds nor steps may go together.
    for each in (*ids.T[:8], *ids.reshape(8, -1)):
        assert chi_square(np.bincount(each, minlength=len(p)), p) < 5
    same_as_before = (ids[1:] == ids[:-1]).mean(), (ids[:, 1:] == ids[:, :-1]).mean()
    assert np.abs(np.array(same_as_before) - np.square(p).sum()).max() < 0.04
    assert ids.tolist() == [state.ids for state in frequencies(temperature, 96, top_k, top_p).expected()]


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    """How many standard deviations Pearson's statistic lies above its mean."""
    drawn = p > 0
    statistic = (np.square(counts - counts.sum() * p)[drawn] / (counts.sum() * p)[drawn]).sum()
    freedom = drawn.sum() - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))
