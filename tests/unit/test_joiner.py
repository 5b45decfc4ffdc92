"""Text that goes on after text that is shown: nothing twice, nothing lost, in Python and in JavaScript alike."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pyapp.routing.joiner import MOST_BLANKS, Joiner
from tests.unit.node_runner import run_node

SHOWN = "This handmade cup is made of red ceramic"
CASES: dict[str, tuple[str, str, str]] = {
    # (shown, what the cloud sends, what is to be added)
    # It goes on.
    "next character": ("The red cer", "amic cup", "amic cup"),
    "next word": ("The red", " cup", " cup"),
    "nothing was shown": ("", " The The", " The The"),
    "nothing comes": ("The red", "", ""),
    "only white space was shown": (" \n", " cup", " cup"),
    # It begins anew.
    "begins anew": (SHOWN, SHOWN + " and glazed.", " and glazed."),
    "begins anew in mid-word": (SHOWN[:-3], SHOWN + ".", "mic."),
    "begins anew after one word": ("The", "The red cup", " red cup"),
    "begins anew after half a word": ("Intro", "Introducing our cup", "ducing our cup"),
    "begins anew after two words and a blank": ("A cup ", "A cup of tea", "of tea"),
    "begins anew after one short word and a blank": ("The ", "The The", "The The"),
    "begins anew with a blank before": (SHOWN, " " + SHOWN + " and", " and"),
    "begins anew without the blanks before": ("\n\n" + SHOWN, SHOWN + " and", " and"),
    "begins anew after a sentence": ("It is red.", "It is red. It holds tea.", " It holds tea."),
    "begins anew in Chinese": ("这款手工陶瓷", "这款手工陶瓷杯子", "杯子"),
    "begins anew with signs": ("**Red** cup", "**Red** cup for tea", " for tea"),
    "begins anew and says nothing new": (SHOWN, SHOWN, ""),
    "begins anew and ends before": (SHOWN, SHOWN[:25], ""),
    "begins anew after a blank and ends before": (SHOWN + "\n\n", SHOWN[:25], ""),
    "begins anew with a blank before and ends before": (SHOWN, " " + SHOWN[:25], ""),
    "begins anew with signs and ends before": ("**Red** cups for hot tea", "**Red** cups for hot", ""),
    "begins anew in Chinese and ends before": ("这款红色陶瓷杯由工匠手工制作，釉色温润", "这款红色陶瓷杯由工匠", ""),
    # It repeats the last words.
    "three words": (SHOWN, "of red ceramic and", " and"),
    "three words after a blank": (SHOWN + " ", "of red ceramic and", "and"),
    "three words with a blank before": (SHOWN, " of red ceramic and", " and"),
    "two words where a word would run on": (SHOWN, "red ceramic and", " and"),
    "two long words": (SHOWN + " stoneware ", "ceramic stoneware, glazed", ", glazed"),
    "one word where it would run on": (SHOWN, "ceramic, glazed", ", glazed"),
    "half a word": ("It is made of ceram", "ceramic, glazed", "ic, glazed"),
    "a sentence": ("It is new. It holds hot tea.", "It holds hot tea. Buy it!", " Buy it!"),
    "the last words come twice in the text": ("so red and so round and so red", "and so red and", " and"),
    "Chinese": ("它由红色陶瓷制成", "红色陶瓷制成，很美", "，很美"),
    "up to a blank": ("It is of red stone and ", "of red stone and\n\nMore", "\n\nMore"),
    "only the last words": (SHOWN + " and ", "of red ceramic and ", ""),
    # White space where the texts meet.
    "a blank on both sides": ("the ", " cup", "cup"),
    "a blank on one side": ("the ", "cup", "cup"),
    "a blank on the other side": ("the", " cup", " cup"),
    "an empty line in two halves": ("one\n", "\ntwo", "\ntwo"),
    "an indent in two halves": ("- one\n  ", "  - two", "  - two"),
    "a hard line break in two halves": ("one ", " \ntwo", " \ntwo"),
    "blanks at the end": ("one ", " ", " "),
    "more white space than is waited for": ("one", " " * 80 + "two", " " * 80 + "two"),
    # Texts that repeat themselves are left alone.
    "a": ("It is a", "a", "a"),
    "the": ("breathe", "the air", "the air"),
    "ha": ("ha", "ha!", "ha!"),
    "haha": ("haha", "haha!", "haha!"),
    "ha ha": ("Ha ha ha ", "ha ha!", "ha ha!"),
    "emoji": ("Sale 🎉🎉", "🎉🎉 now", "🎉🎉 now"),
    "emoji alone": ("👍🏽👍🏽👍🏽", "👍🏽👍🏽👍🏽", "👍🏽👍🏽👍🏽"),
    "very very": ("It is very ", "very good", "very good"),
    "more and more": ("We sell more and ", "more and more", "more and more"),
    "again and again": ("it came again and ", "again and again", "again and again"),
    "couscous": ("a bowl for cous", "cous", "cous"),
    "very very in Chinese": ("非常", "非常好", "非常好"),
    "step by step in Chinese": ("我们一步一步", "一步一步走", "一步一步走"),
    "numbers": ("1, 2, 3, 1, 2, 3, ", "1, 2, 3, 4", "1, 2, 3, 4"),
    "zeros": ("It costs 1000", "000 yen", "000 yen"),
    "a table": ("| --- | --- ", "| --- | --- |", "| --- | --- |"),
    "a rule": ("-----", "-----", "-----"),
    "sentences that begin alike": ("This red cup is new. ", "This red cup is ours.", "This red cup is ours."),
    "a brand": ("the You", "Tube video", "Tube video"),
    "it begins like a word of the text": ("The cup, the table and the ch", "air", "air"),
    # A new beginning in other words.
    "other words": (SHOWN, "This handmade cup is lovely.", "\n\nThis handmade cup is lovely."),
    "other words in Chinese": ("这款红色陶瓷杯适合", "这款红色陶瓷杯很美", "\n\n这款红色陶瓷杯很美"),
    "other words after a sentence": ("The red cup is new.", "The red cup is old.", "\n\nThe red cup is old."),
    "all other words": ("The cup holds", " tea", " tea"),
}


def joined(shown: str, pieces: list[str]) -> str:
    joiner = Joiner(shown)
    out = [joiner.push(piece) for piece in pieces]
    return "".join([*out, joiner.flush()])


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    shown, sent, added = CASES[name]
    assert joined(shown, [sent]) == added
    assert joined(shown, list(sent)) == added, "character by character"


JOIN = """
  const { Joiner } = await import(web + "joiner.js");
  return input.map(([shown, pieces]) => {
    const joiner = new Joiner(shown);
    const out = pieces.map((piece) => joiner.push(piece));
    return { text: [...out, joiner.flush()].join(""), repeated: joiner.repeated };
  });
