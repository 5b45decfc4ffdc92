"""Byte pair encoding of very long words, in time n log n.

tiktoken's core looks through a whole word again for each merge (all words before its version 0.13), and its splitter
keeps a stack entry a character in runs of white space, with a panic at its end. A text whose words are all short
never meets either, so only the others come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final

import regex

# Words of a text whose runs (of white space, or of anything else) are no longer than this never exceed twice as many
# characters: a leading character or trailing line ends are all that a word mixes in.
LONG_RUN: Final = 256
# A word beyond this is no language: it is cut to short pieces, so that a megabyte of "a" takes about a second.
MAX_EXACT_BYTES: Final = 16_384
_RUNS: Final = regex.compile(r"\s+|\S+")


def has_long_run(text: str) -> bool:
    """Whether ``text`` may hold a word that tiktoken must not be given."""
    return len(text) > LONG_RUN and any(len(run) > LONG_RUN for run in _RUNS.findall(text))


def encode_words(
    text: str, pattern: regex.Pattern[str], ranks: Mapping[bytes, int], encode_short: Callable[[bytes], Iterable[int]]
) -> list[int]:
    """Ranks of ``text`` split by ``pattern``; ``encode_short`` encodes words of up to four times LONG_RUN bytes."""
    result: list[int] = []
    for word in pattern.findall(text):
        data = word.encode("utf-8")
        if len(data) <= 4 * LONG_RUN:
            result += encode_short(data)
        elif len(data) <= MAX_EXACT_BYTES:
            result += merge(data, ranks)
        else:
            for start in range(0, len(word), LONG_RUN):
                result += encode_short(word[start : start + LONG_RUN].encode("utf-8"))
    return result


def merge(word: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """Byte pair encoding of one word: the pair of lowest rank is joined first, of equal ones the leftmost.

    The parts are a linked list over byte positions; the queue's entries (rank, start, end) are checked when they
    come up, since one of their parts may have been joined to another meanwhile.
    """
    size = len(word)
    if word in ranks:
        return [ranks[word]]
    next_start = list(range(1, size + 1))  # of the part that begins here: where it ends; 0 when it was swallowed
    previous = list(range(-1, size))
    queue = [(ranks[word[i : i + 2]], i, i + 2) for i in range(size - 1) if word[i : i + 2] in ranks]
    heapify(queue)
    while queue:
        _, start, end = heappop(queue)
        middle = next_start[start]
        if not middle or middle >= size or next_start[middle] != end:
            continue
        next_start[start] = end
        next_start[middle] = 0
        previous[end] = start
        for left, right in ((previous[start], end), (start, next_start[end] if end < size else 0)):
            if left >= 0 and right:
                rank = ranks.get(word[left:right])
                if rank is not None:
                    heappush(queue, (rank, left, right))
    starts = [i for i in range(size) if next_start[i]]
    return [ranks[word[a:b]] for a, b in pairwise([*starts, size])]
