"""How an upstream is made to go on with a text that somebody else began.

The client hands over what is shown already as a trailing assistant message. What a server does with one differs: some
go on after its last character, some answer it as a message of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TRAILING = "trailing"
"""A trailing assistant message is enough: llama.cpp, and so the embedded server."""
CONTINUE_FINAL_MESSAGE = "continue_final_message"
"""vLLM (and SGLang): the chat template must be told to leave the last message open and to begin no new one."""
INSTRUCTION = "instruction"
"""Everybody else is asked in words; such a server may repeat the last words all the same, and the client joins."""

KINDS = (TRAILING, CONTINUE_FINAL_MESSAGE, INSTRUCTION)

_REQUEST = (
    "Your last message was cut off. Go on with it in the same language from exactly where it stops: begin with the "
    "very next character, repeat nothing of it, and say nothing about this request."
)


def messages_and_options(messages: Sequence[dict[str, str]], kind: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The messages to send, and the fields that go into the request beside them.

    Both are as ever where the last message is not the assistant's.
    """
    if not messages or messages[-1]["role"] != "assistant" or kind == TRAILING:
        return list(messages), {}
    if kind == CONTINUE_FINAL_MESSAGE:
        return list(messages), {"add_generation_prompt": False, "continue_final_message": True}
    return [*messages, {"role": "user", "content": _REQUEST}], {}
