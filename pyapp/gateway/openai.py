"""The streamed chat completions of an OpenAI-compatible server: our request in its words, its chunks in ours.

Format: https://platform.openai.com/docs/api-reference/chat-streaming, as llama.cpp and vLLM speak it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CloudUnavailable, ContextFull, TandemError
from .continuation import messages_and_options
from .retry import retry_after_seconds
from .validation import CloudRequest

_LONGEST_WAIT = 86400
"""Seconds; the most that a client is asked to stay away."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one chunk says; ``usage`` is (prompt tokens, completion tokens)."""

    text: str = ""
    finish_reason: str | None = None
    usage: tuple[int, int] | None = None


def request_body(request: CloudRequest, model: str | None, continuation: str) -> bytes:
    """``continuation`` is one of ``continuation.KINDS``."""
    messages, options = messages_and_options(request.messages, continuation)
    payload: dict[str, Any] = {
        "messages": messages,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    if model:
        payload["model"] = model
    if request.seed is not None:
        payload["seed"] = request.seed
    return json.dumps(payload).encode()


def parse_chunk(data: str) -> Chunk:
    """Raises ``CloudUnavailable`` for an error object in the stream, and for what is no chunk."""
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict):
        raise _bad_chunk()
    if payload.get("error") is not None:
        raise upstream_error(payload, 502)
    usage = _usage(payload.get("usage"))
    choices = payload.get("choices")
    if not choices:
        return Chunk(usage=usage)
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise _bad_chunk()
    choice = choices[0]
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
    if text is not None and not isinstance(text, str):
        raise _bad_chunk()
    reason = choice.get("finish_reason")
    return Chunk(text or "", None if not reason else "length" if reason == "length" else "stop", usage)


def upstream_error(payload: object, status: int, headers: Mapping[str, str] | None = None) -> TandemError:
    """What to tell the client about an upstream's refusal; ``details["status"]`` is the HTTP status of ours.

    The upstream's own sentence stays here, it may quote the prompt or part of a key.
    """
    details: dict[str, Any] = {"upstream_status": status}
    if _is_context_error(payload):
        return ContextFull(
            "The conversation is longer than the cloud model's context; shorten it.", status=400, **details
        )
    wait = retry_after_seconds(headers.get("retry-after"), time.time()) if headers else None
    if wait is not None:
        # In our own figures: the header's text is the upstream's, and would be one of ours.
        details["retry_after"] = str(min(math.ceil(wait), _LONGEST_WAIT))
    if status == 429:
        return CloudUnavailable(
            "The cloud model has too many requests at the moment; try again shortly.", status=429, **details
        )
    if status in (401, 403):
        why = "The cloud model's server refused the gateway's key; the operator has to set TANDEM_UPSTREAM_KEY"
    elif status == 404:
        why = "The cloud model's server does not know the address or the model; the operator has to check both"
    elif status == 502 and headers is None:
        why = "The cloud model's server reported an error in the middle of its answer; try again"
    elif 400 <= status < 500:
        why = f"The cloud model's server refused the request (HTTP {status})"
    else:
        why = f"The cloud model's server failed (HTTP {status}); try again"
    return CloudUnavailable(f"{why}.", status=502, **details)


def _is_context_error(payload: object) -> bool:
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        return False
    kinds = (error.get("type"), error.get("code"))  # llama.cpp; OpenAI
    if "exceed_context_size_error" in kinds or "context_length_exceeded" in kinds:
        return True
    return "maximum context length" in str(error.get("message", ""))  # vLLM has no code of its own for it


def _usage(value: object) -> tuple[int, int] | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens"), value.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int) and prompt >= 0 and completion >= 0:
        return prompt, completion
    return None


def _bad_chunk() -> CloudUnavailable:
    return CloudUnavailable(
        "The cloud model's server sent something that is not a chat completion chunk; the operator has to check that "
        "TANDEM_UPSTREAM_URL is an OpenAI-compatible server.",
        status=502,
    )
