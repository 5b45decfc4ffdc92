"""Token ids → text, piece by piece, while the model is still writing."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class Detokenizer:
    """An incremental decoder: ``push`` each id, show what comes back, ``flush`` at the end.

    The bytes of all tokens go through one incremental UTF-8 decoder (errors give U+FFFD, as TextDecoder with
    ``stream: true``): a character that is spread over tokens appears when its last byte has come, never earlier
    and never in parts. All pieces joined equal ``Tokenizer.decode`` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that ``token`` completes, possibly "". Raises BadArgument for an id outside the vocabulary."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What is left of an unfinished character (U+FFFD), or "". The decoder then starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
