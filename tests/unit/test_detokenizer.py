"""Ids to text while they arrive."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyapp.text.detokenizer import Detokenizer
from pyapp.text.tokenizer import Tokenizer
from tests.unit.text_models import golden, smollm2, tiny

CASES = golden("tok_decode.json")["cases"]


@pytest.fixture(scope="module")
def tokenizer(dist: Path) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2(dist))


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case["why"])[:40])
def test_golden_streams(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    after_each = []
    for token in case["ids"]:
        shown += detokenizer.push([token])
        after_each.append(shown)
    assert [tokenizer.token_bytes(i).hex() for i in case["ids"]] == case["token_bytes_hex"]
    assert after_each == case["text_after_each"]
    assert shown + detokenizer.flush() == case["text_final"]
    assert tokenizer.decode(case["ids"]) == case["text_final"]


TINY = Tokenizer.from_gguf(tiny("smollm"))
IDS = st.lists(st.one_of(st.integers(0, 511), st.integers(128, 255)), max_size=40)


@settings(max_examples=400, deadline=None)
@given(ids=IDS, sizes=st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any))
def test_pushes_and_flush_equal_decode(ids: list[int], sizes: list[int]) -> None:
    detokenizer, rest, pieces = Detokenizer(TINY), ids, []
    for size in cycle(sizes):
        pieces.append(detokenizer.push(rest[:size]))
        rest = rest[size:]
        if not rest:
            break
    assert "".join(pieces) + detokenizer.flush() == TINY.decode(ids)
    assert detokenizer.flush() == ""


@settings(max_examples=400, deadline=None)
@given(ids=IDS)
def test_tokens_that_show_nothing_yet_are_the_same_ones_however_they_come(ids: list[int]) -> None:
    together, single = Detokenizer(TINY), Detokenizer(TINY)
    shown = together.push(ids)
    assert shown == "".join([single.push([token]) for token in ids])
    assert together.waiting == single.waiting
    together.flush()
    assert together.waiting == 0


def test_a_character_begun_in_the_token_that_ends_another_waits_for_nobody() -> None:
    detokenizer = Detokenizer(TINY)
    cup = "茶".encode()
    assert (detokenizer.push([*b"ab", *cup[:2]]), detokenizer.waiting) == ("ab", 2)
    assert (detokenizer.push([]), detokenizer.waiting) == ("", 2)
    assert (detokenizer.push([cup[2], *cup, cup[0]]), detokenizer.waiting) == ("茶茶", 1)
    assert (detokenizer.flush(), detokenizer.waiting) == ("\ufffd", 0)


def test_a_detokenizer_starts_afresh_after_a_flush() -> None:
    detokenizer = Detokenizer(TINY)
    first, second = "é".encode()
    assert (detokenizer.push([first]), detokenizer.flush(), detokenizer.push([second])) == ("", "\ufffd", "\ufffd")
