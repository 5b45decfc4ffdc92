"""The cloud taking over in mid-sentence, whatever it makes of being asked to go on: text and tokens counted once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyapp.errors import CloudUnavailable, DeviceLost
from pyapp.routing.cloud import CloudStream
from pyapp.routing.cloud_side import CloudSide
from pyapp.routing.router import Begin, End, Part, Piece, Router, Tally, Turn
from pyapp.routing.wire import CloudEvent, Text, Usage
from pyapp.text.sampling import SamplingParams

SHOWN = "This handmade cup is of red ce"
REST = "ramic and holds tea."


@dataclass
class Gateway(CloudStream):
    """Sends ``events``, then breaks with ``error``."""

    events: list[CloudEvent]
    error: CloudUnavailable | None = None
    requests: list[Mapping[str, Any]] = field(default_factory=list)

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[CloudEvent, None]:
        self.requests.append(request)
        for event in self.events:
            yield event
        if self.error is not None:
            raise self.error


class LostDevice:
    """Shows ``SHOWN``, ten tokens, and is gone."""

    async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        yield Begin(5)
        yield Piece(SHOWN, 10)
        raise DeviceLost("gone")


@dataclass
class NextDevice:
    """Goes on with ``REST``."""

    asked: list[tuple[str, int]] = field(default_factory=list)

    async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        self.asked.append((shown, left))
        yield Piece((SHOWN + REST)[len(shown) :], 3)
        yield End("stop")


async def run(gateway: Gateway, back: NextDevice | None = None) -> tuple[str, Tally]:
    async def device() -> Any:
        return LostDevice()

    router = Router("prefer_on_device", device, CloudSide(gateway), back, device_returns=lambda: back is not None)
    tally = Tally()
    turn = Turn([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=100))
    parts = [part async for _, part in router.stream(turn, tally)]
    assert isinstance(parts[-1], End)
    return "".join(part.text for part in parts if isinstance(part, Piece)), tally


def pieces(text: str, size: int = 4) -> list[CloudEvent]:
    return [Text(text[at : at + size]) for at in range(0, len(text), size)]


@pytest.mark.parametrize("sent", [REST, SHOWN + REST, "of red ce" + REST, "cup is of red ce" + REST])
async def test_the_text_is_whole_and_its_tokens_count_once(sent: str) -> None:
    # A token of four characters, of which the gateway counts those of all that it sent.
    gateway = Gateway([*pieces(sent), Usage(7, len(sent) // 4, "stop")])
    text, tally = await run(gateway)
    assert text == SHOWN + REST
    assert tally.tokens["device"] == 10
    assert abs(tally.tokens["cloud"] - len(REST) // 4) <= 1
    assert gateway.requests[0]["messages"][-1] == {"role": "assistant", "content": SHOWN}
    assert gateway.requests[0]["max_tokens"] == 90


@pytest.mark.parametrize(("reason", "whole"), [("stop", True), ("length", True), (None, False)])
async def test_a_stream_cut_behind_its_figures_is_whole(reason: str | None, whole: bool) -> None:
    gateway = Gateway([*pieces(REST), Usage(7, 5, reason)], CloudUnavailable("cut"))
    back = NextDevice()
    text, tally = await run(gateway, back)
    assert text == SHOWN + REST
    assert tally.tokens["cloud"] == 5
    assert bool(back.asked) is not whole


async def test_without_a_count_the_pieces_count_those_of_the_text_shown() -> None:
    text, tally = await run(Gateway(pieces(SHOWN + REST, 1)))
    assert text == SHOWN + REST
    assert tally.tokens["cloud"] == len(REST)


@pytest.mark.parametrize("reason", [None, "length"])
async def test_a_cloud_that_spent_all_its_tokens_on_repeating_has_reached_the_length(reason: str | None) -> None:
    router_parts: list[Part] = []
    gateway = Gateway([*pieces(SHOWN[:24]), Usage(7, 90, reason)])
    turn = Turn([], SamplingParams(max_tokens=100))
    async for part in CloudSide(gateway).stream(turn, SHOWN, 90):
        router_parts.append(part)  # noqa: PERF401 - it is the stream that is looked at
    assert router_parts == [End("length", 7, 0)]


@pytest.mark.parametrize("size", range(1, 30))
async def test_whoever_goes_on_after_a_cloud_that_broke_misses_nothing(size: int) -> None:
    """Wherever the repeating cloud breaks: what the joiner held back was not shown, and so not counted."""
    sent = (SHOWN + REST)[: size * 2]
    back = NextDevice()
    text, tally = await run(Gateway(pieces(sent, 2), CloudUnavailable("cut")), back)
    assert text == SHOWN + REST
    new = max(0, len(sent) - len(SHOWN))
    assert back.asked == [((SHOWN + REST)[: len(SHOWN) + new], 100 - 10 - (new + 1) // 2)]
    assert tally.tokens["cloud"] == (new + 1) // 2
