"""Telemetry of the client: one record a text, what it holds, when it is told, and that it never gets in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pyapp import errors
from pyapp.client import Client
from pyapp.door import telemetry
from pyapp.door.flight import StillLoading
from pyapp.door.pressure import CODE as PRESSURE
from pyapp.errors import BadArgument, CloudUnavailable, ContextFull, DeviceLost, NoDevice, OutOfMemory, TandemError
from pyapp.routing.access_token import Shop
from pyapp.routing.breaker import KINDS
from pyapp.routing.router import Begin, End, Mode, Note, Piece, Tally
from pyapp.routing.telemetry import ERRORS, MODES, REASONS, Record
from tests.unit.door_fakes import FakeCloud, FakeEngine, World

SECRET = "an unspeakable teapot"


class Wire:
    """What would go out: the texts posted, by address."""

    def __init__(self, failing: bool = False) -> None:
        self.posted: list[tuple[str, Any]] = []
        self.failing = failing
        self.hold = asyncio.Event()
        self.hold.set()

    def reporter(self, url: str, shop: Shop | None) -> WireReporter:
        return WireReporter(self, url)


@dataclass
class WireReporter:
    wire: Wire
    url: str

    async def post(self, text: str) -> None:
        self.wire.posted.append((self.url, json.loads(text)))
        await self.wire.hold.wait()
        if self.wire.failing:
            raise CloudUnavailable("no")

    def close(self) -> None: ...


async def opened(world: World, wire: Wire | None = None, **options: Any) -> tuple[Client, list[Record]]:
    services = replace(world.services(), base="https://shop.example/")
    if wire is not None:
        services = replace(services, reporter=wire.reporter)
    client = await Client.create(services=services, **options)
    records: list[Record] = []
    client.on_telemetry = records.append
    return client, records


async def write(client: Client, **request: Any) -> str:
    events = [event async for event in client.generate(**({"prompt": SECRET} | request))]
    return "".join(event["text"] for event in events if event["type"] == "text")


async def test_record_of_a_text_by_the_device() -> None:
    world = World()
    client, records = await opened(world)
    assert await write(client) == "Hello"
    assert records == [
        {
            "mode": "prefer_on_device",
            "tier": "high",
            "outcome": "stop",
            "sides": ["device"],
            "device_tokens": 5,
            "cloud_tokens": 0,
            "prompt_tokens": len(world.engine.prompts[0]),
            "fallbacks": [],
            "first_ms": 0.0,
            "total_ms": 0.0,
        }
    ]


async def test_record_is_told_at_the_end_only() -> None:
    client, records = await opened(World())
    async for event in client.generate(prompt="Hi"):
        if event["type"] == "text":
            assert records == []
    assert len(records) == 1


async def test_takeover_in_mid_text_is_named_and_timed() -> None:
    world = World()
    world.engine.fail_at, world.engine.error = 2, DeviceLost("gone")
    client, records = await opened(world)
    assert await write(client) == "Hello"
    (record,) = records
    assert record["sides"] == ["device", "cloud"]
    assert (record["device_tokens"], record["cloud_tokens"], record["outcome"]) == (2, 1, "stop")
    assert record["fallbacks"] == [
        {"reason": "device_lost", "from": "device", "to": "cloud", "takeover_ms": 0.0, "mid_text": True}
    ]


async def test_without_a_device_the_cloud_follows_before_any_text() -> None:
    client, records = await opened(World(tier="unsupported"))
    await write(client)
    (record,) = records
    assert (record["tier"], record["sides"]) == ("unsupported", ["cloud"])
    (fallback,) = record["fallbacks"]
    assert (fallback["reason"], fallback["mid_text"]) == ("no_device", False)


async def test_times_by_the_clock_of_the_services() -> None:
    """The whole course by hand: each step takes the seconds that are written beside it."""
    now = 0.0
    tally = Tally(source="device")
    watch = telemetry.TextWatch(tally, lambda: now)
    steps: list[tuple[float, Any, Any]] = [
        (0.5, "device", Begin(7)),
        (0.25, "device", Piece("", 1)),
        (0.25, "device", Piece("a", 1)),
        (1.0, "cloud", Note("device_lost", "gone")),
        (0.0, "source", "cloud"),
        (0.125, "cloud", Piece("b", 1)),
        (0.125, "cloud", Piece("c", 1)),
        (1.0, "cloud", End("length", 9, 2)),
    ]
    for seconds, source, part in steps:
        now += seconds
        if source == "source":
            tally.source = part
            continue
        if not isinstance(part, Note):
            tally.take(part, source)
        watch.heard(source, part)
    record = watch.record("prefer_on_device", "low")
    assert (record["first_ms"], record["total_ms"]) == (1000.0, 3250.0)
    assert record["fallbacks"][0]["takeover_ms"] == 125.0
    assert (record["device_tokens"], record["cloud_tokens"], record["prompt_tokens"]) == (2, 2, 7)


async def test_a_note_of_the_side_that_runs_is_no_fallback() -> None:
    client, records = await opened(World(engine=FakeEngine("Hello", context=48)))
    await write(client, prompt="Hi")
    assert records[0]["fallbacks"] == []


async def test_pressure_counts_as_a_fallback() -> None:
    world = World(memory_gib=2.0)
    client, records = await opened(world, context_pressure=1)
    await write(client)
    assert [(item["reason"], item["from"], item["to"]) for item in records[0]["fallbacks"]] == [
        ("pressure", "device", "cloud")
    ]


@pytest.mark.parametrize(
    ("world", "options", "code", "sides"),
    [
        (World(engine=FakeEngine(context=4)), {"mode": "only_on_device"}, "context_full", []),
        (World(cloud=FakeCloud(error=CloudUnavailable("no"))), {"mode": "only_in_cloud"}, "cloud_unavailable", []),
        (
            World(cloud=FakeCloud(error=CloudUnavailable("no"), fail_after=1)),
            {"mode": "only_in_cloud"},
            "cloud_unavailable",
            ["cloud"],
        ),
    ],
)
async def test_outcome_of_a_text_that_failed_is_the_errors_code(
    world: World, options: dict[str, Any], code: str, sides: list[str]
) -> None:
    client, records = await opened(world, **options)
    with pytest.raises(TandemError):
        await write(client)
    assert [(record["outcome"], record["sides"]) for record in records] == [(code, sides)]
    assert records[0]["first_ms"] == (0.0 if sides else None)


async def test_both_sides_down() -> None:
    world = World(cloud=FakeCloud(error=CloudUnavailable("no")))
    world.engine.fail_at, world.engine.error = 1, DeviceLost("gone", cause="RuntimeError: a fault of our own")
    client, records = await opened(world)
    with pytest.raises(CloudUnavailable):
        await write(client)
    (record,) = records
    assert record["outcome"] == "cloud_unavailable"
    assert record["fallbacks"][0]["takeover_ms"] is None


async def test_aborts() -> None:
    world = World()
    world.engine.hold_at = 2
    client, records = await opened(world)
    signal = asyncio.Event()
    async for event in client.generate(prompt="Hi", signal=signal):
        if event["type"] == "text":
            signal.set()
    async for event in client.generate(prompt="Hi"):
        if event["type"] == "text":
            break
    for _ in range(20):
        await asyncio.sleep(0)
    assert [(record["outcome"], record["sides"]) for record in records] == [("abort", ["device"])] * 2


async def test_a_text_that_waits_its_turn_has_a_record_when_it_is_aborted_there() -> None:
    world = World()
    world.engine.hold_at = 0
    client, records = await opened(world)
    first, second = client.generate(prompt="a"), client.generate(prompt="b")
    running = asyncio.ensure_future(anext(first))
    await asyncio.sleep(0.01)
    assert (await anext(second))["type"] == "status"
    await second.aclose()
    assert [(record["outcome"], record["first_ms"]) for record in records] == [("abort", None)]
    await first.aclose()
    running.cancel()


async def test_close_ends_texts_as_closed_and_sends_what_waits() -> None:
    world, wire = World(), Wire()
    world.engine.hold_at = 1
    client, records = await opened(world, wire, telemetry="report")
    generation = client.generate(prompt=SECRET)
    assert (await anext(generation))["type"] == "text"
    await client.close()
    assert [record["outcome"] for record in records] == ["closed"]
    assert wire.posted == [("https://shop.example/report", {"records": records})]


async def test_refused_requests_are_no_texts() -> None:
    client, records = await opened(World())
    with pytest.raises(BadArgument):
        await write(client, max_tokens=-1)
    assert records == []


async def test_a_callback_that_fails_harms_no_text() -> None:
    client, _ = await opened(World())

    def fail(record: Record) -> None:
        raise RuntimeError("mine")

    client.on_telemetry = fail
    assert await write(client) == "Hello"


@pytest.mark.parametrize("options", [{}, {"mode": "only_in_cloud"}, {"mode": "only_on_device"}])
async def test_nothing_is_sent_unless_it_is_configured(options: dict[str, Any]) -> None:
    wire = Wire()
    client, records = await opened(World(), wire, **options)
    await write(client)
    await client.close()
    assert len(records) == 1
    assert wire.posted == []


async def test_only_on_device_refuses_an_address_for_telemetry_before_anything_is_fetched() -> None:
    world, wire = World(), Wire()
    with pytest.raises(BadArgument, match="telemetry must be null when mode is only_on_device"):
        await opened(world, wire, mode="only_on_device", telemetry="/api/ai/telemetry")
    assert world.asked == []
    assert wire.posted == []


async def test_records_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BATCH", 3)
    wire = Wire()
    client, records = await opened(World(), wire, telemetry="/api/ai/telemetry")
    for _ in range(4):
        await write(client)
    await asyncio.sleep(0)
    assert [len(sent["records"]) for _, sent in wire.posted] == [3]
    await client.close()
    assert [len(sent["records"]) for _, sent in wire.posted] == [3, 1]
    assert [record for _, sent in wire.posted for record in sent["records"]] == records
    assert SECRET not in json.dumps(wire.posted)
    assert "Hello" not in json.dumps(wire.posted)


async def test_a_record_alone_is_sent_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BATCH_SECONDS", 0.02)
    wire = Wire()
    client, _ = await opened(World(), wire, telemetry="/t")
    await write(client)
    assert wire.posted == []
    async with asyncio.timeout(2):
        while not wire.posted:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("change", [lambda wire: setattr(wire, "failing", True), lambda wire: wire.hold.clear()])
async def test_an_address_that_fails_or_hangs_delays_nothing(
    change: Callable[[Wire], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "BATCH", 1)
    monkeypatch.setattr(telemetry, "CLOSE_SECONDS", 0.02)
    wire = Wire()
    change(wire)
    client, _ = await opened(World(), wire, telemetry="/t")
    async with asyncio.timeout(2):
        assert [await write(client) for _ in range(3)] == ["Hello"] * 3
        await client.close()
    assert len(wire.posted) == 3
    wire.hold.set()


def test_the_words_of_records_are_those_of_the_errors_and_modes() -> None:
    found = {cls.code for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TandemError)}
    assert found == set(ERRORS)
    assert Mode.__args__ == MODES  # type: ignore[attr-defined]


def test_the_reasons_of_fallbacks_are_errors_kinds_of_failure_and_the_codes_of_notes() -> None:
    """The gateway counts any other as "other"; these words are what its operator's queries are made of."""
    expected = (
        *("no_device", "device_lost", "out_of_memory", "bad_weights", "bad_model", "bad_image", "context_full"),
        *("cloud_unavailable", "busy", "closed", "bad_argument"),
        *("stall", "wrong_result", "loading", "pressure"),
    )
    assert expected == REASONS
    assert set(REASONS) == {*ERRORS, *KINDS, StillLoading.code, PRESSURE}


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (DeviceLost("It hangs.", kind="stall"), "device_lost", "stall"),
        (DeviceLost("Rubbish.", kind="wrong_result"), "device_lost", "wrong_result"),
        (OutOfMemory("Full.", kind="out_of_memory"), "out_of_memory", "out_of_memory"),
        (DeviceLost("Gone.", kind="something else"), "device_lost", "device_lost"),
    ],
)
async def test_kinds_of_failure_count_apart_and_the_page_hears_the_code(
    error: TandemError, code: str, reason: str
) -> None:
    world = World()
    world.engine.fail_at, world.engine.error = 2, error
    client, records = await opened(world)
    events = [event async for event in client.generate(prompt="Hi")]
    assert [event["code"] for event in events if event["type"] == "status"] == [code]
    assert [item["reason"] for item in records[0]["fallbacks"]] == [reason]