"""


def in_javascript(cases: list[tuple[str, list[str]]]) -> list[Any]:
    return list(run_node(JOIN, cases))


def test_cases_in_javascript() -> None:
    whole = in_javascript([(shown, [sent]) for shown, sent, _ in CASES.values()])
    apart = in_javascript([(shown, list(sent)) for shown, sent, _ in CASES.values()])
    expected = {name: added for name, (_, _, added) in CASES.items()}
    assert dict(zip(CASES, (got["text"] for got in whole), strict=True)) == expected
    assert dict(zip(CASES, (got["text"] for got in apart), strict=True)) == expected


def test_both_do_the_same_with_texts_that_nearly_repeat() -> None:
    drawn = random.Random(4)
    words = [
        "the",
        "The",
        "red",
        "cup",
        "ceramic",
        "ha",
        "haha",
        "🎉",
        "茶",
        "红色",
        "é",
        "e\u0301",
        "ไทย",
        "12",
        "-",
        "_",
    ]
    blanks = ["", " ", " ", "\n", "\u3000", ". "]

    def text(most: int) -> str:
        return "".join(drawn.choice(words) + drawn.choice(blanks) for _ in range(drawn.randint(0, most)))

    cases = []
    for _ in range(3000):
        shown = text(8)
        sent = drawn.choice(["", " ", "\n"]) + shown[drawn.randint(0, len(shown)) :] + text(3)
        cut = drawn.randint(0, len(sent))
        cases.append((shown, [sent[:cut], sent[cut:]]))
    for (shown, pieces), got in zip(cases, in_javascript(cases), strict=True):
        assert got["text"] == joined(shown, pieces), (shown, pieces)


# --- properties

WORDS = ["A", "handmade", "cup", "of", "red", "ceramic", "holds", "hot", "tea", "and", "looks", "fine", "on", "every"]
WORDS += ["table", "茶", "杯", "☕", "12", "—", "x-ray"]
PROSE = st.builds(
    lambda words, gaps: "".join(map("".join, zip(words, gaps, strict=True))),
    st.permutations(WORDS),
    st.lists(st.sampled_from([" ", " ", " ", ", ", ".\n\n"]), min_size=len(WORDS), max_size=len(WORDS)),
)
CUTS = st.lists(st.integers(0, 120), max_size=8)


def cut_at(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def overlaps(shown: str, sent: str) -> list[str]:
    """Every end of one text that the other begins with, white space where they meet aside; the longest first."""
    end, start = shown.rstrip(), sent.lstrip()
    return [end[at:] for at in range(len(end)) if start.startswith(end[at:])]


def letters(text: str) -> int:
    return len(re.findall(r"[^\W\d_]", text))


def runs_on_as_a_beginning(shown: str, sent: str) -> bool:
    """Whether a text seems to begin anew in other words: it follows without a blank, and begins with three words."""
    words = sent.split()
    return sent[:1].strip() != "" and shown[-1:].strip() != "" and shown.split()[:3] == words[:3]


@given(text=st.text(max_size=40) | PROSE, at=st.integers(0, 120), cuts=CUTS)
@example(text="aaaa", at=2, cuts=[])
@example(text="1 2 3 4 5 61 2 3 4 5 6", at=11, cuts=[3])
def test_exact_continuation(text: str, at: int, cuts: list[int]) -> None:
    shown, rest = text[:at], text[at:]
    assume(all(letters(overlap) < 3 for overlap in overlaps(shown, rest)))
    assume(not (shown.endswith(" ") and rest.startswith(" ")))  # a doubled blank there is made one
    assume(not runs_on_as_a_beginning(shown, rest))
    assert shown + joined(shown, cut_at(rest, cuts)) == text


@given(text=PROSE, at=st.integers(20, 110), cuts=CUTS, before=st.sampled_from(["", " ", "\n"]))
def test_beginning_anew(text: str, at: int, cuts: list[int], before: str) -> None:
    shown = text[:at]
    assume(len({word.strip(",.") for word in shown.split() if letters(word) > 1}) >= 3)
    sent = before + text
    assume(overlaps(shown, sent)[0] == shown.rstrip())
    assert shown + joined(shown, cut_at(sent, cuts)) == text


@given(text=PROSE, at=st.integers(60, 110), words=st.integers(4, 8), cuts=CUTS)
def test_repeating_the_last_words(text: str, at: int, words: int, cuts: list[int]) -> None:
    shown = text[:at]
    repeated = shown[[match.start() for match in re.finditer(r"\S+", shown)][-words] :]
    assume(sum(letters(word) > 1 for word in repeated.split()[:-1]) >= 3)
    sent = repeated + text[at:]
    assume(overlaps(shown, sent)[0] == repeated.rstrip())  # else the text repeats itself, and nobody can tell
    assert shown + joined(shown, cut_at(sent, cuts)) == text


@given(shown=st.text("ab .\n茶1", max_size=30), sent=st.text("ab .\n茶1", max_size=30), cuts=CUTS)
@example(shown=SHOWN, sent=SHOWN[:20] + "x", cuts=[3, 19])
def test_pieces_make_no_difference_and_nothing_else_is_lost(shown: str, sent: str, cuts: list[int]) -> None:
    joiner = Joiner(shown)
    got = "".join([*map(joiner.push, cut_at(sent, cuts)), joiner.flush()])
    assert got == joined(shown, [sent])
    rest = sent[joiner.repeated :]
    assert got in (rest, "\n\n" + rest)
    assert shown.strip().endswith(sent[: joiner.repeated].strip()) or sent == sent[: joiner.repeated]


@given(shown=PROSE, sent=PROSE)
def test_what_is_held_back_is_bounded(shown: str, sent: str) -> None:
    joiner = Joiner(shown)
    given_out = 0
    for number, char in enumerate(sent, start=1):
        given_out += len(joiner.push(char))
        assert number - given_out - joiner.repeated <= len(shown) + MOST_BLANKS + 1
    joiner.flush()
    assert joiner.flush() == ""


def test_text_comes_out_as_soon_as_it_is_no_repetition() -> None:
    joiner = Joiner(SHOWN)
    assert [joiner.push(char) for char in " and "] == ["", " a", "n", "d", " "]
    joiner = Joiner(SHOWN)
    assert [joiner.push(char) for char in "rose"] == ["", "ro", "s", "e"]
