"""``web/bench-language.js``: what is measured after what, and what becomes of the times, by a clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node_runner import run_node

TOKENS, PROMPT, IDS = 10, 16, 3

PAGE = """
  let now = 0;
  globalThis.performance.now = () => now;
  globalThis.setTimeout = (work) => { rested = true; queueMicrotask(work); };
  const nodes = [];
  const element = () => ({ appendChild: (child) => child, remove: () => calls.push("removed") });
  globalThis.document = {
    body: element(),
    createElement: element,
    createTextNode: (data) => {
      const node = { data, appendData: (text) => { node.data += text; } };
      nodes.push(node);
      return node;
    },
  };
  const calls = [];
  let round = -1;
  let rested = false;
  const client = {
    inspect: {
      render: async () => "rendered",
      tokenize: async () => [7, 8, 9],
      greedy: async (ids, n) => {
        calls.push(`greedy ${ids.length} ${n}`);
        if (n > 1) round += 1;
        // Without a rest before it, a first token takes 3 ms.
        now += n > 1 ? 3 + input.decodes[round] : rested ? 5 : 3;
        rested = false;
      },
    },
    async *generate({ messages, maxTokens }) {
      calls.push(`generate ${messages} ${maxTokens}`);
      now += 4;
      yield { type: "text", text: "a", tokens: 2 };
      now += input.streams[round];
      yield { type: "text", text: "b", tokens: maxTokens - 2 };
      yield { type: "usage", deviceTokens: maxTokens };
    },
  };
  const rows = [];
  const { language } = await import(web + "bench-language.js");
  await language(async (row) => rows.push(row), client, "question", input.options);
  return { rows, calls, texts: nodes.map(({ data }) => data) };
"""


def measured(decodes: list[float], streams: list[float]) -> dict[str, Any]:
    """What the bench does and posts where the decodes behind the first token, and the streams behind the first text,
    take so many ms; the first of each is the warm-up."""
    options = {"reps": len(decodes) - 1, "tokens": TOKENS, "prompt": PROMPT}
    return dict(run_node(PAGE, {"decodes": decodes, "streams": streams, "options": options}))


def test_decode_and_stream_go_in_turns_behind_a_warm_up() -> None:
    found = measured([100, 10, 10], [100, 8, 8])
    turn = [*[f"greedy {IDS} 1"] * 2, f"greedy {IDS} {TOKENS + 1}", f"generate question {TOKENS}", "removed"]
    assert found["calls"] == [f"greedy {IDS} 1", *turn * 3, *[f"greedy {PROMPT} 1"] * 2]
    assert found["texts"] == ["ab"] * 3  # one text node a text


def test_the_share_is_of_the_decode_beside_it() -> None:
    """The clock rises from rep to rep: 10 tokens in 40, 20 and 10 ms, 8 in 40, 16 and 16, so 0.8, 1 and 0.5."""
    language, stream = measured([1000, 40, 20, 10], [1, 40, 16, 16])["rows"]
    assert language == {
        "bench": "language",
        "prompt_tokens": IDS,
        "first_token_cold_ms": 3,
        "first_token_ms": 5,
        "first_token_spread": [5, 5],
        "first_token_again_ms": 3,
        "prefill_tokens": PROMPT,
        "prefill_tps": PROMPT * 1000 / 3,
        "decode_tokens": TOKENS,
        "decode_tps": 500,
        "decode_spread": [250, 1000],
    }
    assert stream == {
        "bench": "stream",
        "first_text_ms": 4,
        "stream_tokens": TOKENS,
        "stream_tps": 500,
        "stream_spread": [200, 500],
        "stream_share": pytest.approx(0.8),
    }


def test_texts_that_came_all_at_once_have_no_part_in_it() -> None:
    _, stream = measured([9, 10, 10, 10], [9, 0, 16, 0])["rows"]
    assert (stream["stream_tps"], stream["stream_spread"], stream["stream_share"]) == (500, [500, 500], 0.5)
    _, stream = measured([9, 10], [9, 0])["rows"]
    assert stream == {"bench": "stream", "first_text_ms": 4, "stream_tokens": TOKENS}


def test_a_decode_that_took_no_time_has_no_part_in_it() -> None:
    """Two tokens on a fast GPU, by a clock with a grain: no rate, rather than one below nothing or without end."""
    language, stream = measured([9, -1, 0, 10], [9, 8, 8, 16])["rows"]
    assert (language["decode_tps"], language["decode_spread"]) == (1000, [1000, 1000])
    assert (stream["stream_tps"], stream["stream_share"]) == (1000, 0.5)
    language, stream = measured([9, 0], [9, 8])["rows"]
    assert not {"decode_tps", "decode_spread", "stream_share"} & {*language, *stream}
