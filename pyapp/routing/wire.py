"""The wire format of the cloud stream, shared by the gateway that writes it and the client that reads it.

The request is a POST of JSON: ``{"prompt": str}`` or ``{"messages": [{"role": "system" | "user" | "assistant",
"content": str}, ...]}``, whose last message may be an answer that is to be gone on with, and ``max_tokens``,
``temperature``, ``top_p`` and ``seed``, each optional. Where the gateway has site keys, ``Authorization: Bearer`` holds
a token. The answer is an event stream:

``data: {"text": …}`` any number of times, ``data: {"usage": {…}}`` once, or ``data: {"error": {code, message}}``,
then ``data: [DONE]``. A failure before the stream is an HTTP status with ``{"error": {code, message}}``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import BadArgument, CloudUnavailable, ContextFull, TandemError

DONE = "[DONE]"
MEDIA_TYPE = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the whole call; ``finish_reason`` is why the text ended: "stop" or "length", None where untold."""

    prompt_tokens: int
    completion_tokens: int
    finish_reason: str | None = None
    estimated: bool = False


CloudEvent = Text | Usage

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # json.dumps would make one for every event


def encode_event(event: CloudEvent | TandemError) -> bytes:
    """One event as it goes over the wire, its blank line included."""
    if isinstance(event, Text):
        return f'data: {{"text":{_JSON.encode(event.text)}}}\n\n'.encode()
    if isinstance(event, Usage):
        usage: dict[str, Any] = {
            "prompt_tokens": event.prompt_tokens,
            "completion_tokens": event.completion_tokens,
            "total_tokens": event.prompt_tokens + event.completion_tokens,
        }
        if event.finish_reason:
            usage["finish_reason"] = event.finish_reason
        if event.estimated:
            usage["estimated"] = True
        payload = {"usage": usage}
    else:
        payload = error_payload(event)
    return f"data: {_JSON.encode(payload)}\n\n".encode()


def encode_done() -> bytes:
    return f"data: {DONE}\n\n".encode()


def error_payload(error: TandemError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message}}


def parse_event(data: str) -> CloudEvent | None:
    """The event in one ``data`` payload, None for a kind this version does not know (a newer gateway may send more).

    Raises what ``error_from_payload`` gives for an error event, ``CloudUnavailable`` for what is no JSON object.
    """
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict):
        raise CloudUnavailable(
            "The cloud sent an event that is not a JSON object; try again, and check that the address is a Tandem "
            "gateway's.",
            kind="bad_event",
        )
    if payload.get("error") is not None:
        raise error_from_payload(payload, kind="in_band")
    text = payload.get("text")
    if isinstance(text, str) and text:
        return Text(text)
    usage = payload.get("usage")
    if isinstance(usage, dict):
        reason = usage.get("finish_reason")
        return Usage(
            _count(usage, "prompt_tokens", "promptTokens"),
            _count(usage, "completion_tokens", "completionTokens"),
            reason if reason in ("stop", "length") else None,
            usage.get("estimated") is True,
        )
    return None


def error_from_payload(payload: object, **details: Any) -> TandemError:
    """The error in ``{"error": {code, message}}``: BadArgument, ContextFull, else CloudUnavailable, never anything
    else, so that no gateway can make the client believe that its device was lost."""
    error = payload.get("error") if isinstance(payload, dict) else None
    code, message = None, None
    if isinstance(error, dict):
        code, message = error.get("code"), error.get("message")
    elif isinstance(error, str):
        message = error
    for cls in (BadArgument, ContextFull):
        if code == cls.code:
            return cls(_sentence(message), **details)
    if isinstance(code, str | int) and code != CloudUnavailable.code:
        details["cloud_code"] = str(code)[:100]
    return CloudUnavailable(_sentence(message), **details)


class SurrogateJoiner:
    """Mends text whose UTF-16 pairs were escaped apart (``"\\ud83d"``, then ``"\\ude00"``), as some servers do."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """``text`` with pairs joined; a high surrogate at its end waits for its partner, a lone one becomes U+FFFD."""
        text = self._held + text
        self._held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held, text = text[-1], text[:-1]
        return clean_text(text)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return clean_text(held)


def clean_text(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates as U+FFFD: always encodable as UTF-8."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _count(usage: dict[str, Any], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return 0


def _sentence(message: object) -> str:
    if isinstance(message, str) and message.strip():
        return message.strip()[:1000]
    return "The cloud reported an error without saying which; try again."
