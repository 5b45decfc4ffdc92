"""Token ids → text, piece by piece, while the model is still writing."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class Detokenizer:
    """An incremental decoder: ``push`` ids as they come, show what comes back, ``flush`` at the end.

    The bytes of all tokens go through one incremental UTF-8 decoder (errors give U+FFFD, as TextDecoder with
    ``stream: true``): a character that is spread over tokens appears when its last byte has come, never earlier
    and never in parts. All pieces joined equal ``Tokenizer.decode`` of all ids, however these were dealt out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.waiting = 0
        """How many of the last tokens have shown nothing yet: all their bytes belong to an unfinished character."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that ``ids`` complete, possibly "". Raises BadArgument for an id outside the vocabulary."""
        pieces = [self._tokenizer.token_bytes(token) for token in ids]
        text = self._decoder.decode(b"".join(pieces))
        if text:
            self.waiting = 0
            # What is unfinished now began behind that text, so in these pieces.
            unfinished = len(self._decoder.getstate()[0])
            for piece in reversed(pieces):
                unfinished -= len(piece)
                if unfinished < 0:
                    break
                self.waiting += 1
        else:
            self.waiting += len(pieces)
        return text

    def flush(self) -> str:
        """What is left of an unfinished character (U+FFFD), or "". The decoder then starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self.waiting = 0
        return rest
