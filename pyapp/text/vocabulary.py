"""The vocabulary of a GGUF file: its tokens as bytes, its merges as ranks, its control tokens and end tokens.

Key names and token types: the GGUF specification (ggml/docs/gguf.md, "Tokenizer"). Byte-level alphabet: GPT-2's
``bytes_to_unicode`` (openai/gpt-2, encoder.py): 188 printable bytes stand for themselves, the others for U+0100
upwards in byte order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np

from ..errors import BadModel

NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4

# Names that end a generation whatever eos_token_id says: llama.cpp's list (llama-vocab.cpp, "special_eog_ids"),
# which also counts the code models' padding, repository and file separators.
END_NAMES: Final = frozenset(
    {
        *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>"),
        *("<|call|>", "<end_of_turn>", "<end_of_utterance>", "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
        "<｜end▁of▁sentence｜>",
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    }
)


def _byte_alphabet() -> dict[int, int]:
    """Code point of the byte-level alphabet → byte value (256 entries)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {0x100 + n: byte for n, byte in enumerate(others)}


BYTE_OF_CODE_POINT: Final = _byte_alphabet()
NO_BYTE: Final = 0xFFFF
_TABLE: Final = np.full(max(BYTE_OF_CODE_POINT) + 1, NO_BYTE, np.uint16)
_TABLE[list(BYTE_OF_CODE_POINT)] = list(BYTE_OF_CODE_POINT.values())
_TEXT_OF_BYTE: Final = {byte: code for code, byte in BYTE_OF_CODE_POINT.items()}


@dataclass(frozen=True)
class Vocabulary:
    """What the tokenizer needs of a file.

    ``pieces``: the bytes of every token by id (control tokens: their names in UTF-8).
    ``ranks``: bytes → rank, the 256 single bytes first, then the merges in order. A rank is a priority, not an id.
    Both may make bytes only as they are asked for: a prompt has a few of them, and a vocabulary a hundred thousand.
    ``id_of_rank``: rank → token id, -1 for a byte value that has no token.
    ``control`` / ``user_defined``: name → id of the tokens found in text as a whole; the former only on request.
    ``ends``: ids that end a generation.
    """

    pieces: Sequence[bytes]
    ranks: Mapping[bytes, int]
    id_of_rank: list[int]
    control: dict[str, int]
    user_defined: dict[str, int]
    ends: frozenset[int]

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any]) -> Vocabulary:
        """Read ``tokenizer.ggml.*``. Raises BadModel for a list that is missing or inconsistent."""
        tokens = _strings(metadata, "tokenizer.ggml.tokens")
        types = _types(metadata, len(tokens))
        merges = _strings(metadata, "tokenizer.ggml.merges")
        pieces, special = Pieces(tokens, types), _special(types)
        normal = list(tokens)  # the others' texts left out
        for i in special:
            normal[i] = ""
        ordered = _in_order(normal, merges)
        # Of what merges make in order it is known that none is a single byte: there is little to look through.
        rest = [*range(ordered.start), *range(ordered.stop, len(tokens))]
        single = {normal[i]: i for i in rest if len(normal[i]) == 1}
        id_of_byte = [single.get(chr(_TEXT_OF_BYTE[byte]), -1) for byte in range(256)]
        ends = {i for i in rest if tokens[i] in END_NAMES} | _ends(metadata, len(tokens))
        if ordered:
            in_order = RanksOfTexts(normal[ordered.start : ordered.stop])
            ranks: Mapping[bytes, int] = in_order
            id_of_rank = [*id_of_byte, *ordered]
            ends |= {id_of_rank[rank] for name in END_NAMES if (rank := in_order.of_text(name)) is not None}
        else:
            ranks, ids = _ranks(normal, pieces, merges)
            id_of_rank = [*id_of_byte, *ids]
        others = [i for i in special if tokens[i]]
        control = {tokens[i]: i for i in others if types[i] in (UNKNOWN, CONTROL)}
        user_defined = {tokens[i]: i for i in others if types[i] == USER_DEFINED}
        return cls(pieces, ranks, id_of_rank, control, user_defined, frozenset(ends))


class Pieces(Sequence[bytes]):
    """The bytes of each token, made when they are asked for."""

    def __init__(self, tokens: Sequence[str], types: Sequence[int]) -> None:
        self._tokens, self._types = tokens, types

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        text = self._tokens[index]
        if self._types[index] == NORMAL and all(ord(char) in BYTE_OF_CODE_POINT for char in text):
            return text.translate(BYTE_OF_CODE_POINT).encode("latin-1")
        return text.encode("utf-8", "replace")  # not written in the byte alphabet: the text is the token


class RanksOfTexts(Mapping[bytes, int]):
    """Ranks of ``names``, different texts in the byte alphabet, in order: looked up as texts, which are there."""

    def __init__(self, names: Sequence[str]) -> None:
        self._of_text = dict(zip(names, range(256, 256 + len(names)), strict=True))

    def of_text(self, text: str) -> int | None:
        """The rank of a text in the byte alphabet that is longer than a byte."""
        return self._of_text.get(text)

    def get(self, piece: bytes, default: Any = None) -> Any:
        if len(piece) == 1:
            return piece[0]
        return self._of_text.get(piece.decode("latin-1").translate(_TEXT_OF_BYTE), default)

    def __getitem__(self, piece: bytes) -> int:
        rank: int | None = self.get(piece)
        if rank is None:
            raise KeyError(piece)
        return rank

    def __contains__(self, piece: object) -> bool:
        return isinstance(piece, bytes) and self.get(piece) is not None

    def __iter__(self) -> Iterator[bytes]:
        yield from (bytes([byte]) for byte in range(256))
        yield from (text.translate(BYTE_OF_CODE_POINT).encode("latin-1") for text in self._of_text)

    def __len__(self) -> int:
        return 256 + len(self._of_text)


