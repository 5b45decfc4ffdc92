"""How text is cut into words before byte pair encoding, by the name in ``tokenizer.ggml.pre``.

The patterns are those of llama.cpp (``src/llama-vocab.cpp``, ``llm_tokenizer_bpe``) as one expression each, in the
syntax that both fancy-regex (tiktoken's core) and PyPI's ``regex`` read. ``\\s`` is the Unicode property White_Space
and ``\\p{N}`` the category N in both.
"""

from __future__ import annotations

from typing import Final

from ..errors import BadModel

# GPT-2 (openai/gpt-2, encoder.py).
_GPT2: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Each digit alone, then GPT-2 on what lies between. As one expression it needs \s+(?=\p{N}): a run of spaces
# before a digit ends where the first stage cut, so none of it is left over for the word that follows.
_DIGITS_THEN_GPT2: Final = r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"

# Spelt out instead of (?i:...), which would also take U+017F (long s) for an s; llama.cpp spells it out too.
_CONTRACTIONS: Final = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_LLAMA3: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL

PATTERNS: Final[dict[str, str]] = {
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "codeshell": _DIGITS_THEN_GPT2,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "stablelm2": _QWEN2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "mpt": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def pattern_for(pre: str) -> str:
    """The splitting expression of pre-tokenizer ``pre``. Raises BadModel for one that is not in ``PATTERNS``."""
    try:
        return PATTERNS[pre]
    except KeyError:
        known = ", ".join(sorted(PATTERNS))
        shown = repr(pre[:40]) if pre else "missing"
        raise BadModel(
            f"The pre-tokenizer of this model (tokenizer.ggml.pre) is {shown}; Tandem knows {known}: "
            "choose a model file with one of these.",
            pre=pre[:40],
            supported=sorted(PATTERNS),
        ) from None
