"""The body of a cloud-stream request, checked: what comes out of here goes to the upstream as it is."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from ..errors import BadArgument
from ..routing.wire import clean_text
from .settings import Settings

ROLES = ("system", "user", "assistant")
MAX_SEED = 2**53 - 1
_DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class CloudRequest:
    """A checked request. Its text is never part of ``repr``, so that no log can hold it."""

    messages: tuple[dict[str, str], ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None

    def __repr__(self) -> str:
        return f"CloudRequest({len(self.messages)} messages, {self.prompt_bytes} bytes, max_tokens={self.max_tokens})"

    @property
    def prompt_bytes(self) -> int:
        return sum(len(message["content"].encode()) for message in self.messages)

    @property
    def estimated_prompt_tokens(self) -> int:
        """A token is about four bytes of prompt."""
        return -(-self.prompt_bytes // 4)


def parse_request(body: bytes, settings: Settings) -> CloudRequest:
    """Checks ``body``; raises ``BadArgument`` with one sentence that names the field. Unknown fields are ignored.

    ``max_tokens`` above the operator's cap is lowered to it: the answer then ends with finish_reason "length".
    """
    payload = _load(body)
    max_tokens = _integer(payload, "max_tokens", _DEFAULT_MAX_TOKENS, 1, 2**31 - 1)
    seed = _integer(payload, "seed", None, 0, MAX_SEED)
    temperature = _real(payload, "temperature", 0.0)
    if not 0.0 <= temperature <= 2.0:
        raise BadArgument(f"temperature is {temperature:g}; give a number from 0 to 2.")
    top_p = _real(payload, "top_p", 1.0)
    if not 0.0 < top_p <= 1.0:
        raise BadArgument(f"top_p is {top_p:g}; give a number above 0 and up to 1.")
    assert max_tokens is not None
    return CloudRequest(
        _messages(payload, settings.max_messages), min(max_tokens, settings.max_tokens), temperature, top_p, seed
    )


def _load(body: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise BadArgument("The body is not UTF-8 text; send a JSON object.") from None
    except (ValueError, RecursionError):
        raise BadArgument("The body is not valid JSON; send a JSON object.") from None
    if not isinstance(payload, dict):
        raise BadArgument("The body must be a JSON object with messages or prompt.")
    return payload


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _messages(payload: dict[str, Any], most: int) -> tuple[dict[str, str], ...]:
    messages, prompt = payload.get("messages"), payload.get("prompt")
    if (messages is None) == (prompt is None):
        raise BadArgument("Give either messages or prompt, and not both.")
    if messages is None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise BadArgument("prompt must be a text that is not empty.")
        return ({"role": "user", "content": clean_text(prompt)},)
    if not isinstance(messages, list) or not messages:
        raise BadArgument("messages must be a list with at least one message.")
    if len(messages) > most:
        raise BadArgument(f"There are {len(messages)} messages; at most {most} are taken.")
    checked = tuple(_message(message, index) for index, message in enumerate(messages))
    if not any(message["role"] != "system" and message["content"].strip() for message in checked):
        raise BadArgument("The messages hold no text to answer; give at least one user message that is not empty.")
    return checked


def _message(message: object, index: int) -> dict[str, str]:
    if not isinstance(message, dict):
        raise BadArgument(f"messages[{index}] must be an object with role and content.")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise BadArgument(f"messages[{index}].role must be one of {', '.join(ROLES)}.")
    if not isinstance(content, str):
        raise BadArgument(f"messages[{index}].content must be a text.")
    return {"role": role, "content": clean_text(content)}


def _integer(payload: dict[str, Any], name: str, default: int | None, low: int, high: int) -> int | None:
    value = payload.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadArgument(f"{name} must be a whole number from {low} to {high}.")
    return value


def _real(payload: dict[str, Any], name: str, default: float) -> float:
    value = payload.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadArgument(f"{name} must be a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadArgument(f"{name} must be a finite number.")
    return number
