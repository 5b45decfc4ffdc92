"""What each kind of upstream is asked when a text that the device began has to be gone on with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyapp.errors import BadArgument
from pyapp.gateway.settings import Settings
from tests.unit.gateway_world import PATH, WHOLE, chunks, events_of, world

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Describe the mug."}]
SHOWN = {"role": "assistant", "content": "A mug made of "}
VLLM = {"add_generation_prompt", "continue_final_message"}


async def sent(messages: list[dict[str, str]], **settings: Any) -> dict[str, Any]:
    async with world(chunks(WHOLE), **settings) as it:
        events_of(await it.client.post(PATH, content=json.dumps({"messages": messages})))
    body: dict[str, Any] = it.upstream.exchanges[0].json
    return body


@pytest.mark.parametrize("settings", [{}, {"upstream_continuation": "trailing"}], ids=["by default", "trailing"])
async def test_a_trailing_assistant_message_goes_as_it_is(settings: dict[str, str]) -> None:
    body = await sent([*ASKED, SHOWN], **settings)
    assert body["messages"] == [*ASKED, SHOWN]
    assert not VLLM & set(body)


async def test_vllm_is_told_to_leave_the_message_open() -> None:
    body = await sent([*ASKED, SHOWN], upstream_continuation="continue_final_message")
    assert body["messages"] == [*ASKED, SHOWN]  # the blank at the end included
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False


async def test_others_are_asked_in_words() -> None:
    body = await sent([*ASKED, SHOWN], upstream_continuation="instruction")
    assert body["messages"][:-1] == [*ASKED, SHOWN]
    assert body["messages"][-1]["role"] == "user"
    assert "from exactly where it stops" in body["messages"][-1]["content"]
    assert not VLLM & set(body)


@pytest.mark.parametrize("kind", ["trailing", "continue_final_message", "instruction"])
async def test_a_plain_turn_is_the_same_for_all(kind: str) -> None:
    """vLLM refuses to go on with a user's message."""
    body = await sent([ASKED[1], SHOWN, ASKED[1]], upstream_continuation=kind)
    assert body["messages"] == [ASKED[1], SHOWN, ASKED[1]]
    assert not VLLM & set(body)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BadArgument, match="'prefix'; give one of trailing, continue_final_message, instruction"):
        Settings.from_env({"TANDEM_UPSTREAM_URL": "http://h", "TANDEM_UPSTREAM_CONTINUATION": "prefix"})
