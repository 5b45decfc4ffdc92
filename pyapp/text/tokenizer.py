"""Text → token ids and back, with the ranks that the GGUF file itself brings: short texts are merged here, long ones by
tiktoken's core, which takes longer to be made than a prompt takes to be encoded (a third of a second in wasm)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

import regex

from ..errors import BadArgument, BadModel
from .long_words import encode_words, has_long_run, merge
from .pretokenizers import pattern_for
from .vocabulary import Vocabulary

SHORT = 1024
"""Characters of a text that is worth no tiktoken."""
WORDS_KEPT = 4096


class Tokenizer:
    """A byte-level BPE tokenizer.

    Equal to llama.cpp's on every vocabulary that was trained as BPE, where a token's bytes have one derivation.
    Nothing is added at the beginning or the end (no BOS, no EOS).
    """

    def __init__(self, vocabulary: Vocabulary, pattern: str) -> None:
        self._vocabulary = vocabulary
        self._pattern = pattern
        self._merged = lru_cache(WORDS_KEPT)(lambda word: tuple(merge(word, vocabulary.ranks)))
        self._special = vocabulary.control | vocabulary.user_defined
        self._find_special = _finder(self._special)
        self._find_user_defined = _finder(vocabulary.user_defined)

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any]) -> Tokenizer:
        """From the ``tokenizer.ggml.*`` keys of a GGUF file. Raises BadModel for a kind we do not know."""
        model = metadata.get("tokenizer.ggml.model")
        if model != "gpt2":
            raise BadModel(
                f"The tokenizer of this model (tokenizer.ggml.model) is {str(model)[:40]!r}; Tandem reads byte-level "
                "BPE ('gpt2') only: choose a model file with such a tokenizer.",
                model=str(model)[:40],
                supported=["gpt2"],
            )
        pattern = pattern_for(str(metadata.get("tokenizer.ggml.pre") or ""))
        return cls(Vocabulary.from_gguf(metadata), pattern)

    @cached_property
    def _encoding(self) -> Any:
        import tiktoken

        return tiktoken.Encoding(
            "gguf", pat_str=self._pattern, mergeable_ranks=dict(self._vocabulary.ranks), special_tokens={}
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, control tokens included."""
        return len(self._vocabulary.pieces)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a generation, as llama.cpp counts them."""
        return self._vocabulary.ends

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of ``text``.

        special: recognise control tokens such as ``<|im_end|>`` in the text; False takes their names as plain text.
        Lone surrogates (possible in strings from JavaScript) count as U+FFFD. Bytes without a token are dropped.
        """
        text = _scalar_values(text)
        finder = self._find_special if special else self._find_user_defined
        if finder is None:
            return self._encode_plain(text)
        ids: list[int] = []
        end = 0
        for match in finder.finditer(text):
            ids += self._encode_plain(text[end : match.start()])
            ids.append(self._special[match.group()])
            end = match.end()
        return ids + self._encode_plain(text[end:])

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``: control tokens give their names, invalid UTF-8 gives U+FFFD as TextDecoder does.

        Raises BadArgument for an id outside the vocabulary.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for. Raises BadArgument for an id outside the vocabulary."""
        pieces = self._vocabulary.pieces
        if not 0 <= token < len(pieces):
            raise BadArgument(
                f"Token id {token} is outside the vocabulary: give ids from 0 to {len(pieces) - 1}.",
                id=int(token),
                vocab_size=len(pieces),
            )
        return pieces[token]

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        short = len(text) <= SHORT
        if not short and not has_long_run(text):
            ranks = self._encoding.encode_ordinary(text)
        else:
            words = regex.compile(self._pattern)  # regex keeps compiled patterns in a cache of its own
            encode_short = self._merged if short else self._encoding._encode_single_piece
            ranks = encode_words(text, words, self._vocabulary.ranks, encode_short)
        id_of_rank = self._vocabulary.id_of_rank
        return [token for token in map(id_of_rank.__getitem__, ranks) if token >= 0]


def _finder(names: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of ``names``, the longest where one begins with another. None for no names."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _scalar_values(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
