"""``web/app/badge.js`` with a stand-in for the page: who writes a text and why, of what the Python door tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from pyapp.client import Client
from pyapp.door.flight import StillLoading
from pyapp.errors import CloudUnavailable
from tests.unit.door_fakes import FakeCloud, FakeEngine, World
from tests.unit.node_runner import run_node
from tests.unit.test_client import opened
from tests.unit.test_client_loading import arrived, loading
from tests.unit.test_client_loss import losing

DRAW = """
  let [made, drawn] = [[], 0];
  class Element {
    dataset = {};
    textContent = "";
    #title = "";
    constructor() { made.push(this); }
    get title() { return this.#title; }
    set title(words) { this.#title = words; drawn += 1; }
    append() {}
    setAttribute() {}
  }
  globalThis.document = { createElement: () => new Element(), documentElement: {}, querySelectorAll: () => [] };
  globalThis.fetch = async (url) => new Response(readFileSync(url));
  const { setLanguage } = await import(web + "app/i18n.js");
  const { Badge } = await import(web + "app/badge.js");
  await setLanguage(input.language);
  const badge = new Badge(input.options);
  const [, side, why] = made;
  const seen = [];
  for (const [call, ...given] of input.calls) {
    badge[call](...given);
    seen.push({ side: side.textContent, why: why.textContent, hint: badge.element.title, drawn });
  }
  return seen;
"""
GPU = "· The model runs on this device's GPU (Fake GPU)."
SIDES = {"en": "On this device", "zh": "在本机运行"}
ENDED: list[tuple[Any, ...]] = [("end",), ("show", None, "ready")]
DOWN = CloudUnavailable("The cloud is down.")
Call = tuple[Any, ...]
Hook = Callable[[Client, World], Awaitable[None]]


def draw(calls: list[Call], options: dict[str, Any] | None = None, language: str = "en") -> list[dict[str, Any]]:
    """What the badge shows after each of the calls."""
    return list(run_node(DRAW, {"calls": calls, "options": options or {}, "language": language}))


def status_of(client: Client) -> Any:
    return json.loads(json.dumps({**client.status, "pool": None, "decisions": []}))


async def nothing(client: Client, world: World) -> None:
    pass


async def text(
    world: World, *, before: Hook = nothing, begun: Hook = nothing, told: Hook = nothing, **options: Any
) -> list[Call]:
    """The calls that the page makes for one text. What is done ``before`` it, once it has ``begun``, and at each status
    event that is ``told``."""
    client = await opened(world, **options)
    await before(client, world)
    calls: list[Call] = [("show", status_of(client), "ready"), ("begin", status_of(client))]
    await begun(client, world)
    async for event in client.generate(prompt="Hi"):
        if event["type"] == "status":
            await told(client, world)
        calls.append(("event", event, status_of(client)))
    calls.append(("show", status_of(client), "ready"))
    await client.close()
    return calls


async def lose(client: Client, world: World) -> None:
    world.engine.lost.set()
    while not client.status["loading"]:  # noqa: ASYNC110 - what a page sees
        await asyncio.sleep(0)


async def arrive(client: Client, world: World) -> None:
    await arrived(world, client)


@pytest.mark.parametrize("options", [{"mode": "only_on_device"}, {"cloud": None}])
async def test_a_text_written_by_a_gpu_that_is_ready_again_is_not_told_of_its_loss(options: dict[str, Any]) -> None:
    seen = draw(await text(World(), before=lose, **options), options)
    assert "The GPU was lost" in seen[1]["why"]  # while it is waited for
    assert (seen[-1]["side"], seen[-1]["why"], seen[-1]["hint"]) == ("On this device", GPU, "")


@pytest.mark.parametrize(
    ("language", "why", "hint"),
    [
        ("en", "· The cloud is down. The text is written on this device.", ""),
        ("zh", "· 云端不再继续这段文案，由本设备撰写。", "The cloud is down. The text is written on this device."),
    ],
)
async def test_a_warning_is_no_reason_for_the_side(language: str, why: str, hint: str) -> None:
    world = World(engine=FakeEngine(context=40), cloud=FakeCloud(error=DOWN))
    calls = await text(world, mode="prefer_in_cloud")
    assert [call[1]["code"] for call in calls if call[1].get("type") == "status"] == [
        "cloud_unavailable",
        "context_short",
    ]
    last = draw(calls, {"mode": "prefer_in_cloud"}, language)[-1]
    assert (last["why"], last["hint"]) == (why, hint)


async def test_nor_is_it_where_the_device_came_unannounced() -> None:
    calls = await text(loading(engine=FakeEngine(context=40)), begun=arrive)
    assert [call[1]["code"] for call in calls if call[1].get("type") == "status"] == ["context_short"]
    last = draw(calls)[-1]
    assert (last["side"], last["why"], last["hint"]) == ("On this device", GPU, "")


async def test_a_side_that_makes_room_for_one_that_was_expected_first_says_why() -> None:
    world = losing(2, None)
    world.arrival = asyncio.Event()
    seen = draw(await text(world, begun=arrive))
    assert seen[1]["side"] == "In the cloud"
    assert (seen[2]["side"], seen[2]["why"]) == ("On this device", GPU)
    lost = "· The GPU was lost (test). The text goes on from the cloud."
    assert (seen[-1]["side"], seen[-1]["why"]) == ("In the cloud", lost)


async def test_a_wait_for_the_device_is_no_reason_for_the_side() -> None:
    """The device begins, the cloud goes on and fails, and the device takes over again once it is ready."""
    world = losing(2, None, answer="Hello there")
    world.cloud = FakeCloud(pieces=["Hello"], error=DOWN, fail_after=1)
    calls = await text(world)
    codes = [call[1]["code"] for call in calls if call[1].get("type") == "status"]
    assert codes == ["device_lost", "cloud_unavailable", "device_lost"]
    seen = draw(calls)
    changes = [now["why"] for before, now in pairwise(seen) if now["why"] != before["why"]]
    lost, down = "The GPU was lost (test). The text goes on from the cloud.", "The cloud is down. The text goes on"
    assert changes == [f"· {lost}", f"· {down} on this device."]


async def test_the_cloud_s_text_keeps_its_reason_where_the_models_come_before_it() -> None:
    calls = await text(loading(), told=arrive)
    seen = draw(calls)
    assert calls[-1][1]["source"] == "device"
    assert seen[-1]["side"] == "In the cloud"
    assert seen[-1]["why"] == "· This device is being made ready: its models are still being loaded."


@pytest.mark.parametrize(
    ("language", "side", "why", "hint"),
    [
        ("en", "Written by the cloud", "· The models were still being loaded here.", "At the time: "),
        ("zh", "由云端撰写", "· 当时模型仍在加载到本设备。", "当时："),
    ],
)
async def test_once_it_is_finished_it_does_not_say_that_the_models_are_being_loaded(
    language: str, side: str, why: str, hint: str
) -> None:
    last = draw([*await text(loading(), told=arrive), *ENDED], language=language)[-1]
    said = "This device is being made ready: its models are still being loaded."
    assert (last["side"], last["why"], last["hint"]) == (side, why, hint + said)


async def test_a_device_that_is_made_ready_again_is_not_told_as_models_being_loaded() -> None:
    """Either is ``loading``; the text before this one lost the GPU."""

    async def before(client: Client, world: World) -> None:
        world.arrival = asyncio.Event()
        async for _ in client.generate(prompt="Hi"):
            pass
        assert client.status["loading"]

    calls = [*await text(losing(2, None), before=before), *ENDED]
    why = "· At the time: The GPU was lost (test); the device is being made ready again."
    assert draw(calls)[-1]["why"] == why
    assert not any("仍在加载" in now["why"] for now in draw(calls, language="zh"))


def test_the_page_knows_what_is_said_while_models_are_loaded() -> None:
    """It goes by these words, which the door says in no other case."""
    assert "its models are still being loaded" in str(StillLoading())


@pytest.mark.parametrize(
    ("language", "side", "why"),
    [
        ("en", "Written on this device", "· The model ran on this device's GPU (Fake GPU)."),
        ("zh", "由本机撰写", "· 模型当时运行在本机 GPU 上（Fake GPU）。"),
    ],
)
async def test_a_finished_text_of_the_device_says_where_the_model_ran(language: str, side: str, why: str) -> None:
    calls = await text(World())
    last = draw([*calls, *ENDED], language=language)[-1]
    assert (last["side"], last["why"], last["hint"]) == (side, why, "")
    begins = draw([*calls, *ENDED, calls[1], calls[0]], language=language)[-1]  # the next one
    assert begins["side"] == SIDES[language]


async def test_a_finished_text_of_both_sides_says_so_and_why_the_other_one_went_on() -> None:
    calls = await text(losing(2, None))
    lost = "The GPU was lost (test). The text goes on from the cloud."
    both = {"en": "Begun on one side, finished on the other", "zh": "一端开始，另一端完成"}
    whys = {
        "en": (f"· At the time: {lost}", ""),
        "zh": ("· 当时：本设备不再继续这段文案，由云端撰写。", f"当时：{lost}"),
    }
    for language, (why, hint) in whys.items():
        last = draw([*calls, *ENDED], language=language)[-1]
        assert (last["side"], last["why"], last["hint"]) == (both[language], why, hint)


async def test_a_setting_is_told_of_a_finished_text_as_of_any_other() -> None:
    options: dict[str, Any] = {"mode": "only_in_cloud"}
    seen = draw([*await text(World(), **options), *ENDED], options)
    assert [now["why"] for now in seen] == ["· The cloud is asked first: this page is set to do so."] * len(seen)
    assert seen[-1]["side"] == "Written by the cloud"


def test_a_call_that_wrote_nothing_is_no_text_that_has_ended() -> None:
    ready = state("device", "It is ready.")
    last = draw([("show", ready, "ready"), ("begin", ready), ("end",)])[-1]
    assert (last["side"], last["why"]) == ("On this device", "· It is ready.")


def event(kind: str, source: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "source": source, **more}


def state(source: str, reason: str) -> dict[str, Any]:
    return {"source": source, "reason": reason, "adapter": "Fake GPU", "software": False, "loading": False}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_side_of_which_nothing_was_told_has_no_reason_and_no_hint(language: str) -> None:
    cloud = state("cloud", "The models are loaded.")
    of_cloud = event("status", "cloud", code="device_lost", message="Lost.")
    for told in (
        [],
        [("event", event("status", "device", code="queued", message=""), cloud), ("event", of_cloud, cloud)],
    ):
        calls = [("begin", cloud), *told, ("event", event("text", "device"), cloud)]
        last = draw(calls, language=language)[-1]
        assert (last["side"], last["why"], last["hint"]) == (SIDES[language], "", "")


def test_waiting_in_the_queue_is_no_reason_for_the_side() -> None:
    queued = event("status", "device", code="queued", message="Another call is being answered.")
    calls = [("begin", state("cloud", "Loading.")), ("event", queued, None)]
    last = draw([*calls, ("event", event("text", "device"), state("device", "It is ready."))])[-1]
    assert last["why"] == "· It is ready."


def test_it_is_drawn_once_for_all_texts_of_a_side() -> None:
    ready = state("device", "It is ready.")
    lost = event("status", "cloud", code="device_lost", message="Lost.")
    texts = [("event", event("text", "device"), ready)] * 9
    seen = draw([("show", ready, "ready"), ("begin", ready), *texts, ("event", lost, ready), *texts[:1]])
    assert len({now["drawn"] for now in seen[2:]}) == 1
    seen = draw([("begin", ready), *texts, ("event", lost, ready), *[("event", event("text", "cloud"), ready)] * 9])
    assert seen[-1]["drawn"] - seen[1]["drawn"] == 1


def test_the_reason_stays_while_other_sides_are_named_that_write_nothing() -> None:
    ready = state("device", "It is ready.")
    lost = event("status", "cloud", code="device_lost", message="Lost.")
    down = event("status", "device", code="cloud_unavailable", message="Down.")
    wrote = event("text", "device")
    first = [("begin", ready), *[("event", each, ready) for each in (wrote, lost, down, wrote)]]
    assert draw([*first, ("show", ready, "ready")])[-1]["why"] == "· It is ready."
    second = [("event", each, ready) for each in (lost, event("text", "cloud"), down, wrote, lost)]
    assert draw([*first, *second, ("show", ready, "ready")])[-1]["why"] == "· Down."
