"""The words of the step state: those that shaders/state.wgsl names, where it names them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.compiler.reference_decoder import uniform_draw
from pyapp.engine.state import HEAD_WORDS, LEAST, MAX_ENDS, RING, StepState, state_words
from pyapp.errors import BadModel
from pyapp.text.sampling import MAX_SEED, SamplingParams

WGSL = (Path(__file__).parents[2] / "shaders" / "state.wgsl").read_text(encoding="utf-8")
SIZES = {"u32": 1, "f32": 1, "array<vec4u, 3>": 12, "array<vec4u, 8>": 32}


def fields() -> dict[str, tuple[int, int]]:
    """(first word, words) of each field of the shader's struct."""
    found, at = {}, 0
    for name, kind in re.findall(r"^\s+(\w+): (.+?),\s*(?://.*)?$", WGSL, re.MULTILINE):
        found[name] = (at, SIZES[kind])
        at += SIZES[kind]
    return found


def field(words: np.ndarray, name: str) -> list[int]:
    at, size = fields()[name]
    return [int(word) for word in words[at : at + size]]


def test_the_shaders_struct_is_what_the_host_writes_and_reads() -> None:
    assert len(fields()) == 14
    assert sum(size for _, size in fields().values()) == HEAD_WORDS + RING <= 64
    assert fields()["ids"] == (HEAD_WORDS, RING)
    assert fields()["end_ids"][1] == MAX_ENDS


@given(
    st.builds(
        SamplingParams,
        temperature=st.floats(0, 10),
        top_k=st.integers(0, 2**31 - 1),
        top_p=st.floats(0, 1, exclude_min=True),
        seed=st.integers(0, MAX_SEED),
    ),
    st.tuples(*[st.integers(0, 2**31 - 1)] * 5),
    st.lists(st.integers(0, 2**31 - 1), max_size=MAX_ENDS),
)
def test_every_word_is_where_the_shader_reads_it(
    params: SamplingParams, figures: tuple[int, ...], ends: list[int]
) -> None:
    position, count, step, token, limit = figures
    words = state_words(params, position=position, count=count, step=step, token=token, limit=limit, ends=ends)
    assert (words.shape, words.dtype) == ((HEAD_WORDS,), np.uint32)
    for name, value in (
        ("token", token), ("position", position), ("stop", 0), ("step", step), ("count", count), ("limit", limit),
        ("ends", len(ends)), ("seed", params.seed), ("top_k", params.top_k), ("ring", RING),
    ):  # fmt: skip
        assert field(words, name) == [value], name
    assert field(words, "end_ids") == ends + [0] * (MAX_ENDS - len(ends))
    at = fields()["temperature"][0]
    temperature, top_p = words[at : at + 2].view(np.float32)
    assert fields()["top_p"][0] == at + 1
    # A float32 that a shader may divide by, and a share of the mass that is not nothing.
    assert np.isfinite(np.float32(1) / temperature)
    assert temperature == np.float32(max(params.temperature, LEAST) if params.temperature else 1)
    assert top_p == np.float32(max(params.top_p, LEAST)) > 0


def test_thirteen_end_tokens_are_refused() -> None:
    with pytest.raises(BadModel, match="13 end tokens; at most 12"):
        state_words(SamplingParams(), position=0, count=1, limit=1, ends=range(13))


@given(st.integers(0, 200), st.integers(0, RING))
def test_the_ids_since_a_step_come_from_the_ring(steps: int, back: int) -> None:
    words = np.zeros(64, np.uint32)
    for step in range(steps):
        words[HEAD_WORDS + step % RING] = 1000 + step
    words[0], words[1], words[2], words[3] = 7, 9, steps % 2, steps
    state = StepState(words)
    since = max(0, steps - back)
    assert state.ids_since(since) == [1000 + step for step in range(since, steps)]
    assert (state.token, state.position, state.stopped, state.step) == (7, 9, steps % 2 == 1, steps)


def test_draws_are_even_over_seeds_and_over_steps() -> None:
    """Neighbouring seeds, and the steps of one seed, fill 64 bins evenly and do not go together."""
    for draws in (
        np.array([uniform_draw(seed, 0) for seed in range(6400)]),
        np.array([uniform_draw(1, step) for step in range(6400)]),
        np.array([uniform_draw(MAX_SEED - seed, seed % 7) for seed in range(6400)]),
    ):
        counts = np.histogram(draws, bins=64, range=(0, 1))[0]
        statistic = (np.square(counts - 100) / 100).sum()  # chi square of 63 degrees: 63 on average, deviation 11.2
        assert statistic < 63 + 5 * 11.2
        assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.06
