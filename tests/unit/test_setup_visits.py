"""The scripted visits without a browser: what is dealt, what the servers answer, how visits are judged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyapp.setup.visits import report
from pyapp.setup.visits.faults import CLOUD, DEVICE, ENDLESS, NONE, Visit, deal
from pyapp.setup.visits.judge import Outcome, Server, Truth, judged
from pyapp.setup.visits.upstream import Upstream, continued, pieces
from pyapp.setup.visits.world import Exchange, World
from tests.unit.gateway_fakes import serve_app

TEXT = "A red cup of clay."
TRUTH = Truth(TEXT, 6)
FAULTS = {fault.name: fault for fault in (*DEVICE, *CLOUD)}


def visit(device: str = "none", cloud: str = "none", mode: Any = "prefer_on_device", style: str = "exact") -> Visit:
    return Visit(0, mode, FAULTS[device], 1, FAULTS[cloud], 1, style, fresh=False)


# -- dealing -----------------------------------------------------------------------------------------------------------


def test_a_deal_is_known_by_its_seed_and_has_every_fault() -> None:
    visits = deal(500, 7)
    assert visits == deal(500, 7) != deal(500, 8)
    assert [each.number for each in visits] == list(range(500))
    met = Counter(each.device.name for each in visits) + Counter(each.cloud.name for each in visits)
    assert set(met) == {fault.name for fault in (*DEVICE, *CLOUD)}
    assert {each.mode for each in visits} == {"prefer_on_device", "only_on_device", "prefer_in_cloud", "only_in_cloud"}
    assert {each.wanted for each in visits} == {"text", "error"}
    assert any(each.device is not NONE and each.cloud is not NONE for each in visits), "both sides down"


def test_a_fault_without_an_end_comes_where_the_cloud_writes_meanwhile() -> None:
    met = [each for each in deal(500, 7) if each.device.seconds > ENDLESS]
    assert met
    assert {(each.mode, each.early, each.wanted) for each in met} == {("prefer_on_device", True, "text")}


def test_the_device_is_there_from_the_first_where_it_fails_in_the_middle() -> None:
    assert not any(each.early for each in deal(500, 7) if each.device.moments)
    assert {each.early for each in deal(500, 7)} == {True, False}


def test_the_short_form_has_every_fault_that_is_over_soon() -> None:
    met = {fault.name for each in deal(40, 1) for fault in (each.device, each.cloud)}
    assert met >= {fault.name for fault in (*DEVICE, *CLOUD) if fault.seconds < 1}
    assert not met & {fault.name for fault in (*DEVICE, *CLOUD) if fault.seconds >= 1}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (visit("loss"), "text"),
        (visit("loss", mode="only_on_device"), "text"),
        (visit("no_adapter"), "text"),
        (visit("no_adapter", mode="only_on_device"), "error"),
        (visit("no_adapter", "down"), "error"),
        (visit("loss", "down"), "text"),
        (visit(cloud="cut", mode="prefer_in_cloud"), "text"),
        (visit(cloud="cut", mode="only_in_cloud"), "error"),
        (visit(cloud="slow", mode="only_in_cloud"), "text"),
    ],
)
def test_what_a_visit_must_end_in(given: Visit, wanted: str) -> None:
    assert given.wanted == wanted


# -- judging -----------------------------------------------------------------------------------------------------------


def seen(*texts: tuple[str, str], status: str | None = None, **more: Any) -> dict[str, Any]:
    """A visit that ended in these (text, source), 10 ms from each other, with a status event before the last one."""
    events: list[dict[str, Any]] = [{"type": "text", "text": text, "source": source} for text, source in texts]
    if status:
        events.insert(len(events) - 1, {"type": "status", "source": status})
    usage = {"type": "usage", "completionTokens": 6, "deviceTokens": 4, "cloudTokens": 2}
    events += [usage, {"type": "done", "source": texts[-1][1] if texts else "device"}]
    for number, event in enumerate(events):
        event["at"] = 1000.0 + 10 * number
    base = {"opened": 900.0, "status": {"source": "device"}, "error": None, "struck": None, "endedAt": 2000.0}
    return {**base, "events": events, "ended": "done", **more}


def failed(code: str, message: str, ours: bool = True) -> dict[str, Any]:
    return seen(("A red", "device"), ended="error", error={"ours": ours, "code": code, "message": message})


def server(*exchanges: Exchange, strange: tuple[str, ...] = (), struck: float | None = None) -> Server:
    return Server(exchanges, strange, struck)


TAKEN_OVER = seen(("A red ", "device"), ("cup of clay.", "cloud"), status="cloud", struck=960.0)


def test_a_take_over_is_timed_and_right() -> None:
    outcome = judged(visit("loss"), TAKEN_OVER, server(Exchange(1.0, 1.004)), TRUTH)
    assert (outcome.ended, outcome.wrong) == ("text", ())
    assert outcome.detected == pytest.approx(50)
    assert outcome.taken_over == pytest.approx(6)


@pytest.mark.parametrize(
    ("given", "what", "by", "complaint"),
    [
        (visit("loss"), seen(("A red ", "device"), ("red cup of clay.", "cloud")), server(), "'A red red cup"),
        (visit("loss"), seen(("A red ", "device"), ("up of clay.", "cloud")), server(), "'A red up of"),
        (visit("loss"), seen(("A red cup", "device")), server(), "'A red cup' instead of"),
        (visit("loss"), {**TAKEN_OVER, "ended": "hung"}, server(), "did not end in time"),
        (visit("loss"), TAKEN_OVER, server(Exchange(1.0), Exchange(2.0)), "asked 2 times"),
        (visit("loss"), TAKEN_OVER, server(strange=("Bred",)), "was to go on with 'Bred'"),
        (visit("loss", mode="only_on_device"), seen((TEXT, "device")), server(Exchange(1.0)), "1 requests reached"),
        (visit("loss"), failed("device_lost", "The GPU was lost: the browser took it."), server(), "somebody to write"),
        (visit("no_adapter", "down"), seen((TEXT, "cloud")), server(), "nobody could write one"),
        (visit("no_adapter", "down"), failed("cloud_unavailable", "undefined"), server(), "no clear error"),
        (visit("no_adapter", "down"), failed("bad_image", "The picture cannot be read at all."), server(), "no clear"),
        (
            visit("no_adapter", "down"),
            failed("no_device", "Cannot read properties of null.", ours=False),
            server(),
            "no",
        ),
    ],
)
def test_what_must_not_be_is_seen(given: Visit, what: dict[str, Any], by: Server, complaint: str) -> None:
    wrong = judged(given, what, by, TRUTH).wrong
    assert len(wrong) == 1
    assert complaint in wrong[0]


def test_events_and_tokens_that_do_not_add_up_are_seen() -> None:
    twice = seen((TEXT, "device"))
    twice["events"].append(dict(twice["events"][-1]))
    assert "last events" in judged(visit(), twice, server(), TRUTH).wrong[0]
    assert "where there were 7 tokens" in judged(visit(), seen((TEXT, "device")), server(), Truth(TEXT, 7)).wrong[0]
    restarted = judged(visit(style="restarted"), seen((TEXT, "device")), server(), Truth(TEXT, 7))
    assert restarted.wrong == (), "what the cloud says twice counts for itself"


def test_a_device_that_goes_on_after_the_cloud_is_held_against_itself() -> None:
    given = visit(cloud="cut", mode="prefer_in_cloud")
    own = {"shown": "A red ", "text": "cup that is large and more"}
    right = seen(("A red ", "cloud"), ("cup that is", "device"), status="device", continuation=own)
    assert judged(given, right, server(), TRUTH).wrong == ()
    for text in ("red cup that is", "up that is"):
        other = seen(("A red ", "cloud"), (text, "device"), status="device", continuation=own)
        assert "instead of" in judged(given, other, server(), TRUTH).wrong[0]
    lost = {**right, "continuation": {**own, "shown": "A ed "}}
    assert "was shown before" in judged(given, lost, server(), TRUTH).wrong[0]


def test_what_a_device_that_failed_in_the_end_went_on_with_is_its_own_affair() -> None:
    given = visit("read_refused", "upstream_stalls", mode="prefer_in_cloud")
    said = {"ours": True, "code": "device_lost", "message": "The GPU stopped answering at work; try again."}
    for before, wrong in (("A red ", ()), ("A ed ", ("'A ed ' instead of 'A red cup of clay.'",))):
        both = seen((before, "cloud"), ("mug", "device"), status="device", ended="error", error=said)
        assert judged(given, both, server(), TRUTH).wrong == wrong


# -- the servers -------------------------------------------------------------------------------------------------------


def test_an_upstream_goes_on_in_its_style() -> None:
    assert continued(TEXT, "A red ", "exact") == "cup of clay."
    assert continued(TEXT, "A red ", "restarted") == TEXT
    long = "A red cup of clay, made by hand in a small workshop."
    assert continued(long, long[:40], "last_words") == long[9:]
    assert continued(TEXT, "A red cup of cl", "last_words") == TEXT
    assert pieces(TEXT, (1, 2, 3))[:4] == ["A", " r", "ed ", "c"]
    assert "".join(pieces(TEXT, (1, 2, 3))) == TEXT


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "index.json").write_text('{"models": []}')
    (tmp_path / "worker.js").write_text("work();")
    return tmp_path


async def answer(dist: Path, given: Visit) -> tuple[World, Upstream, httpx.Response | None]:
    """What the gateway answers on a visit; None where the connection breaks."""
    upstream = Upstream(TEXT, sizes=(4,))
    upstream.set(given.cloud.name, given.cloud_at, given.style)
    async with serve_app(upstream.app(), lifespan="off") as address:
        world = World.of(dist, address, b"GGUF" * 40_000)
        world.set(given)
        request = {
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "A red "}],
            "max_tokens": 5,
        }
        async with serve_app(world) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
            try:
                return world, upstream, await client.post("/api/ai/cloud-stream", json=request)
            except httpx.TransportError:
                return world, upstream, None


async def test_the_gateway_answers_through_the_world(dist: Path) -> None:
    world, upstream, response = await answer(dist, visit())
    assert response is not None
    lines = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
    assert "".join(line.get("text", "") for line in lines) == "cup of clay."
    assert (upstream.asked, upstream.strange) == (["A red "], [])
    assert world.sent == response.content
    assert world.exchanges[0].waited is not None
    assert world.struck is None


@pytest.mark.parametrize(
    ("fault", "status", "part"),
    [
        ("html", 200, "<!doctype html>"),
        ("busy", 429, "Too many requests"),
        ("broken", 500, "Internal Server Error"),
        ("closed", 200, '{"text":"cup "}'),
        ("cut", None, ""),
        ("upstream_busy", 429, "error"),
        ("upstream_broken", 502, "error"),
        ("error_inside", 200, '"error"'),
        ("upstream_cut", 200, '"error"'),
    ],
)
async def test_faults_of_the_gateway_and_behind_it(dist: Path, fault: str, status: int | None, part: str) -> None:
    world, upstream, response = await answer(dist, visit(cloud=fault))
    assert (response and response.status_code) == status
    assert response is None or part in response.text
    assert response is None or "usage" not in response.text
    assert world.struck or upstream.struck


async def test_the_worker_and_the_weights_come_with_their_faults(dist: Path) -> None:
    world = World.of(dist, "http://127.0.0.1:9", b"GGUF" * 40_000)
    chunk = next(path for path in world.files if path.endswith(".bin"))
    async with serve_app(world) as url, httpx.AsyncClient(base_url=url) as client:
        world.set(visit("loss"))
        script = (await client.get("/worker.js")).text
        assert script.startswith('self.fault = {"kind": "loss", "at": 1};')
        assert script.endswith("work();")
        assert (await client.get(chunk)).content == world.files[chunk]
        for fault, status in (("weights_missing", 404), ("weights_html", 200), ("weights_corrupt", 200)):
            world.set(visit(fault))
            response = await client.get(chunk)
            assert response.status_code == status
            assert response.content != world.files[chunk]
            assert world.struck
        world.set(visit("weights_corrupt_once"))
        assert (await client.get(chunk)).content != world.files[chunk]
        assert (await client.get(chunk)).content == world.files[chunk]
        world.set(visit("weights_cut"))
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(chunk)


# -- the summary -------------------------------------------------------------------------------------------------------


def test_percentiles_are_values_that_there_were() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [report.percentile(values, share) for share in (50, 95, 99)] == [50, 95, 99]
    assert report.percentile([3.0], 99) == 3.0
    assert report.percentile([], 50) is None


def test_the_summary(tmp_path: Path) -> None:
    outcomes = [
        Outcome(visit("loss"), "text", (), 40.0, 12.0),
        Outcome(visit("loss"), "error device_lost", ("no text",), 60.0, None),
        Outcome(visit("no_adapter", "down"), "error cloud_unavailable", (), None, None),
        Outcome(visit("no_adapter", mode="only_on_device"), "error no_device", (), 8.0, None),
    ]
    assert report.available(outcomes) == (1, 2)
    text = report.markdown(outcomes)
    assert text.startswith("4 visits, 1 of them not as they must be. With the gateway up 1 of 2 ended in a text.")
    assert "| device: loss | 2 | error device_lost 1, text 1 | 40, 60, 60 |" in text
    assert "| cloud: down | 1 | error cloud_unavailable 1 | – |" in text
    file = report.keep(outcomes, "a GPU", 5, tmp_path / "results")
    first, *_, last = [json.loads(line) for line in file.read_text().splitlines()]
    assert first == {"bench": "visits", "adapter": "a GPU", "visits": 4, "seed": 5, "asked": 2, "texts": 1}
    assert last["take_over_ms"] == {"count": 1, "p50": 12.0, "p95": 12.0, "p99": 12.0}
