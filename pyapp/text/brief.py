"""The merchant's brief, checked: tone, language, length, keywords; and cleaning of the short texts that users give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import BadArgument

TONES: Final = ("friendly", "professional", "playful", "luxurious", "plain")
"""The tones with an example of their own; another tone may be given in a few words."""
LENGTHS: Final = {"short": 2, "medium": 3, "long": 4}
"""Length → sentences: small models keep to a number of sentences much better than to one of words."""
LANGUAGES: Final = {
    "ar": "Arabic", "da": "Danish", "de": "German", "en": "English", "es": "Spanish", "fi": "Finnish", "fr": "French",
    "hi": "Hindi", "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
MAX_KEYWORDS: Final = 20
MAX_KEYWORD_CHARACTERS: Final = 80
_MAX_TONE_CHARACTERS: Final = 40

_SEPARATORS: Final = re.compile("[,;\n\r，、；]")
_MARKUP: Final = re.compile("<[^<>]{0,100}>")
# Every control token of a chat vocabulary has one of these; so no text without them can become one.
_MARKS: Final = re.compile("[<>|｜\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]+")


@dataclass(frozen=True)
class Brief:
    """tone: a word or two; language: a key of LANGUAGES; length: a key of LENGTHS; keywords: cleaned."""

    tone: str = "friendly"
    language: str = "en"
    length: str = "medium"
    keywords: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: Mapping[str, Any] | None) -> Brief:
        """From ``{tone, language, length, keywords}``, each of them optional. Raises BadArgument."""
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise BadArgument(
                "brief must be an object with tone, language, length and keywords, each of them optional."
            )
        unknown = [str(key) for key in value if key not in ("tone", "language", "length", "keywords")]
        if unknown:
            raise BadArgument(
                f"brief has no field {unknown[0][:40]!r}; it has tone, language, length and keywords.", field=unknown[0]
            )
        return cls(
            _tone(value.get("tone")),
            _language(value.get("language")),
            _length(value.get("length")),
            _keywords(value.get("keywords")),
        )


def clean(text: str) -> str:
    """One line of plain text: nothing in it is a control token, a line end or another control character.

    ``<|im_start|>`` and its like go as a whole; of what is left, the marks that they are made of.
    """
    return " ".join(_MARKS.sub(" ", _MARKUP.sub(" ", text)).split())


def _tone(value: Any) -> str:
    if value is None or value == "":
        return Brief.tone
    tone = clean(_text("tone", value)).lower()
    if not 0 < len(tone) <= _MAX_TONE_CHARACTERS:
        raise BadArgument(
            f"brief.tone has {len(tone)} characters: give one of {', '.join(TONES)}, or another tone in at most "
            f"{_MAX_TONE_CHARACTERS} characters.",
            tones=list(TONES),
        )
    return tone


def _language(value: Any) -> str:
    if value is None or value == "":
        return Brief.language
    given = _text("language", value).strip().lower()
    code = re.split("[-_]", given)[0]
    if code in LANGUAGES:
        return code
    for code, name in LANGUAGES.items():
        if name.lower() == given:
            return code
    raise BadArgument(
        f"brief.language is {given[:40]!r}: give one of {', '.join(LANGUAGES)}.", languages=list(LANGUAGES)
    )


def _length(value: Any) -> str:
    if value is None or value == "":
        return Brief.length
    length = _text("length", value).strip().lower()
    if length not in LENGTHS:
        raise BadArgument(f"brief.length is {length[:40]!r}: give {', '.join(LENGTHS)}.", lengths=list(LENGTHS))
    return length


def _keywords(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    given = _SEPARATORS.split(value) if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise BadArgument("brief.keywords must be a text with commas or a list of texts.")
    cleaned = [clean(_text("keywords", word)) for word in given]
    keywords = tuple(dict.fromkeys(word for word in cleaned if word))
    if len(keywords) > MAX_KEYWORDS:
        raise BadArgument(
            f"brief.keywords holds {len(keywords)} keywords: give at most {MAX_KEYWORDS}.", count=len(keywords)
        )
    longest = max(map(len, keywords), default=0)
    if longest > MAX_KEYWORD_CHARACTERS:
        raise BadArgument(
            f"A keyword in brief.keywords has {longest} characters: give at most {MAX_KEYWORD_CHARACTERS} each.",
            characters=longest,
        )
    return keywords


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadArgument(f"brief.{name} must be text, not {type(value).__name__}.", field=name)
    return value
