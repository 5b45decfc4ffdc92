"""The vocabulary of a GGUF file: its tokens as bytes, its merges as ranks, its control tokens and end tokens.

Key names and token types: the GGUF specification (ggml/docs/gguf.md, "Tokenizer"). Byte-level alphabet: GPT-2's
``bytes_to_unicode`` (openai/gpt-2, encoder.py): 188 printable bytes stand for themselves, the others for U+0100
upwards in byte order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, count, pairwise
from typing import Any, Final

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


@dataclass(frozen=True)
class Vocabulary:
    """What the tokenizer needs of a file.

    ``pieces``: the bytes of every token by id (control tokens: their names in UTF-8).
    ``ranks``: bytes → rank, the 256 single bytes first, then the merges in order. A rank is a priority, not an id.
    ``id_of_rank``: rank → token id, -1 for a byte value that has no token.
    ``control`` / ``user_defined``: name → id of the tokens found in text as a whole; the former only on request.
    ``ends``: ids that end a generation.
    """

    pieces: tuple[bytes, ...]
    ranks: dict[bytes, int]
    id_of_rank: list[int]
    control: dict[str, int]
    user_defined: dict[str, int]
    ends: frozenset[int]

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any]) -> Vocabulary:
        """Read ``tokenizer.ggml.*``. Raises BadModel for a list that is missing or inconsistent."""
        tokens = _strings(metadata, "tokenizer.ggml.tokens")
        types = _types(metadata, len(tokens))
        pieces = _pieces(tokens, types)
        ranks, id_of_rank = _ranks(tokens, types, pieces, _strings(metadata, "tokenizer.ggml.merges"))
        others = [i for i in _special(types) if tokens[i]]
        control = {tokens[i]: i for i in others if types[i] in (UNKNOWN, CONTROL)}
        user_defined = {tokens[i]: i for i in others if types[i] == USER_DEFINED}
        return cls(pieces, ranks, id_of_rank, control, user_defined, _ends(metadata, tokens, types))


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
    return list(compress(count(), map(NORMAL.__ne__, types)))


def _normal(tokens: list[str], types: list[int]) -> list[str]:
    """The tokens by id, the others' texts left out."""
    texts = list(tokens)
    for i in _special(types):
        texts[i] = ""
    return texts


def _pieces(tokens: list[str], types: list[int]) -> tuple[bytes, ...]:
    """Token bytes by id. The normal ones are translated in one go."""
    normal = _normal(tokens, types)
    codes = np.frombuffer("".join(normal).encode("utf-16-le", "surrogatepass"), "<u2")
    values = _TABLE[np.minimum(codes, len(_TABLE) - 1)]
    if (codes >= len(_TABLE)).any() or (values == NO_BYTE).any():
        return tuple(_piece(text, kind) for text, kind in zip(tokens, types, strict=True))
    blob = values.astype(np.uint8).tobytes()
    ends = list(accumulate(map(len, normal), initial=0))
    pieces = [blob[start:end] for start, end in pairwise(ends)]
    for i in _special(types):
        pieces[i] = tokens[i].encode("utf-8", "replace")
    return tuple(pieces)


def _piece(text: str, kind: int) -> bytes:
    if kind == NORMAL and all(ord(char) in BYTE_OF_CODE_POINT for char in text):
        return text.translate(BYTE_OF_CODE_POINT).encode("latin-1")
    return text.encode("utf-8", "replace")  # not written in the byte alphabet: the text is the token


def _ranks(
    tokens: list[str], types: list[int], pieces: tuple[bytes, ...], merges: list[str]
) -> tuple[dict[bytes, int], list[int]]:
    """Priorities for byte pair encoding: only what the merges make is reachable, in the order of the merges.

    Ids need not be in that order, and a normal token that no merge makes must not be found, so ids are no ranks.
    """
    normal = _normal(tokens, types)
    ranks = {bytes([byte]): byte for byte in range(256)}
    char_of = {byte: chr(code) for code, byte in BYTE_OF_CODE_POINT.items()}
    single = {normal[i]: i for i in compress(count(), map((1).__eq__, map(len, normal)))}
    id_of_rank = [single.get(char_of[byte], -1) for byte in range(256)]
    made = _made(normal, merges)
    token_of = dict(zip(map(pieces.__getitem__, made), made, strict=True))
    if len(token_of) < len(made):  # what several merges make has the first one's priority
        token_of = {}
        for token in made:
            token_of.setdefault(pieces[token], token)
    for piece in ranks.keys() & token_of.keys():
        del token_of[piece]
    ranks.update(zip(token_of, range(256, 256 + len(token_of)), strict=True))
    return ranks, [*id_of_rank, *token_of.values()]


def _made(normal: list[str], merges: list[str]) -> Sequence[int]:
    """The token that each merge makes. Raises BadModel for one that makes none."""
    # Joined and split again instead of a loop over 48,900 merges: the byte alphabet has neither blank nor line end.
    joined = "\n".join(merges)
    names = joined.replace(" ", "").split("\n")
    sound = joined.count(" ") == len(names) == len(merges)
    if sound and names[0] and names[0] in normal:
        start = normal.index(names[0])
        if normal[start : start + len(names)] == names:  # as every vocabulary has them that was not put together later
            return range(start, start + len(names))
    id_of = dict(zip(normal, range(len(normal)), strict=True))
    id_of.pop("", None)
    made = list(map(id_of.get, names))
    if not sound or None in made:
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


def _ends(metadata: dict[str, Any], tokens: list[str], types: list[int]) -> frozenset[int]:
    ends = set(compress(count(), map(END_NAMES.__contains__, tokens)))
    for name in ("eos", "eot", "eom"):
        key = f"tokenizer.ggml.{name}_token_id"
        value = metadata.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadModel(f"{key} in the model file is no whole number: use a valid GGUF file.", key=key)
        if 0 <= value < len(tokens):
            ends.add(value)
    return frozenset(ends)
