"""``web/text-rate.js``: tokens a second of a text, of which several come together."""

from __future__ import annotations

import pytest

from tests.unit.node_runner import run_node

RATE = """
  let now = 0;
  globalThis.performance.now = () => now;
  const { TextRate } = await import(web + "text-rate.js");
  const rate = new TextRate();
  for (const [at, type, tokens] of input.events) {
    now = at;
    rate.heard({ type, tokens });
  }
  const of = rate.of(input.tokens);
  return { rate: of === Infinity ? "infinite" : of, first: rate.first }; // JSON would make it null
"""


@pytest.mark.parametrize(
    ("events", "tokens", "rate", "first"),
    [
        ([(500, "status", None), (1000, "text", 5), (1200, "text", 9), (1500, "text", 6)], 20, 30, 1000),
        ([(1000, "text", 5), (1500, "text", 6), (9000, "usage", None), (9500, "done", None)], 11, 12, 1000),
        ([(1000, "text", 5), (1500, "text", 6)], 15, 20, 1000),  # the usage counts better
        ([(0, "text", 5), (500, "text", 5)], 10, 10, 0),  # time may begin with the text
        ([(1000, "text", 5)], 5, None, 1000),
        ([(1000, "text", 5), (1000, "text", 5)], 10, None, 1000),
        ([(1000, "text", 5), (1500, "usage", None)], 10, None, 1000),
        ([(1000, "text", 5), (1500, "text", 1)], 5, None, 1000),  # nothing new since
        ([], 0, None, None),
    ],
)
def test_rate(events: list[tuple[float, str, int]], tokens: int, rate: float | None, first: float | None) -> None:
    assert run_node(RATE, {"events": events, "tokens": tokens}) == {"rate": rate, "first": first}
