"""Request fields and operator settings at their edges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyapp.errors import BadArgument
from pyapp.gateway.settings import Settings
from pyapp.gateway.validation import parse_request

SETTINGS = Settings(embedded="off", max_tokens=100, max_messages=3)
USER = {"role": "user", "content": "Hello"}


def parse(**fields: Any) -> Any:
    return parse_request(json.dumps({"prompt": "Hello", **fields}).encode(), SETTINGS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [USER]}, "either messages or prompt"),
        ({"prompt": None}, "either messages or prompt"),
        ({"prompt": " \n"}, "prompt must be a text"),
        ({"prompt": 5}, "prompt must be a text"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1"),
        ({"max_tokens": -1}, "max_tokens must be a whole number from 1"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"max_tokens": "9"}, "max_tokens must be a whole number"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 2**53}, "seed must be a whole number from 0"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"temperature": False}, "temperature must be a number"),
        ({"temperature": 2.01}, "temperature is 2.01"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": 10**400}, "temperature must be a finite number"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
    ],
)
def test_refused_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        parse(**fields)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ({}, "must be a list"),
        ("Hello", "must be a list"),
        ([USER] * 4, "There are 4 messages; at most 3"),
        ([USER, "x"], r"messages\[1\] must be an object"),
        ([{"role": "tool", "content": "x"}], r"messages\[0\]\.role must be one of system, user, assistant"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\]\.role"),
        ([{"role": "user"}], r"messages\[0\]\.content must be a text"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], r"messages\[0\]\.content must be a text"),
        ([{"role": "system", "content": "x"}, {"role": "user", "content": " "}], "no text to answer"),
    ],
)
def test_refused_messages(messages: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        parse(prompt=None, messages=messages)


def test_edges_that_pass() -> None:
    assert parse().max_tokens == 100  # the default of 256, lowered to the operator's cap
    assert parse(max_tokens=2**31 - 1).max_tokens == 100
    assert parse(max_tokens=1.0).max_tokens == 1
    request = parse(temperature=2, top_p=1, seed=2**53 - 1)
    assert (request.temperature, request.top_p, request.seed) == (2.0, 1.0, 2**53 - 1)
    assert parse(max_tokens=None, seed=None, temperature=None, top_p=None) == parse()


def test_names_and_other_keys_of_messages_are_dropped() -> None:
    assert parse(prompt=None, messages=[{**USER, "name": "x"}]).messages == (USER,)


def test_the_prompt_is_not_in_the_repr() -> None:
    assert "Hello" not in repr(parse())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("https://h/", "https://h/v1/chat/completions"),
        ("https://h/v1", "https://h/v1/chat/completions"),
        ("https://h/openai/v2/", "https://h/openai/v2/chat/completions"),
        ("https://h/x/chat/completions", "https://h/x/chat/completions"),
    ],
)
def test_forms_of_the_upstream_url(given: str, expected: str) -> None:
    assert Settings(upstream_url=given).completions_url == expected


def test_settings_from_the_environment() -> None:
    environ = {
        "TANDEM_UPSTREAM_URL": "http://h",
        "TANDEM_UPSTREAM_KEY": "s3cret",
        "TANDEM_UPSTREAM_MODEL": "",
        "TANDEM_MAX_TOKENS": "77",
        "TANDEM_IDLE_SECONDS": "1.5",
        "XDG_CACHE_HOME": "/c",
    }
    settings = Settings.from_env(environ)
    assert (settings.upstream_key, settings.upstream_model) == ("s3cret", None)
    assert (settings.max_tokens, settings.idle_seconds) == (77, 1.5)
    assert settings.model_path == Path("/c/tandem/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert "s3cret" not in repr(settings)
    assert Settings.from_env({"TANDEM_MODEL_PATH": "/m.gguf"}).model_path == Path("/m.gguf")
    assert Settings.from_env({"HOME": "/h"}).model_path == Path(
        "/h/.cache/tandem/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TANDEM_UPSTREAM_KEY": "k"}, "TANDEM_UPSTREAM_URL is not"),
        ({"TANDEM_UPSTREAM_MODEL": "m"}, "TANDEM_UPSTREAM_URL is not"),
        ({"TANDEM_UPSTREAM_URL": "h:80"}, "must start with http"),
        ({"TANDEM_EMBEDDED": "maybe"}, "give startup, first_request or off"),
        ({"TANDEM_MAX_TOKENS": "many"}, "TANDEM_MAX_TOKENS is 'many'; give a number"),
        ({"TANDEM_MAX_TOKENS": "0"}, "TANDEM_MAX_TOKENS is 0; give a number above 0"),
        ({"TANDEM_IDLE_SECONDS": "nan"}, "TANDEM_IDLE_SECONDS is nan"),
    ],
)
def test_settings_that_make_no_sense(environ: dict[str, str], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        Settings.from_env(environ)
