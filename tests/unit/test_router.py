"""The router alone: order of the sides, what each is handed, what is counted, and which error comes out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from pyapp.errors import BadArgument, CloudUnavailable, ContextFull, DeviceLost, NoDevice, OutOfMemory, TandemError
from pyapp.routing.cloud_side import CloudSide
from pyapp.routing.router import Begin, End, Mode, Note, Part, Piece, Router, Tally, Turn
from pyapp.routing.wire import Text, Usage
from pyapp.text.sampling import SamplingParams

TURN = Turn([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=10))


class Script:
    """A side that yields what it is told to, and raises what it is told to."""

    def __init__(self, *steps: Part | Exception) -> None:
        self.steps = steps
        self.calls: list[tuple[str, int]] = []
        self.closed = 0

    async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        self.calls.append((shown, left))
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.closed += 1


def router(mode: Mode, device: Script | TandemError, cloud: Script | None) -> Router:
    async def side() -> Script:
        if isinstance(device, TandemError):
            raise device
        return device

    return Router(mode, side, cloud)


async def run(made: Router, tally: Tally | None = None) -> list[tuple[str, Part]]:
    return [pair async for pair in made.stream(TURN, tally or Tally())]


@pytest.mark.parametrize(
    ("mode", "with_cloud", "order"),
    [
        ("prefer_on_device", True, ["device", "cloud"]),
        ("prefer_on_device", False, ["device"]),
        ("only_on_device", True, ["device"]),
        ("prefer_in_cloud", True, ["cloud", "device"]),
        ("prefer_in_cloud", False, ["device"]),
        ("only_in_cloud", True, ["cloud"]),
    ],
)
def test_order(mode: Mode, with_cloud: bool, order: list[str]) -> None:
    assert router(mode, Script(), Script() if with_cloud else None).order() == order


async def test_take_over_hands_on_the_text_shown_and_the_tokens_left() -> None:
    device = Script(Begin(7), Piece("a", 1), Piece("é", 2), OutOfMemory("full"))
    cloud = Script(Piece("b", 1), End("stop", 99, 1))
    tally = Tally()
    parts = await run(router("prefer_on_device", device, cloud), tally)
    assert cloud.calls == [("aé", 7)]
    assert [source for source, _ in parts] == ["device"] * 3 + ["cloud"] * 3
    note = parts[3][1]
    assert isinstance(note, Note)
    assert note.code == "out_of_memory"
    assert note.message == "full. The text goes on from the cloud."
    assert tally.tokens == {"device": 3, "cloud": 1}
    assert tally.prompt_tokens == 7, "the cloud read the text shown as well, so its count is not the prompt's"
    assert device.closed == cloud.closed == 1


async def test_side_that_fails_at_the_last_token_leaves_nothing_to_do() -> None:
    device = Script(Begin(7), Piece("x" * 10, 10), DeviceLost("gone"))
    cloud = Script()
    parts = await run(router("prefer_on_device", device, cloud))
    assert parts[-1] == ("cloud", End("length"))
    assert cloud.calls == []


async def test_better_count_of_the_end_replaces_the_sum_of_the_pieces() -> None:
    tally = Tally()
    await run(
        router("only_in_cloud", NoDevice("none"), Script(Piece("ab", 1), Piece("cd", 1), End("stop", 5, 4))), tally
    )
    assert tally.tokens == {"device": 0, "cloud": 4}
    assert tally.prompt_tokens == 5


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("prefer_on_device", BadArgument("no")),
        ("prefer_on_device", ContextFull("full")),
        ("prefer_in_cloud", ContextFull("full")),
    ],
)
async def test_fault_of_the_request_is_not_passed_on(mode: Mode, error: TandemError) -> None:
    device, cloud = Script(error), Script(error)
    with pytest.raises(type(error)):
        await run(router(mode, device, cloud))
    assert len(device.calls) + len(cloud.calls) == 1


async def test_what_a_gateway_takes_for_wrong_is_left_to_the_device() -> None:
    """The request was checked before it left: the gateway has caps of its own, of messages and bytes."""
    capped = Script(BadArgument("There are 257 messages; at most 256 are taken."))
    parts = await run(router("prefer_in_cloud", Script(Piece("a", 1), End("stop")), capped))
    assert [part.text for _, part in parts if isinstance(part, Piece)] == ["a"]
    with pytest.raises(BadArgument):
        await run(router("only_in_cloud", NoDevice("none"), capped))


async def test_stream_without_an_end_is_a_failure() -> None:
    parts = await run(router("prefer_on_device", Script(Piece("a", 1)), Script(Piece("b", 1), End("stop"))))
    assert [part.text for _, part in parts if isinstance(part, Piece)] == ["a", "b"]
    with pytest.raises(CloudUnavailable, match="before its end"):
        await run(router("only_in_cloud", NoDevice("none"), Script(Piece("b", 1))))


async def test_unforeseen_error_is_named_with_its_cause() -> None:
    made = router("only_on_device", Script(ValueError("odd")), None)
    with pytest.raises(DeviceLost, match=r"failed at work \(odd\)") as caught:
        await run(made)
    assert caught.value.details["cause"] == "ValueError: odd"


@pytest.mark.parametrize(
    ("mode", "calls"),
    [("only_on_device", "patient"), ("prefer_on_device", "quick cloud patient"), ("prefer_in_cloud", "cloud patient")],
)
async def test_only_who_is_the_last_to_answer_waits_for_the_device(mode: Mode, calls: str) -> None:
    order: list[str] = []

    class Noted(Script):
        async def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
            order.append(names[self])
            async for part in super().stream(turn, shown, left):
                yield part

    quick = Noted(Begin(3), Piece("a", 1), DeviceLost("gone"))
    cloud = Noted(Piece("b", 1), CloudUnavailable("down"))
    patient = Noted(Piece("c", 1), End("stop"))
    names = {quick: "quick", cloud: "cloud", patient: "patient"}
    made = router(mode, quick, cloud)
    made.patient_device = patient
    made.device_returns = lambda: True
    parts = await run(made)
    assert order == calls.split()
    shown = "".join(part.text for _, part in parts if isinstance(part, Piece))
    assert shown == {"only_on_device": "c", "prefer_on_device": "abc", "prefer_in_cloud": "bc"}[mode]
    assert patient.calls == [(shown[:-1], 10 - len(shown[:-1]))]


async def test_device_that_does_not_come_back_is_not_waited_for() -> None:
    made = router("prefer_on_device", Script(DeviceLost("gone")), Script(CloudUnavailable("down")))
    made.patient_device = patient = Script(End("stop"))
    with pytest.raises(CloudUnavailable, match=r"down\. This device cannot answer either: gone"):
        await run(made)
    assert patient.calls == []


async def test_last_word_of_a_device_that_was_waited_for_is_its_newest() -> None:
    made = router("prefer_on_device", Script(DeviceLost("gone")), Script(CloudUnavailable("down")))
    made.patient_device = Script(DeviceLost("gone for good"))
    made.device_returns = lambda: True
    with pytest.raises(CloudUnavailable, match=r"down\. This device cannot answer either: gone for good"):
        await run(made)


def test_device_with_little_room_comes_second() -> None:
    made = router("prefer_on_device", Script(), Script())
    made.cloud_first = lambda: True
    assert made.order() == ["cloud", "device"]
    made.cloud = None
    assert made.order() == ["device"]
    made.mode = "only_on_device"
    assert made.order() == ["device"]


@pytest.mark.parametrize("mode", ["prefer_on_device", "prefer_in_cloud"])
async def test_two_failures_come_out_as_the_cloud_s_with_the_device_s_reason(mode: Mode) -> None:
    made = router(mode, NoDevice("No GPU here."), Script(CloudUnavailable("The gateway is down.", kind="network")))
    with pytest.raises(CloudUnavailable) as caught:
        await run(made)
    assert caught.value.message == "The gateway is down. This device cannot answer either: No GPU here."
    assert caught.value.details["kind"] == "network"
    assert caught.value.details["device"]["code"] == "no_device"


class FakeStream:
    """``CloudStream`` without a network."""

    def __init__(self, *received: Any) -> None:
        self.received = received
        self.requests: list[Any] = []

    async def stream(self, request: Any) -> AsyncGenerator[Any]:
        self.requests.append(request)
        for event in self.received:
            yield event


@pytest.mark.parametrize(
    ("received", "end"),
    [
        ([Text("a"), Text("b"), Usage(5, 2, "stop")], End("stop", 5, 2)),
        ([Text("a"), Usage(5, 9, "length")], End("length", 5, 9)),
        ([Text("a"), Usage(5, 4)], End("length", 5, 4)),  # all that was allowed, so it stopped for length
        ([Text("a"), Usage(5, 3)], End("stop", 5, 3)),
        ([Text("a"), Text("b")], End("stop", None, 2)),
    ],
)
async def test_cloud_side_ends_as_the_gateway_says(received: list[Any], end: End) -> None:
    side = CloudSide(FakeStream(*received))  # type: ignore[arg-type]
    parts = [part async for part in side.stream(TURN, "", 4)]
    assert parts[-1] == end
    assert all(isinstance(part, Piece) and part.tokens == 1 for part in parts[:-1])


async def test_cloud_side_sends_the_wire_s_fields_and_the_text_shown() -> None:
    fake = FakeStream(Usage(1, 1, "stop"))
    turn = Turn(TURN.messages, SamplingParams(max_tokens=10, temperature=0.5, top_k=4, top_p=0.9, seed=3))
    _ = [part async for part in CloudSide(fake).stream(turn, "so far", 6)]  # type: ignore[arg-type]
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "so far"}]
    expected = {"messages": messages, "max_tokens": 6, "temperature": 0.5, "top_p": 0.9, "seed": 3}
    assert fake.requests == [expected]
    assert len(TURN.messages) == 1, "the caller's own list stays as it was"
