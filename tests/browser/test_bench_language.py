"""The bench of the language model in its page, on the software adapter, in short."""

from __future__ import annotations

from tests.browser.bench_page import bench
from tests.browser.conftest import Open
from tests.browser.test_bench_sharing import TINY


async def test_decode_and_stream_side_by_side(open_page: Open, site: str) -> None:
    rows = await bench(
        open_page, site, which="language", model=TINY, vision="none", pool="64", reps="2", tokens="40", prompt="8"
    )
    assert rows[-1] == {"done": 1}
    assert not [row for row in rows if "error" in row]
    [language] = [row for row in rows if row.get("bench") == "language"]
    [stream] = [row for row in rows if row.get("bench") == "stream"]
    assert (language["decode_tokens"], language["prefill_tokens"]) == (40, 8)
    for low, middle, high in (
        (language["first_token_spread"][0], language["first_token_ms"], language["first_token_spread"][1]),
        (language["decode_spread"][0], language["decode_tps"], language["decode_spread"][1]),
        (stream["stream_spread"][0], stream["stream_tps"], stream["stream_spread"][1]),
    ):
        assert 0 < low - 0.001 <= middle <= high + 0.001
    assert stream["first_text_ms"] > 0
    assert 0 < stream["stream_tokens"] <= 40
    # No share is below the slowest stream over the fastest decode, nor above the opposite; spreads are rounded.
    (slowest, fastest), (least, most) = language["decode_spread"], stream["stream_spread"]
    assert 0.999 * least / fastest <= stream["stream_share"] <= 1.001 * most / slowest


async def test_decode_behind_prompts_of_different_lengths(open_page: Open, site: str) -> None:
    rows = await bench(
        open_page, site, which="context", model=TINY, vision="none", pool="64", reps="2", tokens="40", contexts="8,100"
    )
    assert rows[-1] == {"done": 1}
    assert not [row for row in rows if "error" in row]
    found = [row for row in rows if row.get("bench") == "context"]
    assert [(row["context"], row["context_tokens"]) for row in found] == [(8, 40), (100, 40)]
    for row in found:
        low, high = row["context_spread"]
        assert 0 < low - 0.001 <= row["context_tps"] <= high + 0.001
    assert found[0]["context_share"] == 1
    assert found[1]["context_share"] > 0
