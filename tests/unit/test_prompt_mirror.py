"""``web/prompt.js``, which serves where Python cannot run, says what ``pyapp.text.prompts`` says."""

from __future__ import annotations

from itertools import product
from typing import Any

from pyapp.door.options import sampling_params
from pyapp.errors import BadArgument
from pyapp.text.brief import LANGUAGES, LENGTHS, TONES
from pyapp.text.prompts import build_messages
from tests.unit.node_runner import run_node

CUP = {"index": 968, "name": "cup", "p": 0.5}
MUG = {"index": 504, "name": "coffee mug", "p": 0.4}
FAR = {"index": 1, "name": "goldfish", "p": 0.1}
CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "Hello"}]

REQUESTS: list[dict[str, Any]] = [
    *({"facts": {"labels": [CUP]}, "brief": {"tone": t, "length": n}} for t, n in product([*TONES, "wry"], LENGTHS)),
    *({"facts": {"labels": [MUG, CUP, FAR]}, "brief": {"language": code, "keywords": "red"}} for code in LANGUAGES),
    *({"prompt": "Hi", "brief": {"language": name}} for name in ("English", "chinese", "pt-BR", "zh_TW")),
    {"prompt": "Hi"},
    {"prompt": "Hi", "facts": {"labels": [CUP, FAR]}},
    {"prompt": "Hi", "facts": None, "brief": None},
    {"prompt": "Hi", "brief": {}},
    {"messages": CHAT},
    {"messages": ANSWERED, "facts": {"labels": [FAR, MUG]}, "brief": {"keywords": ["a", "b"]}},
    {"facts": {"labels": [{"name": "a<|im_end|>b|c\nd", "p": 1}, {"name": "<|x|>", "p": 1}]}},
    {"facts": {"labels": [{"name": "x" * 100, "p": 1}]}},
    {"brief": {"keywords": "blue， warm；blue;  soft\u2028wool "}},
    {"brief": {"keywords": ["one"], "tone": "", "length": None, "language": ""}},
    {"brief": {"keywords": "x", "tone": "  Very\tBold "}},
]
REFUSED: list[dict[str, Any]] = [
    {},
    {"prompt": ""},
    {"prompt": " \n"},
    {"prompt": 5},
    {"prompt": "a", "messages": CHAT},
    {"messages": []},
    {"messages": "Hi"},
    {"messages": ["Hi"]},
    {"messages": [{"role": "tool", "content": "x"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": "  "}]},
    {"messages": [{"role": "assistant", "content": "x"}], "facts": {"labels": [CUP]}},
    {"facts": {"labels": []}},
    {"facts": 5},
    {"facts": {"labels": "cup"}},
    {"facts": {"labels": [{"name": 5, "p": 1}]}},
    {"facts": {"labels": [{"name": "cup", "p": "x"}]}},
    {"brief": {}},
    {"brief": 5},
    {"brief": []},
    {"prompt": "a", "brief": {"mood": "x"}},
    {"prompt": "a", "brief": {"tone": 5}},
    {"prompt": "a", "brief": {"tone": "x" * 41}},
    {"prompt": "a", "brief": {"length": "huge"}},
    {"prompt": "a", "brief": {"language": "tlh"}},
    {"prompt": "a", "brief": {"keywords": 5}},
    {"prompt": "a", "brief": {"keywords": [5]}},
    {"prompt": "a", "brief": {"keywords": [str(n) for n in range(21)]}},
    {"prompt": "a", "brief": {"keywords": "x" * 81}},
]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"maxTokens": 1, "temperature": 0.7, "topK": 40, "topP": 0.9, "seed": 2**32 - 1},
    *({"maxTokens": value} for value in (0, -1, 1.5, None, "5", 2**31)),
    *({"temperature": value} for value in (-0.1, 10, 10.1, None, True)),
    *({"topP": value} for value in (0, 0.01, 1.01)),
    *({"topK": value} for value in (-1, 0.5)),
    *({"seed": value} for value in (-1, 2**32)),
]

BUILD = """
  const { buildMessages } = await import(web + "prompt.js");
  return input.map((request) => {
    try { return buildMessages(request); } catch (error) { return error.code ?? String(error); }
  });
"""
CHECK = """
  const { checkSampling } = await import(web + "prompt.js");
  return input.map((request) => {
    try { return checkSampling(request); } catch (error) { return error.code ?? String(error); }
  });
"""


def in_python(request: dict[str, Any]) -> Any:
    try:
        return build_messages(**request)
    except BadArgument as error:
        return error.code


def test_messages_are_the_same() -> None:
    assert run_node(BUILD, REQUESTS) == [in_python(request) for request in REQUESTS]


def test_what_python_refuses_is_refused() -> None:
    assert [in_python(request) for request in REFUSED] == ["bad_argument"] * len(REFUSED)
    assert run_node(BUILD, REFUSED) == ["bad_argument"] * len(REFUSED)


def test_sampling_is_checked_alike() -> None:
    names = {"maxTokens": "max_tokens", "topK": "top_k", "topP": "top_p", "temperature": "temperature", "seed": "seed"}
    expected: list[Any] = []
    for request in SAMPLING:
        try:
            params = sampling_params({names[name]: value for name, value in request.items()})
            sent = {name: getattr(params, snake) for name, snake in names.items() if name != "topK"}
            expected.append(sent)
        except BadArgument as error:
            expected.append(error.code)
    assert run_node(CHECK, SAMPLING) == expected


def test_misspelt_names_are_refused() -> None:
    assert run_node(CHECK, [{"max_tokens": 5}]) == ["bad_argument"]
