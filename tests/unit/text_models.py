"""Vocabularies for the tests of text/: the real one of SmolLM2, a tiny one, and a plain BPE to compare with."""

from __future__ import annotations

import functools
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex

from pyapp.weights.gguf import parse_gguf

DATA = Path(__file__).parents[1] / "data"


def golden(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


@functools.cache
def tiny(pre: str) -> dict[str, Any]:
    """Metadata of a tiny file with pre-tokenizer ``pre``; all tiny files have the same 512 tokens."""
    name = {"qwen2": "tiny-qwen2-Q4_1-tied.gguf", "smollm": "tiny-llama-Q4_1-tied.gguf"}[pre]
    content = (DATA / "tiny" / name).read_bytes()
    return parse_gguf(content, len(content)).metadata


def smollm2(dist: Path) -> dict[str, Any]:
    """Metadata of SmolLM2-135M-Instruct, from the first chunk of the built site's copy."""
    folder = dist / "models" / "smollm2-135m"
    manifest = json.loads((folder / "manifest.json").read_text())
    head = (folder / manifest["chunks"][0]["url"]).read_bytes()
    return parse_gguf(head, manifest["bytes"]).metadata


class PlainBpe:
    """Byte pair encoding straight from the merges, as GPT-2's encoder.py does it: slow, and hard to get wrong."""

    def __init__(self, metadata: dict[str, Any], pattern: str) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        kinds = metadata["tokenizer.ggml.token_type"]
        self.ids = {text: i for i, (text, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == 1}
        pairs = (tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"])
        self.ranks = {pair: i for i, pair in enumerate(pairs)}
        self.pattern = regex.compile(pattern)
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        self.alphabet = {byte: chr(byte) for byte in printable}
        others = (byte for byte in range(256) if byte not in self.alphabet)
        self.alphabet |= {byte: chr(256 + n) for n, byte in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        return [i for word in self.pattern.findall(text) for i in self._word(word)]

    def _word(self, word: str) -> list[int]:
        parts = [self.alphabet[byte] for byte in word.encode()]
        while True:
            pairs = [(self.ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in self.ranks]
            if not pairs:
                return [self.ids[part] for part in parts if part in self.ids]
            _, i = min(pairs)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
