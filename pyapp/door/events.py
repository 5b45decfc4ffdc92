"""The events of ``Client.generate``: plain dicts with the keys of the JavaScript door, so that both doors speak alike.

    {"type": "text",   "text": str, "tokens": int, "source": Source}        what came together, see ``TextEvent``
    {"type": "status", "code": str, "message": str, "source": Source}       anything worth telling, see ``STATUS_CODES``
    {"type": "usage",  "promptTokens": int, "completionTokens": int, "deviceTokens": int, "cloudTokens": int}    once
    {"type": "done",   "reason": "stop" | "length" | "abort", "source": Source | None}     last, see ``DoneEvent``

Errors are raised, never sent as an event.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from pyapp.routing.router import Reason, Source, Tally

STATUS_CODES: dict[str, str] = {
    "queued": "another call of this client is still being answered; this one waits for its turn",
    "context_short": "the context has less room left than max_tokens asks for, so the text may end early",
    "loading": "the device's models are still being loaded, so the cloud writes, or the text waits for them",
    "pressure": "the device has too little memory for this turn, or has slowed down, so the cloud writes it",
}
"""Codes of status events besides those of the errors (``pyapp.errors``), which say why the other side took over."""


class TextEvent(TypedDict):
    """What is new: where tokens or texts come together, one event. How a text is split over events depends on time.

    ``tokens``: how many it stands for; of a cloud's as far as is known before its usage. None for what is left of a
    character whose token was counted with an earlier text; a token without any text is in the usage only.
    """

    type: Literal["text"]
    text: str
    tokens: int
    source: Source


class StatusEvent(TypedDict):
    type: Literal["status"]
    code: str
    message: str
    source: Source


class UsageEvent(TypedDict):
    type: Literal["usage"]
    promptTokens: int
    completionTokens: int
    deviceTokens: int
    cloudTokens: int


class DoneEvent(TypedDict):
    """``source``: the side that ended the text. Of one that was aborted the side that wrote last, None where none had
    written anything."""

    type: Literal["done"]
    reason: Reason
    source: Source | None


Event = TextEvent | StatusEvent | UsageEvent | DoneEvent


def text(piece: str, tokens: int, source: Source) -> TextEvent:
    return {"type": "text", "text": piece, "tokens": tokens, "source": source}


def status(code: str, message: str, source: Source) -> StatusEvent:
    return {"type": "status", "code": code, "message": message, "source": source}


def usage(tally: Tally) -> UsageEvent:
    """Tokens: of the prompt, and of the answer by the side that made them; each token counts once.

    They are those of the text shown: what a cloud repeated of it before it went on was counted already (by the share of
    characters, since a gateway counts only the whole). What the cloud bills is in the gateway's own figures.
    """
    device, cloud = tally.tokens["device"], tally.tokens["cloud"]
    return {
        "type": "usage",
        "promptTokens": tally.prompt_tokens or 0,
        "completionTokens": device + cloud,
        "deviceTokens": device,
        "cloudTokens": cloud,
    }


def done(reason: Reason, source: Source | None) -> DoneEvent:
    return {"type": "done", "reason": reason, "source": source}
