"""Joining what a cloud sends to the text that is shown already, without repeating or losing a character.

A cloud that is asked to go on does one of four things: it goes on with the very next character; it begins its answer
anew; it repeats the last words first; or it changes the white space where the two texts meet. Text is held back only
while it may still turn out to be a repetition, so never more of it than was shown; ``flush`` gives out what is left.

What cannot be told apart for certain is a text that repeats itself ("very " and then "very good"). A repetition that is
left in is ugly; a word that is left out is a fault nobody sees. So an overlap is cut only where chance is out of the
question:

- It begins where a word begins, and has at least three letters: "a", "ha", numbers and emoji are always kept. A word
  that repeats itself counts once ("haha" has two letters).
- Where a letter meets a letter, keeping the overlap would make a word like "ceraceramic": two words are enough, or one
  of five letters, as hardly anything longer than the half of "couscous" is doubled inside of a word; or three letters
  where the whole text would be doubled ("TheThe").
- Elsewhere it must weigh as much as three different words, for sayings double one or two of them ("more and more and
  more", "again and again and again"). A longer word weighs more, up to two; a number, or a character of a script
  without blanks, a little over half of one. Of the whole text two words are enough: a text seldom begins twice.

A new beginning in other words fits nowhere: cut at the first word that differs, it would make a sentence that neither
side wrote. It is passed on whole, after an empty line.
"""

from __future__ import annotations

import re
import unicodedata

LEAST_LETTERS = 3
RUN_ON_LETTERS = 5
WORD, LONG_WORD, CHARACTER = 5, 10, 3
ENOUGH = 3 * WORD
ENOUGH_FOR_THE_WHOLE = 9
"""Two words, or three characters of a script without blanks."""
MOST_BLANKS = 64
"""White space held back while nothing else has come."""
PARAGRAPH = "\n\n"

_BLANKS = "\t\n\v\f\r \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Thai, Lao, Burmese, Khmer, Chinese and Japanese: every character counts as a word of its own."""


class Joiner:
    """Goes on after ``shown``. Pure: text in, text out. ``web/joiner.js`` is the same in JavaScript."""

    def __init__(self, shown: str) -> None:
        self._text = shown.strip(_BLANKS)
        self._tail = shown[len(shown.rstrip(_BLANKS)) :]
        self._held = ""
        self._passing = not shown
        self._starts: list[int] | None = None
        """Where in ``_text`` a repetition may have begun, the longest first; None before the first character."""
        self.repeated = 0
        """How many characters of what came were shown already."""

    def push(self, text: str) -> str:
        """What to show of all that has come so far, beyond what was given out before."""
        if self._passing:
            return text
        self._held += text
        return self._decide(last=False)

    def flush(self) -> str:
        """The rest, at the end of what comes."""
        return "" if self._passing else self._decide(last=True)

    def _decide(self, *, last: bool) -> str:
        body = self._held.lstrip(_BLANKS)
        if not body:
            return self._pass(0) if last or len(self._held) > MOST_BLANKS else ""
        blanks = self._held[: len(self._held) - len(body)]
        runs_on = not blanks and not self._tail and _is_spaced(body[0])
        if self._starts is None:
            self._starts = self._candidates(body[0], inside=runs_on and _is_spaced(self._text[-1:]))
        text = self._text
        self._starts = [at for at in self._starts if text.startswith(body, at) or body.startswith(text[at:])]
        if not last and self._starts and len(body) < len(text) - self._starts[0]:
            return ""  # the longest is not complete yet
        for at in self._starts:
            if len(body) >= len(text) - at:
                return self._after(len(blanks) + len(text) - at, last)
        return self._continuation(blanks, body)

    def _candidates(self, first: str, *, inside: bool) -> list[int]:
        """Where a repetition that begins with ``first`` may have begun. ``inside``: the texts meet inside of a word."""
        seen: set[str] = set()
        words = letters = weight = 0
        starts = []
        for at, unit in reversed(_units(self._text)):
            if unit not in seen:
                seen.add(unit)
                words += _letters(unit) > 0
                letters += _letters(unit)
                weight += _weight(unit)
            if inside:
                enough = at == 0 or words >= 2 or letters >= RUN_ON_LETTERS
            else:
                enough = weight >= (ENOUGH if at else ENOUGH_FOR_THE_WHOLE)
            if enough and letters >= LEAST_LETTERS and unit[0] == first:
                starts.append(at)
        return starts[::-1]

    def _after(self, repeated: int, last: bool) -> str:
        """The text beyond a repetition; of the white space there, what the shown text does not end with already."""
        rest = self._held[repeated:]
        body = rest.lstrip(_BLANKS)
        blanks = rest[: len(rest) - len(body)]
        if self._tail and not body and not last and len(blanks) <= MOST_BLANKS:
            return ""
        if blanks.startswith(self._tail):
            repeated += len(self._tail)
        elif self._tail.startswith(blanks):
            repeated += len(blanks)
        return self._pass(repeated)

    def _continuation(self, blanks: str, body: str) -> str:
        """What begins with no repetition."""
        common = _common(self._text, body)
        words = {unit for _, unit in _units(body[:common])[:-1]}  # the last one may be half a word
        if sum(map(_weight, words)) >= ENOUGH and sum(map(_letters, words)) >= LEAST_LETTERS:
            if common == len(body):
                return self._pass(len(self._held))  # an answer begun anew, that ended before it came to anything new
            if not blanks and not self._tail:
                return PARAGRAPH + self._pass(0)
        # Many a tokenizer begins with a blank, and many a template cuts off the one that it is to go on from.
        return self._pass(1 if self._text and self._tail == blanks == " " else 0)

    def _pass(self, repeated: int) -> str:
        self._passing = True
        self.repeated = repeated
        return self._held[repeated:]


def _common(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _is_spaced(char: str) -> bool:
    """Whether a character belongs to a word of a script that parts words."""
    return bool(char) and unicodedata.category(char)[0] in "LMN" and not _UNSPACED.match(char)


def _units(text: str) -> list[tuple[int, str]]:
    """(offset, text) of words, of characters of scripts without blanks, and of signs."""
    units: list[tuple[int, str]] = []
    inside = False
    for at, char in enumerate(text):
        spaced = _is_spaced(char)
        if spaced and inside:
            units[-1] = (units[-1][0], units[-1][1] + char)
        elif char not in _BLANKS:
            units.append((at, char))
        inside = spaced
    return units


def _letters(unit: str) -> int:
    """Letters of a word; those of a word that repeats itself count once, those of numbers and signs not at all."""
    has_letters = any(unicodedata.category(char)[0] == "L" for char in unit)
    return (unit + unit).index(unit, 1) if has_letters else 0


def _weight(unit: str) -> int:
    if not _is_spaced(unit[0]):
        return CHARACTER if _UNSPACED.match(unit) else 0
    return max(WORD, min(LONG_WORD, _letters(unit))) if _letters(unit) else CHARACTER