async def test_a_kind_of_the_clouds_failures_is_no_reason_of_its_own() -> None:
    """There are many, and each would be a series of the gateway's metrics."""
    world = World(cloud=FakeCloud(error=CloudUnavailable("no", kind="network")))
    client, records = await opened(world, mode="prefer_in_cloud")
    await write(client)
    assert [item["reason"] for item in records[0]["fallbacks"]] == ["cloud_unavailable"]


async def test_texts_before_the_models_are_there_count_as_loading() -> None:
    world = World()
    world.arrival.clear()
    client, records = await opened(world)
    await write(client)
    assert [item["reason"] for item in records[0]["fallbacks"]] == ["loading"]
    world.arrival.set()
    await client.close()


def test_an_error_that_nobody_foresaw_is_internal() -> None:
    watch = telemetry.TextWatch(Tally(), lambda: 0.0)
    watch.failed(RuntimeError("boom"))
    assert watch.record("only_in_cloud", None)["outcome"] == "internal"


def test_an_end_that_was_heard_stays_the_outcome() -> None:
    watch = telemetry.TextWatch(Tally(), lambda: 0.0)
    watch.heard("device", End("stop"))
    watch.failed(GeneratorExit())
    assert watch.record("only_in_cloud", None)["outcome"] == "stop"


@pytest.mark.parametrize("error", [ContextFull("x"), NoDevice("x"), DeviceLost("x")])
def test_errors_end_in_their_code(error: TandemError) -> None:
    watch = telemetry.TextWatch(Tally(), lambda: 0.0)
    watch.failed(error)
    assert watch.record("only_in_cloud", None)["outcome"] == error.code
