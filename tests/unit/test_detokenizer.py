"""Ids to text while they arrive."""

from __future__ import annotations

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
        shown += detokenizer.push(token)
        after_each.append(shown)
    assert [tokenizer.token_bytes(i).hex() for i in case["ids"]] == case["token_bytes_hex"]
    assert after_each == case["text_after_each"]
    assert shown + detokenizer.flush() == case["text_final"]
    assert tokenizer.decode(case["ids"]) == case["text_final"]


TINY = Tokenizer.from_gguf(tiny("smollm"))


@settings(max_examples=400, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 511), st.integers(128, 255)), max_size=40))
def test_pushes_and_flush_equal_decode(ids: list[int]) -> None:
    detokenizer = Detokenizer(TINY)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == TINY.decode(ids)
    assert detokenizer.flush() == ""


def test_a_detokenizer_starts_afresh_after_a_flush() -> None:
    detokenizer = Detokenizer(TINY)
    first, second = "é".encode()
    assert (detokenizer.push(first), detokenizer.flush(), detokenizer.push(second)) == ("", "\ufffd", "\ufffd")
