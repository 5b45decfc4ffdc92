"""The messages between ``tandem.js`` and Python, with fakes behind the client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pyapp.worker import Door
from tests.unit.door_fakes import World


class Page:
    """The other end: sends messages, keeps what comes back."""

    def __init__(self, world: World) -> None:
        self.got: list[dict[str, Any]] = []
        self.attachments: dict[int, Any] = {}
        self.door = Door(self._post, attach=lambda array: array, services=world.services())
        self._id = 0

    def _post(self, line: str, attachment: Any = None) -> None:
        message = json.loads(line)
        self.got.append(message)
        if attachment is not None:
            self.attachments[message["re"]] = attachment

    def send(self, op: str, attachment: Any = None, **fields: Any) -> int:
        self._id += 1
        self.door.receive(json.dumps({"op": op, "id": self._id, **fields}), attachment)
        return self._id

    async def answer(self, ident: int) -> dict[str, Any]:
        async with asyncio.timeout(2):
            while True:
                for message in self.got:
                    if message.get("re") == ident and "event" not in message:
                        return message
                await asyncio.sleep(0)

    def events(self, ident: int) -> list[Any]:
        return [message["event"] for message in self.got if message.get("re") == ident and "event" in message]

    async def open(self, **options: Any) -> dict[str, Any]:
        return await self.answer(self.send("open", options=options, base="/"))


async def test_open_answers_with_the_status_and_reports_progress() -> None:
    page = Page(World())
    answer = await page.open(poolMiB=64)
    assert answer["value"]["source"] == "device"
    assert {"progress": {"stage": "weights", "loaded": 5, "total": 10}} in page.got


async def test_each_text_is_told_once_as_a_record() -> None:
    page = Page(World())
    await page.open()
    await page.answer(page.send("generate", request={"prompt": "Hi"}))
    assert [message["telemetry"]["outcome"] for message in page.got if "telemetry" in message] == ["stop"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"poolMiB": 0}, "poolMiB must be"),
        ({"pool_mib": 5}, "does not know pool_mib"),
        ({"model": "x"}, "model must be"),
    ],
)
async def test_open_refuses_in_the_names_of_javascript(options: dict[str, Any], says: str) -> None:
    answer = await Page(World()).open(**options)
    assert answer["error"]["code"] == "bad_argument"
    assert says in answer["error"]["message"]


async def test_generate_streams_and_ends() -> None:
    page = Page(World())
    await page.open()
    ident = page.send("generate", request={"prompt": "Hi", "maxTokens": 3})
    assert (await page.answer(ident))["end"] is True
    assert [event["type"] for event in page.events(ident)] == ["text", "text", "text", "usage", "done"]
    assert page.got[-2].get("status") or page.got[-1].get("end")
    assert any("status" in message for message in page.got)


async def test_generate_refuses_in_the_names_of_javascript() -> None:
    page = Page(World())
    await page.open()
    refused: list[tuple[dict[str, Any], str]] = [
        ({"maxTokens": "NaN"}, "maxTokens is 'NaN'"),
        ({"max_tokens": 5}, "does not know max_tokens"),
    ]
    for request, says in refused:
        answer = await page.answer(page.send("generate", request={"prompt": "Hi", **request}))
        assert answer["error"]["code"] == "bad_argument"
        assert says in answer["error"]["message"]


async def test_cancel_ends_as_an_abort() -> None:
    world = World()
    world.engine.hold_at = 2
    page = Page(world)
    await page.open()
    ident = page.send("generate", request={"prompt": "Hi"})
    async with asyncio.timeout(2):
        while len(page.events(ident)) < 2:  # noqa: ASYNC110 - the other end is a plain callback
            await asyncio.sleep(0)
    page.door.receive(json.dumps({"op": "cancel", "id": ident}))
    assert (await page.answer(ident))["end"] is True
    assert page.events(ident)[-1] == {"type": "done", "reason": "abort", "source": "device"}
    page.door.receive(json.dumps({"op": "cancel", "id": ident}))  # too late: harmless


async def test_a_call_that_is_aborted_already_is_checked_and_ends_without_a_side() -> None:
    page = Page(World())
    await page.open()
    wrong = await page.answer(page.send("generate", request={"prompt": "Hi", "topP": 2}, aborted=True))
    assert wrong["error"]["code"] == "bad_argument"
    ident = page.send("generate", request={"prompt": "Hi"}, aborted=True)
    assert (await page.answer(ident))["end"] is True
    assert page.events(ident)[-1] == {"type": "done", "reason": "abort", "source": None}


async def test_arrays_travel_as_attachments() -> None:
    page = Page(World())
    await page.open()
    ident = page.send("call", method="logits", args={"ids": [1]})
    assert (await page.answer(ident))["value"] is None
    assert page.attachments[ident].dtype == "float32"
    ident = page.send("call", method="vision", args={}, attachment=bytes(224 * 224 * 3))
    assert "error" not in await page.answer(ident)
    assert page.attachments[ident].shape == (10,)


async def test_every_call_of_the_door_is_served() -> None:
    page = Page(World())
    await page.open()
    message = [{"role": "user", "content": "x"}]
    calls: dict[str, tuple[dict[str, Any], Any]] = {
        "tokenize": ({"text": "Hi", "special": True}, [72, 105]),
        "detokenize": ({"ids": [72, 105]}, "Hi"),
        "render": ({"messages": message, "generationPrompt": False}, "[user]x"),
        "greedy": ({"ids": [1], "n": 2}, [0, 1]),
        "plan": ({"which": "vision"}, {"rows": [], "activations": {"peak": 0, "sum": 0}, "dispatchesPerLayer": 5}),
    }
    for method, (args, expected) in calls.items():
        assert (await page.answer(page.send("call", method=method, args=args)))["value"] == expected
    found = await page.answer(page.send("call", method="describe", args={}, attachment=b"png"))
    assert len(found["value"]["labels"]) == 5
    assert (await page.answer(page.send("call", method="dance", args={})))["error"]["code"] == "bad_argument"


async def test_fault_of_our_own_is_told_and_the_door_stays_open() -> None:
    world = World()
    page = Page(world)
    await page.open()

    def fault(image: Any) -> Any:
        raise ZeroDivisionError("oops")

    world.picture = fault
    answer = await page.answer(page.send("call", method="describe", args={}, attachment=b"png"))
    assert "ZeroDivisionError: oops" in answer["error"]["message"]
    assert answer["error"]["code"] == "device_lost", "the caller's arguments were right"
    assert (await page.answer(page.send("call", method="tokenize", args={"text": "a"})))["value"] == [97]


async def test_close_answers_and_later_calls_are_closed() -> None:
    page = Page(World())
    await page.open()
    assert (await page.answer(page.send("close")))["value"] is None
    assert (await page.answer(page.send("call", method="memory", args={})))["error"]["code"] == "closed"
    assert (await page.answer(page.send("generate", request={"prompt": "x"})))["error"]["code"] == "closed"


async def test_calls_before_a_client_is_open_are_closed() -> None:
    page = Page(World())
    assert (await page.answer(page.send("generate", request={"prompt": "x"})))["error"]["code"] == "closed"


async def test_progress_is_thinned_but_its_end_always_told() -> None:
    page = Page(World())
    for loaded in range(101):
        page.door._progress({"stage": "weights", "loaded": loaded, "total": 100})
    told = [message["progress"]["loaded"] for message in page.got]
    assert told[0] == 0
    assert told[-1] == 100
    assert len(told) < 20
