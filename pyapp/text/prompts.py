"""What is sent to the language model: the caller's own messages, or the built-in prompt for product copy.

The built-in prompt shows one example before it asks. SmolLM2-135M without it talks about product descriptions, greets
the customer, or repeats itself (tried on a dozen wordings); with it, it keeps to the form, the tone and roughly the
length of the example. So the example is picked by tone and cut to the length asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..errors import BadArgument
from .brief import LANGUAGES, LENGTHS, Brief, clean

ROLES: Final = ("system", "user", "assistant")
Message = dict[str, str]

_SYSTEM: Final = "You write product copy for an online shop."
# One product in the tones of brief.TONES, four sentences each: LENGTHS says how many of them are shown. Small models
# copy whole sentences now and then, so from the second on they say nothing that is true of wallets only.
_EXAMPLES: Final = {
    "friendly": (
        "Carry less and smile more with a slim leather wallet that slips into any pocket.",
        "It makes a thoughtful gift for anyone who likes to travel light.",
        "Simple, handy and made for every day, it soon becomes the thing you would not want to be without.",
        "Treat yourself, or put a smile on the face of a friend.",
    ),
    "professional": (
        "This slim leather wallet keeps cards and notes in order throughout the working day.",
        "Its clean lines make it a fitting gift for a colleague or a client.",
        "Designed for reliable daily use, it combines practical value with a discreet appearance.",
        "A sound choice for anyone who expects quality.",
    ),
    "playful": (
        "Say goodbye to the brick in your pocket and hello to a slim leather wallet!",
        "As a gift, it gets big grins and zero returns.",
        "Bring it home and watch your ordinary Monday turn into something a little more fun.",
        "Go on, you know you want it!",
    ),
    "luxurious": (
        "Discover the quiet elegance of a slim leather wallet, made to be held as much as used.",
        "It is a refined gift for those who appreciate fine things.",
        "Every line and every detail speaks of patience, care and a love of beauty.",
        "An indulgence to enjoy for years to come.",
    ),
    "plain": (
        "A slim leather wallet for cards and notes.",
        "It is easy to carry and works well as a gift.",
        "It does its job without fuss and is suited to daily use.",
        "A good choice at any time of the year.",
    ),
}
# A second label is named only when the model could hardly choose between the two.
_SECOND_LABEL: Final = 0.6


def build_messages(
    prompt: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    facts: Mapping[str, Any] | None = None,
    brief: Mapping[str, Any] | None = None,
) -> list[Message]:
    """The messages to generate from, ``[{"role", "content"}, …]``.

    ======================  ==================================================================================
    prompt or messages      as they are; not both
    … with facts or brief   the same, with what was seen and asked for added to the last user turn
    facts and/or brief      the built-in prompt for product copy; a brief alone needs keywords
    nothing                 BadArgument
    ======================  ==================================================================================

    facts: ``{"labels": [{"index", "name", "p"}, …]}``, as ``describe`` returns them. brief: see ``Brief.parse``.
    Short texts (labels, keywords, tone) are cleaned, so that they bring no control token into the prompt; prompt and
    messages are the caller's own and stay as they are. Raises BadArgument.
    """
    names = _names(facts)
    wish = Brief.parse(brief)
    if prompt is not None and messages is not None:
        raise BadArgument("Give either prompt or messages, and not both.")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise BadArgument("prompt must be a text that is not empty.")
        return _with_notes([{"role": "user", "content": prompt}], names, wish if brief else None)
    if messages is not None:
        return _with_notes(_checked(messages), names, wish if brief else None)
    if not names and not wish.keywords:
        raise BadArgument("There is nothing to write about: give prompt, messages, facts, or a brief with keywords.")
    return _product_copy(names, wish)


def _product_copy(names: list[str], brief: Brief) -> list[Message]:
    # Without a photo the first keyword is what the copy is about.
    product, keywords = (" or ".join(names), brief.keywords) if names else (brief.keywords[0], brief.keywords[1:])
    count = LENGTHS[brief.length]
    request = {"role": "user", "content": _request(product, keywords, brief)}
    system = {"role": "system", "content": _SYSTEM}
    if brief.language != "en":  # an English example would draw the answer into English
        return [system, request]
    example = _EXAMPLES.get(brief.tone, _EXAMPLES["friendly"])
    shown = {"role": "user", "content": _request("leather wallet", ("slim", "gift"), brief)}
    return [system, shown, {"role": "assistant", "content": " ".join(example[:count])}, request]


def _request(product: str, keywords: tuple[str, ...], brief: Brief) -> str:
    parts = [f"Product: {product}."]
    if keywords:
        parts.append(f"Keywords: {', '.join(keywords)}.")
    parts += [f"Tone: {brief.tone}.", f"Length: {LENGTHS[brief.length]} sentences."]
    if brief.language != "en":
        parts.append(f"Write the product description in {LANGUAGES[brief.language]}.")
    return " ".join(parts)


def _with_notes(messages: list[Message], names: list[str], brief: Brief | None) -> list[Message]:
    """``messages`` with a line for the photo and one for the brief at the end of the last user turn."""
    notes = [f"The product photo shows: {' or '.join(names)}."] if names else []
    if brief is not None:
        wishes = [f"Keywords: {', '.join(brief.keywords)}."] if brief.keywords else []
        wishes += [f"Tone: {brief.tone}.", f"Length: {LENGTHS[brief.length]} sentences."]
        if brief.language != "en":
            wishes.append(f"Language: {LANGUAGES[brief.language]}.")
        notes.append(" ".join(wishes))
    if not notes:
        return messages
    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        raise BadArgument("facts and brief are added to the last user message, but messages has none: add one.")
    messages[last] = {"role": "user", "content": "\n\n".join([messages[last]["content"], *notes])}
    return messages


def _checked(messages: Any) -> list[Message]:
    if not isinstance(messages, list | tuple) or not messages:
        raise BadArgument("messages must be a list with at least one message, each with role and content.")
    checked: list[Message] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise BadArgument(f"messages[{index}] must be an object with role and content.", index=index)
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise BadArgument(f"messages[{index}].role must be one of {', '.join(ROLES)}.", index=index)
        if not isinstance(content, str):
            raise BadArgument(f"messages[{index}].content must be text.", index=index)
        checked.append({"role": role, "content": content})
    if not any(message["role"] != "system" and message["content"].strip() for message in checked):
        raise BadArgument("messages hold no text to answer: give at least one user message that is not empty.")
    return checked


def _names(facts: Any) -> list[str]:
    """The label to write about, or two when they are nearly as probable. [] for no facts."""
    if facts is None:
        return []
    labels = facts.get("labels") if isinstance(facts, Mapping) else None
    if not isinstance(labels, list | tuple):
        raise BadArgument("facts must be an object with labels, a list of {index, name, p}, as describe() returns it.")
    found: list[tuple[float, str]] = []
    for index, label in enumerate(labels):
        name = label.get("name") if isinstance(label, Mapping) else None
        p = label.get("p", 0.0) if isinstance(label, Mapping) else None
        if not isinstance(name, str) or isinstance(p, bool) or not isinstance(p, int | float) or not math.isfinite(p):
            raise BadArgument(
                f"facts.labels[{index}] must have name, a text, and p, a number from 0 to 1.", index=index
            )
        if cleaned := clean(name)[:80]:
            found.append((float(p), cleaned))
    found.sort(key=lambda label: -label[0])
    return [name for p, name in found[:2] if p >= _SECOND_LABEL * found[0][0]]