def _strings(metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list | tuple) or not value:
        raise BadModel(f"The model file has no {key}, so its text cannot be read: use a complete GGUF file.", key=key)
    try:
        "".join(value)
    except TypeError:
        raise BadModel(f"{key} in the model file is not a list of strings: use a valid GGUF file.", key=key) from None
    return list(value)


def _types(metadata: dict[str, Any], count: int) -> list[int]:
    value = metadata.get("tokenizer.ggml.token_type")
    if value is None:
        return [NORMAL] * count
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {int}:
        raise BadModel(
            "tokenizer.ggml.token_type in the model file is not a list of whole numbers: use a valid GGUF file.",
            key="tokenizer.ggml.token_type",
        )
    types = list(value)
    if len(types) != count:
        raise BadModel(
            f"The model file has {count} tokens but {len(types)} token types: it is damaged, download it again.",
            tokens=count,
            types=len(types),
        )
    return types


def _special(types: list[int]) -> list[int]:
    """The ids of tokens that are not normal; as elsewhere here without a loop, which is slow in wasm."""
    try:
        kinds = np.frombuffer(bytes(types), np.uint8)
    except ValueError:  # a kind of token that nobody knows
        return [i for i, kind in enumerate(types) if kind != NORMAL]
    found: list[int] = np.flatnonzero(kinds != NORMAL).tolist()
    return found


def _in_order(normal: list[str], merges: list[str]) -> range:
    """The tokens that the merges make where they are in the same order, different and longer than a byte, as in every
    vocabulary that was not put together later; none where that is not so. Without a loop over 48,900 merges."""
    joined = "\n".join(merges)
    first = merges[0].replace(" ", "")
    start = normal.index(first) if first and first in normal else 0
    names = normal[start : start + len(merges)]
    # The byte alphabet has neither blank nor line end: texts that are equal when joined are equal one by one.
    if joined.count(" ") != len(merges) or joined.replace(" ", "") != "\n".join(names) or not _all_bytes(names):
        return range(0)
    if min(map(len, names)) < 2 or len(set(names)) < len(names):
        return range(0)
    return range(start, start + len(names))


def _all_bytes(texts: list[str]) -> bool:
    """Whether texts are written in the byte alphabet."""
    codes = np.frombuffer("".join(texts).encode("utf-16-le", "surrogatepass"), "<u2")
    return bool((codes < len(_TABLE)).all() and (_TABLE[codes] != NO_BYTE).all())


def _ranks(normal: list[str], pieces: Sequence[bytes], merges: list[str]) -> tuple[dict[bytes, int], list[int]]:
    """Priorities for byte pair encoding, and the ids of those after the single bytes: only what the merges make is
    reachable, in the order of the merges.

    Ids need not be in that order, and a normal token that no merge makes must not be found, so ids are no ranks.
    """
    ranks = {bytes([byte]): byte for byte in range(256)}
    token_of: dict[bytes, int] = {}
    for token in _made(normal, merges):
        token_of.setdefault(pieces[token], token)  # what several merges make has the first one's priority
    for piece in ranks.keys() & token_of.keys():
        del token_of[piece]
    ranks.update(zip(token_of, range(256, 256 + len(token_of)), strict=True))
    return ranks, list(token_of.values())


def _made(normal: list[str], merges: list[str]) -> list[int]:
    """The token that each merge makes. Raises BadModel for one that makes none."""
    id_of = dict(zip(normal, range(len(normal)), strict=True))
    id_of.pop("", None)
    made = [id_of.get(merge.replace(" ", "")) for merge in merges]
    if None in made or not all(merge.count(" ") == 1 for merge in merges):
        raise _bad_merge(merges, id_of)
    return made  # type: ignore[return-value]


def _bad_merge(merges: list[str], id_of: dict[str, int]) -> BadModel:
    """The error for the first merge that does not join two parts to a token."""
    order = next((i for i, merge in enumerate(merges) if not _joins(merge, id_of)), 0)
    return BadModel(
        f"Merge {order} of the model file, {merges[order][:40]!r}, makes no token of its vocabulary: "
        "the file is damaged, download it again.",
        merge=merges[order][:40],
        order=order,
    )


def _joins(merge: str, id_of: dict[str, int]) -> bool:
    left, _, right = merge.partition(" ")
    return bool(left and right) and " " not in right and left + right in id_of


def _ends(metadata: dict[str, Any], count: int) -> set[int]:
    """The ends that the file names among its ``count`` tokens."""
    ends: set[int] = set()
    for name in ("eos", "eot", "eom"):
        key = f"tokenizer.ggml.{name}_token_id"
        value = metadata.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadModel(f"{key} in the model file is no whole number: use a valid GGUF file.", key=key)
        if 0 <= value < count:
            ends.add(value)
    return ends
