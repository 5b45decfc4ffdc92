"""Chat templates: recognised by their text, never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyapp.errors import BadModel
from pyapp.text.chat import ChatTemplate
from pyapp.text.tokenizer import Tokenizer
from tests.unit.text_models import golden, smollm2, tiny

CASES = [(t["template"], case) for t in golden("chat_template.json")["templates"] for case in t["cases"]]
USER = [{"role": "user", "content": "hi"}]
SYSTEM = [{"role": "system", "content": "Be brief."}, *USER]


@pytest.mark.parametrize(("template", "case"), CASES, ids=[case["name"] for _, case in CASES])
def test_golden_conversations(template: str, case: dict[str, Any]) -> None:
    chat = ChatTemplate.from_gguf({"tokenizer.chat_template": template})
    assert chat.render(case["messages"]) == case["prompt"]
    assert chat.render(case["messages"], generation_prompt=False) == case["no_generation_prompt"]


def test_golden_prompt_ids(dist: Path) -> None:
    metadata = smollm2(dist)
    tokenizer, chat = Tokenizer.from_gguf(metadata), ChatTemplate.from_gguf(metadata)
    cases = [case for _, case in CASES if "prompt_ids" in case]
    assert len(cases) == 8
    assert [tokenizer.encode(chat.render(case["messages"])) for case in cases] == [case["prompt_ids"] for case in cases]


# The beginnings of the templates in Qwen2's and Qwen2.5's GGUF files; there "\n" is written as backslash and n.
QWEN2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n"
    "You are a helpful assistant.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
)
QWEN25 = (
    "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- messages[0]['content'] }}\n    {%- else %}\n        {{- 'You are Qwen, created by Alibaba Cloud. You "
    'are a helpful assistant.\' }}\n    {%- endif %}\n    {{- "\\n\\n# Tools" }}\n{%- else %}\n'
    "    {%- if messages[0]['role'] == 'system' %}\n        {{- '<|im_start|>system\\n' + messages[0]['content'] + "
    "'<|im_end|>\\n' }}\n    {%- else %}\n        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. "
    "You are a helpful assistant.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}\n{%- for message in messages %}…"
)


@pytest.mark.parametrize(
    ("template", "system"),
    [
        (QWEN2, "You are a helpful assistant."),
        (QWEN25, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    ],
)
def test_default_system_texts_of_qwen(template: str, system: str) -> None:
    chat = ChatTemplate.from_gguf({"tokenizer.chat_template": template})
    assert chat.render(USER, False) == f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert chat.render(SYSTEM, False).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")


def test_a_template_is_not_run() -> None:
    hostile = "{{ cycler.__init__.__globals__.os.popen('touch /tmp/owned').read() }}<|im_start|>{{ 1/0 }}<|im_end|>"
    chat = ChatTemplate.from_gguf({"tokenizer.chat_template": hostile})
    assert chat.render(USER, False) == "<|im_start|>user\nhi<|im_end|>\n"
    with pytest.raises(BadModel, match="ChatML"):
        ChatTemplate.from_gguf({"tokenizer.chat_template": "{{ 1/0 }} [INST] {{ messages[0]['content'] }} [/INST]"})


def test_a_file_without_a_template() -> None:
    without = {key: value for key, value in tiny("smollm").items() if key != "tokenizer.chat_template"}
    assert ChatTemplate.from_gguf(without) == ChatTemplate(None)
    with pytest.raises(BadModel, match="no chat template"):
        ChatTemplate.from_gguf({"tokenizer.ggml.tokens": ["<s>", "</s>"]})


def test_no_messages() -> None:
    assert ChatTemplate("x").render([], False) == ""
