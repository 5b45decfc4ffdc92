"""Conversation → the text a model was trained to continue.

A chat template in a GGUF file is a program in Jinja, from a stranger (CVE-2024-34359). It is never executed: its text
is recognised, and the format that it is known to write is written here. Tandem knows ChatML and its variants, with or
without a system text that stands in when the conversation brings none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import BadModel

Messages = Sequence[Mapping[str, str]]

_START: Final = "<|im_start|>"
_END: Final = "<|im_end|>"
SUPPORTED: Final = "ChatML (<|im_start|>role … <|im_end|>), as SmolLM2 and Qwen2 use it"

# The system text that a template writes by itself, as a literal that begins a system turn. It must contain no Jinja.
_DEFAULT_SYSTEM: Final = re.compile(r"<\|im_start\|>system\n([^{}<>|']*)<\|im_end\|>")
# A literal counts only in a branch for conversations that do not begin with a system message.
_WITHOUT_SYSTEM: Final = re.compile(
    r"messages\[0\](?:\['role'\]|\.role|\[\"role\"\])\s*!=\s*['\"]system['\"]"
    r"|messages\[0\](?:\['role'\]|\.role|\[\"role\"\])\s*==\s*['\"]system['\"].*?{%-?\s*else\s*-?%}",
    re.DOTALL,
)


@dataclass(frozen=True)
class ChatTemplate:
    """ChatML. ``default_system``: the system text used when the first message is not a system message, or None."""

    default_system: str | None = None

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> ChatTemplate:
        """Recognise ``tokenizer.chat_template``. A file without one is ChatML if its vocabulary has the two tokens.

        Raises BadModel for a template of another family.
        """
        template = metadata.get("tokenizer.chat_template")
        if not template:
            return cls._from_tokens(metadata.get("tokenizer.ggml.tokens") or ())
        if not isinstance(template, str) or _START not in template or _END not in template:
            raise BadModel(
                f"The chat template of this model is of a kind that Tandem does not know; it knows {SUPPORTED}: "
                "choose a model file with such a template.",
                template=str(template)[:80],
            )
        text = template.replace("\\n", "\n")
        branch = _WITHOUT_SYSTEM.search(text)
        default = _DEFAULT_SYSTEM.search(text, branch.end()) if branch else None
        return cls(default.group(1) if default else None)

    @classmethod
    def _from_tokens(cls, tokens: Sequence[str]) -> ChatTemplate:
        if _START in tokens and _END in tokens:
            return cls()
        raise BadModel(
            f"This model has no chat template, and its vocabulary not the tokens of ChatML; Tandem knows {SUPPORTED}: "
            "choose a model that was tuned for conversation.",
        )

    def render(self, messages: Messages, generation_prompt: bool = True) -> str:
        """The conversation as one text; contents go in as they are, nothing is escaped or stripped.

        messages: ``[{"role", "content"}, …]``; generation_prompt: end with the opening of the assistant's turn.
        """
        turns = [(message["role"], message["content"]) for message in messages]
        if self.default_system is not None and turns and turns[0][0] != "system":
            turns.insert(0, ("system", self.default_system))
        text = "".join(f"{_START}{role}\n{content}{_END}\n" for role, content in turns)
        return text + f"{_START}assistant\n" if generation_prompt else text
