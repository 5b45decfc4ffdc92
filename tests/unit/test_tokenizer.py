"""Text to ids: the goldens, a plain BPE on random text, vocabularies in any order, hostile text and files."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from pyapp.errors import BadArgument, BadModel
from pyapp.text import long_words
from pyapp.text import tokenizer as tokenizer_module
from pyapp.text import vocabulary as vocabulary_module
from pyapp.text.pretokenizers import PATTERNS
from pyapp.text.tokenizer import SHORT, Tokenizer
from pyapp.text.vocabulary import RanksOfTexts, Vocabulary
from tests.unit.text_models import PlainBpe, golden, smollm2, tiny


@pytest.fixture(scope="module")
def metadata(dist: Path) -> dict[str, Any]:
    return smollm2(dist)


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


def _accepted(case: dict[str, Any], mode: str) -> list[list[int]]:
    main = case["ids"] if mode == "ids" else case.get("ids_plain", case["ids"])
    other = case.get("ids_llama_cpp" if mode == "ids" else "ids_plain_llama_cpp")
    return [main] if other is None else [main, other]


@pytest.mark.parametrize("mode", ["ids", "ids_plain"])
def test_all_golden_strings_of_smollm2(tokenizer: Tokenizer, mode: str) -> None:
    cases = golden("tok_encode.json")["cases"]
    wrong = [c["text"] for c in cases if tokenizer.encode(c["text"], mode == "ids") not in _accepted(c, mode)]
    assert len(cases) == 184
    assert wrong == []


@pytest.mark.parametrize("mode", ["ids", "ids_plain"])
@pytest.mark.parametrize("which", golden("tiny_tok.json")["sets"], ids=lambda s: s["pre"])
def test_all_golden_strings_of_the_tiny_vocabulary(which: dict[str, Any], mode: str) -> None:
    tokenizer = Tokenizer.from_gguf(tiny(which["pre"]))
    wrong = [c["text"] for c in which["cases"] if tokenizer.encode(c["text"], mode == "ids") not in _accepted(c, mode)]
    assert wrong == []


def test_golden_ids_give_their_text_back(tokenizer: Tokenizer) -> None:
    lossless = [c for c in golden("tok_encode.json")["cases"] if not c.get("lossy")]
    assert [tokenizer.decode(c["ids"]) for c in lossless] == [c["text"] for c in lossless]


PIECES = [*" \n\r\t'012aA.!\u00a0\u3000\u001c\u0085ſ٣½一é", "'s", "'LL", "  ", "\r\n", "🙂", "the", " of", "'ſ"]
TRICKY = st.lists(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(PIECES)), max_size=60).map(
    "".join
)


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "gpt-2", "llama-bpe"])
@settings(max_examples=150, deadline=None)
@given(text=TRICKY)
def test_equals_a_plain_bpe(pre: str, text: str) -> None:
    base = tiny("qwen2") | {"tokenizer.ggml.pre": pre}
    assert Tokenizer.from_gguf(base).encode(text, special=False) == PlainBpe(base, PATTERNS[pre]).encode(text)


@settings(max_examples=150, deadline=None)
@given(text=TRICKY)
def test_equals_a_plain_bpe_with_the_real_vocabulary(metadata: dict[str, Any], tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text, special=False) == _plain(metadata).encode(text)


_PLAIN: list[PlainBpe] = []


def _plain(metadata: dict[str, Any]) -> PlainBpe:
    if not _PLAIN:
        _PLAIN.append(PlainBpe(metadata, PATTERNS["smollm"]))
    return _PLAIN[0]


def test_ids_that_are_not_in_the_order_of_the_merges() -> None:
    """The same vocabulary with its tokens shuffled must give the same pieces under their new ids."""
    base = tiny("smollm")
    tokens, kinds = base["tokenizer.ggml.tokens"], base["tokenizer.ggml.token_type"]
    order = random.Random(7).sample(range(len(tokens)), len(tokens))
    shuffled = base | {
        "tokenizer.ggml.tokens": [tokens[i] for i in order],
        "tokenizer.ggml.token_type": [kinds[i] for i in order],
        "tokenizer.ggml.eos_token_id": order.index(base["tokenizer.ggml.eos_token_id"]),
    }
    straight, mixed = Tokenizer.from_gguf(base), Tokenizer.from_gguf(shuffled)
    for case in golden("tiny_tok.json")["sets"][1]["cases"]:
        for special in (True, False):
            got = mixed.encode(case["text"], special)
            assert [order[i] for i in got] == straight.encode(case["text"], special)
            assert mixed.decode(got) == straight.decode(straight.encode(case["text"], special))
    assert {order[i] for i in mixed.eos_ids} == straight.eos_ids


def test_a_vocabulary_in_order_and_one_that_is_looked_through_merge_by_merge_are_the_same(
    metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in (metadata, *(tiny(pre) for pre in ("smollm", "qwen2"))):
        quick = Vocabulary.from_gguf(base)
        with monkeypatch.context() as slow:
            slow.setattr(vocabulary_module, "_in_order", lambda normal, merges: range(0))
            slowly = Vocabulary.from_gguf(base)
        assert isinstance(quick.ranks, RanksOfTexts)
        assert isinstance(slowly.ranks, dict)
        assert dict(quick.ranks) == slowly.ranks
        assert len(quick.ranks) == len(slowly.ranks)
        assert quick.id_of_rank == slowly.id_of_rank
        assert (quick.ends, quick.control, quick.user_defined) == (slowly.ends, slowly.control, slowly.user_defined)
        assert b"" not in quick.ranks
        assert quick.ranks.get(b"\xff\xfe") is None
        with pytest.raises(KeyError):
            quick.ranks[b"\xff\xfe"]


@pytest.mark.parametrize(
    ("tokens", "merges"),
    [
        (["a", "b", "ab", "ab"], ["a b", "a b"]),  # the second name is no other token
        (["a", "b", "ab", "a\nb"], ["a b", "a\n b"]),
        (["a", "b", "c"], ["b ", "c "]),
        (["a", "b", "bc", "ab"], ["a b"]),
    ],
    ids=["twice", "line end", "single bytes", "in order"],
)
def test_only_what_is_sound_counts_as_in_order(tokens: list[str], merges: list[str]) -> None:
    found = vocabulary_module._in_order(tokens, merges)
    assert found == (range(3, 4) if merges == ["a b"] else range(0))


def test_short_texts_need_no_tiktoken_and_have_the_ids_that_it_gives(
    metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(tiktoken, "Encoding", None)
        short = Tokenizer.from_gguf(metadata)
        texts = [case["text"] for case in golden("tok_encode.json")["cases"] if len(case["text"]) <= SHORT]
        assert len(texts) > 150
        ids = [short.encode(text) for text in texts]
        assert [short.encode(text) for text in texts] == ids  # now from the words that are kept
        with pytest.raises(TypeError):
            short.encode("one word and another, " * (SHORT // 20))
    monkeypatch.setattr(tokenizer_module, "SHORT", -1)
    tiktokens = Tokenizer.from_gguf(metadata)
    assert [tiktokens.encode(text) for text in texts] == ids
    assert "_encoding" in vars(tiktokens)


def test_what_several_merges_make_has_the_first_ones_priority() -> None:
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    vocabulary = Vocabulary.from_gguf(
        {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b", "ab c", "b c", "a bc"]}
    )
    assert [vocabulary.ranks[piece] for piece in (b"ab", b"abc", b"bc")] == [256, 257, 258]
    assert vocabulary.id_of_rank[256:] == [3, 5, 4]
    assert [vocabulary.id_of_rank[byte] for byte in b"abcd"] == [0, 1, 2, -1]


def test_a_token_that_no_merge_makes_is_not_found() -> None:
    base = tiny("smollm")
    added = base | {
        "tokenizer.ggml.tokens": [*base["tokenizer.ggml.tokens"], "zq"],
        "tokenizer.ggml.token_type": [*base["tokenizer.ggml.token_type"], 1],
    }
    assert Tokenizer.from_gguf(added).encode("zq") == Tokenizer.from_gguf(base).encode("zq")


def test_user_defined_tokens_are_found_in_plain_text_too_and_the_longest_first() -> None:
    base = tiny("smollm")
    size = len(base["tokenizer.ggml.tokens"])
    added = base | {
        "tokenizer.ggml.tokens": [*base["tokenizer.ggml.tokens"], "<b>", "<b>é", "<c>"],
        "tokenizer.ggml.token_type": [*base["tokenizer.ggml.token_type"], 4, 4, 3],
    }
    tokenizer = Tokenizer.from_gguf(added)
    assert tokenizer.encode("<b>é<b>", special=False) == [size + 1, size]
    assert tokenizer.encode("<c>") == [size + 2]
    assert size + 2 not in tokenizer.encode("<c>", special=False)
    assert tokenizer.decode([size + 1]) == "<b>é"


def test_end_tokens(tokenizer: Tokenizer) -> None:
    names = {tokenizer.token_bytes(i).decode() for i in tokenizer.eos_ids}
    assert names == {"<|endoftext|>", "<|im_end|>", "<reponame>"}  # the last one as llama.cpp has it
    assert tokenizer.vocab_size == 49152
    assert Tokenizer.from_gguf(tiny("qwen2")).eos_ids == {509, 511}
    named = tiny("qwen2") | {"tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.eom_token_id": 10**6}
    assert Tokenizer.from_gguf(named).eos_ids == {509, 511, 3}


def test_lone_surrogates_and_nul(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud800b\udc00") == tokenizer.encode("a\ufffdb\ufffd")
    assert tokenizer.encode("\ud83d\ude42") == tokenizer.encode("🙂")
    assert tokenizer.decode(tokenizer.encode("a\0b")) == "a\0b"
    assert tokenizer.encode("\x04") == []  # one of the 21 bytes without a token


RANKS = Vocabulary.from_gguf(tiny("smollm")).ranks
CORE = tiktoken.Encoding("tiny", pat_str=r"(?s:.)+", mergeable_ranks=dict(RANKS), special_tokens={})


@settings(max_examples=200, deadline=None)
@given(word=st.text("aehinotr ", min_size=1, max_size=200))
def test_the_merging_of_long_words_equals_tiktokens(word: str) -> None:
    assert long_words.merge(word.encode(), RANKS) == CORE._encode_single_piece(word)


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "gpt-2"])
@pytest.mark.parametrize(
    "text", ["the" * 400, "x " + " " * 2000 + "y", "!" * 900 + "\n\n" + "é" * 700, "z\n" * 20 + "\n" * 600 + "7"]
)
def test_long_runs_give_the_same_ids_as_a_plain_bpe(pre: str, text: str) -> None:
    base = tiny("smollm") | {"tokenizer.ggml.pre": pre}
    assert long_words.has_long_run(text)
    assert Tokenizer.from_gguf(base).encode(text) == PlainBpe(base, PATTERNS[pre]).encode(text)


@pytest.mark.parametrize(
    "unit", ["a", " ", "\n", "!", "一", "'", "ab", "\0", "1", "<|im_end|>", "\ud800", "a" * 255 + " "]
)
def test_a_million_characters_do_not_hang(tokenizer: Tokenizer, unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    start = time.perf_counter()
    ids = tokenizer.encode(text)
    assert (
        time.perf_counter() - start < 10
    )  # 0.1 to 1.2 s on an idle core; without the cutting it is minutes, or a panic
    expected = text.replace("\ud800", "\ufffd")
    assert tokenizer.decode(ids) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.model": None}, "gpt2"),
        ({"tokenizer.ggml.pre": "gpt-9"}, "'gpt-9'; Tandem knows codeshell, deepseek-r1-qwen, gpt-2"),
        ({"tokenizer.ggml.pre": None}, "missing"),
        ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "not a list of strings"),
        ({"tokenizer.ggml.merges": []}, "no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a b", "x"]}, "Merge"),
        ({"tokenizer.ggml.merges": ["h e", "q zzz"]}, "Merge 1 of the model file, 'q zzz'"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "512 tokens but 2 token types"),
        ({"tokenizer.ggml.token_type": 1}, "token_type in the model file is not a list"),
        ({"tokenizer.ggml.token_type": "normal"}, "token_type in the model file is not a list"),
        ({"tokenizer.ggml.token_type": [float("nan")] * 512}, "token_type in the model file is not a list"),
        ({"tokenizer.ggml.eos_token_id": "abc"}, "eos_token_id in the model file is no whole number"),
        ({"tokenizer.ggml.eot_token_id": float("inf")}, "eot_token_id in the model file is no whole number"),
    ],
)
def test_files_that_cannot_be_read(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadModel) as caught:
        Tokenizer.from_gguf(tiny("smollm") | change)
    assert words in caught.value.message


@pytest.mark.parametrize("token", [-1, 512])
def test_ids_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(BadArgument, match="from 0 to 511"):
        Tokenizer.from_gguf(tiny("smollm")).decode([token])
