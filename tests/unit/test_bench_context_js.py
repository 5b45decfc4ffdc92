"""``web/bench-context.js``: which prompts in which order, and what becomes of the times, by a clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node_runner import run_node

TOKENS = 10

PAGE = """
  let now = 0;
  globalThis.performance.now = () => now;
  const prompts = [];
  const client = {
    inspect: {
      render: async () => "rendered",
      tokenize: async () => [7, 8, 9],
      greedy: async (ids, n) => {
        if (ids.length > input.room) throw new Error("the context is full");
        if (n === 1) prompts.push(ids);
        now += n === 1 ? ids.length : ids.length + input.decodes.shift();
      },
    },
  };
  const rows = [];
  const { longContexts } = await import(web + "bench-context.js");
  await longContexts(async (row) => rows.push(row), client, "question", input.options);
  return { rows, prompts };
"""


def measured(contexts: list[int], rounds: list[list[float]], room: int = 100) -> dict[str, Any]:
    """What the bench asks for and posts where the decodes behind the prompts take so many ms, a list a round; the first
    round is the warm-up."""
    options = {"reps": len(rounds) - 1, "tokens": TOKENS, "contexts": contexts}
    flat = [each for decodes in rounds for each in decodes]
    return dict(run_node(PAGE, {"decodes": flat, "options": options, "room": room}))


def test_the_contexts_go_in_turns_and_their_share_is_of_the_same_round() -> None:
    """10 tokens: in the warm-up slowly, then 0.5, 1 and 0.8 of the short context's speed."""
    found = measured([2, 5], [[1000, 1000], [10, 20], [20, 20], [40, 50]])
    assert found["prompts"] == [[7, 8], [7, 8, 9, 7, 8]] * 4
    short, long = found["rows"]
    assert short == {
        "bench": "context",
        "context": 2,
        "context_tokens": TOKENS,
        "context_tps": 500,
        "context_spread": [250, 1000],
        "context_share": 1,
    }
    assert (long["context"], long["context_tps"], long["context_spread"]) == (5, 500, [200, 500])
    assert long["context_share"] == pytest.approx(0.8)


def test_what_took_no_time_has_no_rate() -> None:
    short, long = measured([2, 5], [[1, 1], [10, 0]])["rows"]
    assert short["context_tps"] == 1000
    assert long == {"bench": "context", "context": 5, "context_tokens": TOKENS}
    short, long = measured([2, 5], [[1, 1], [0, 10]])["rows"]
    assert short == {"bench": "context", "context": 2, "context_tokens": TOKENS}
    assert long["context_tps"] == 1000
    assert "context_share" not in long


def test_a_context_that_does_not_fit_says_so_and_the_others_are_measured() -> None:
    full, short = measured([2000, 2], [[1], [10]])["rows"]
    assert full == {"bench": "context", "context": 2000, "error": "Error: the context is full", "code": ""}
    assert (short["context"], short["context_tps"], short["context_share"]) == (2, 1000, 1)
