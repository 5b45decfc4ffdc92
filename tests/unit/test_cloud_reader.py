"""``web/cloud-reader.js``: the stream from the cloud where Python cannot run, cut in every way a network cuts."""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from pyapp.routing.cloud_side import CloudSide
from pyapp.routing.router import End, Piece, Turn
from pyapp.routing.wire import Text
from pyapp.text.sampling import SamplingParams
from tests.unit.node_runner import WEB, run_node

READ = """
  // A thousandth of every wait.
  const [later, now] = [setTimeout, performance.now.bind(performance)];
  globalThis.setTimeout = (work, ms) => later(work, ms / 1000);
  globalThis.performance.now = () => now() * 1000;
  const { readCloud } = await import(web + "cloud-reader.js");
  const results = [];
  for (const given of input) {
    const { chunks, status = 200, type = "text/event-stream", abortAfter = null, before } = given;
    const { hang = false, every = 0 } = given;
    let sent = null;
    let closed = false;
    const controller = new AbortController();
    globalThis.fetch = async (url, options) => {
      sent = JSON.parse(options.body);
      let at = 0;
      const body = new ReadableStream({
        start(stream) {
          options.signal.addEventListener("abort", () => {
            closed = true;
            try { stream.error(options.signal.reason); } catch {}
          });
        },
        async pull(stream) {
          if (every) await new Promise((resolve) => setTimeout(resolve, every));
          if (at < chunks.length) stream.enqueue(new Uint8Array(Buffer.from(chunks[at++], "base64")));
          else if (!hang) stream.close();
          else await new Promise(() => {});
        },
      });
      return new Response(body, { status, headers: { "content-type": type } });
    };
    const messages = [{ role: "user", content: "Hi" }];
    const request = { messages, maxTokens: 10, temperature: 0.5, topP: 0.9, seed: 3 };
    const events = [];
    try {
      for await (const event of readCloud("http://x/", request, controller.signal, before)) {
        events.push(event);
        if (events.length === abortAfter) controller.abort();
      }
      results.push({ events, sent, closed });
    } catch (error) {
      results.push({ events, sent, closed, code: error.code ?? "not ours", message: String(error.message) });
    }
  }
  return results;
"""

STREAM = (
    'data: {"text":"né "}\n\ndata: {"text":"茶🙂"}\n\n'
    'data: {"usage":{"prompt_tokens":5,"completion_tokens":7,"finish_reason":"stop"}}\n\ndata: [DONE]\n\n'
).encode()


def case(*chunks: bytes, **more: Any) -> dict[str, Any]:
    return {"chunks": [base64.b64encode(chunk).decode() for chunk in chunks], **more}


def read(*cases: dict[str, Any]) -> list[Any]:
    return list(run_node(READ, list(cases)))


def text_of(result: dict[str, Any]) -> str:
    return "".join(event["text"] for event in result["events"] if event["type"] == "text")


def event(**payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def test_the_reader_is_short() -> None:
    assert len((WEB / "cloud-reader.js").read_text(encoding="utf-8").splitlines()) < 150


def test_events_and_request() -> None:
    (result,) = read(case(STREAM))
    assert [entry["type"] for entry in result["events"]] == ["text", "text", "usage", "done"]
    assert [entry["tokens"] for entry in result["events"][:2]] == [1, 1], "until the gateway has counted"
    usage = {"promptTokens": 5, "completionTokens": 7, "deviceTokens": 0, "cloudTokens": 7}
    assert result["events"][-2] == {"type": "usage", **usage}
    assert result["events"][-1] == {"type": "done", "reason": "stop", "source": "cloud"}
    messages = [{"role": "user", "content": "Hi"}]
    assert result["sent"] == {"messages": messages, "max_tokens": 10, "temperature": 0.5, "top_p": 0.9, "seed": 3}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_cut_anywhere(end: str) -> None:
    stream = STREAM.replace(b"\n", end.encode())
    cuts = [case(stream[:at], stream[at:]) for at in range(1, len(stream))]
    results = read(*cuts, case(*(bytes([byte]) for byte in stream)))
    assert {text_of(result) for result in results} == {"né 茶🙂"}
    assert all(result["events"][-1]["reason"] == "stop" and "code" not in result for result in results)


def test_a_stream_cut_behind_its_figures_is_whole() -> None:
    whole = STREAM[: STREAM.rindex(b"data:")]
    figures, without = read(case(whole), case(whole[: whole.rindex(b"data:")]))
    assert [entry["type"] for entry in figures["events"]] == ["text", "text", "usage", "done"]
    assert figures["events"][-1]["reason"] == "stop"
    assert without["code"] == "cloud_unavailable"


def test_oddities_of_event_streams() -> None:
    done = b"data: [DONE]\n\n"
    bom = "\ufeff".encode()
    results = read(
        case(bom + event(text="a") + done),
        case(b": ping\n\nevent: x\nid: 5\n\nretry: 9\n" + event(text="a") + done),
        case(b'data: {"text":\ndata: "a"}\n\n' + done),
        case(b'data:{"text":"a"}\n\ndata:[DONE]\n\n'),
        case('data: {"text":"a\u2028b"}\n\n'.encode() + done),
        case(event(text="a") + b"data: [DONE]"),
        case(event(text="a") + done, hang=True),
        case(event(text="a") + event(news=1) + event(text="") + done),
    )
    assert [text_of(result) for result in results] == ["a", "a", "a", "a", "a\u2028b", "a", "a", "a"]
    assert all(result["events"][-1]["type"] == "done" for result in results)
    assert results[6]["closed"], "after the end mark the exchange is closed, whatever the server does"


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (case(event(text="a")), "cloud_unavailable", "cut off"),
        (case(), "cloud_unavailable", "cut off"),
        (
            case(event(text="a") + event(error={"code": "context_full", "message": "too long"})),
            "context_full",
            "too long",
        ),
        (case(event(error={"code": "device_lost", "message": "odd"})), "cloud_unavailable", "odd"),
        (case(event(error="plain")), "cloud_unavailable", "plain"),
        (case(b"data: <html>\n\n"), "cloud_unavailable", "not a JSON object"),
        (case(b"data: " + b"x" * (1 << 20), b"x" * 100), "cloud_unavailable", "without an end"),
        (case(b"<html>", type="text/html; charset=utf-8"), "cloud_unavailable", "answered with text/html"),
        (case(b"gone", status=502), "cloud_unavailable", "HTTP 502"),
        (case(b'{"error":{"code":"bad_argument","message":"no"}}', status=400), "bad_argument", "no"),
        (case(b'{"error":{"code":"busy","message":"full"}}', status=429), "cloud_unavailable", "full"),
    ],
)
def test_failures(given: dict[str, Any], code: str, says: str) -> None:
    (result,) = read(given)
    assert result["code"] == code
    assert says in result["message"]
    assert all(entry["type"] == "text" for entry in result["events"]), "a failure has neither usage nor done"


def test_a_gateway_that_says_nothing_is_not_waited_for() -> None:
    refusal, pings, late = read(
        case(b"<html>", status=503, hang=True),
        case(*[b": ping\n\n"] * 1000, every=3000),
        case(event(text="a"), *[b": ping\n\n"] * 1000, every=3000),
    )
    for result, seconds in ((refusal, 45), (pings, 75), (late, 45)):
        assert (result["code"], result["closed"]) == ("cloud_unavailable", True)
        assert f"sent nothing for {seconds} seconds" in result["message"]
    assert text_of(late) == "a"


def test_abort_ends_in_usage_and_done() -> None:
    (result,) = read(case(event(text="a"), hang=True, abortAfter=1))
    assert [entry["type"] for entry in result["events"]] == ["text", "usage", "done"]
    assert result["events"][1]["cloudTokens"] == 1
    assert result["events"][2] == {"type": "done", "reason": "abort", "source": "cloud"}
    assert result["closed"]


def test_length_is_told_or_guessed() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 10}
    results = read(
        case(event(text="a") + event(usage={**usage, "finish_reason": "length"}) + b"data: [DONE]\n\n"),
        case(event(text="a") + event(usage=usage) + b"data: [DONE]\n\n"),
        case(event(text="a") + b"data: [DONE]\n\n"),
    )
    assert [result["events"][-1]["reason"] for result in results] == ["length", "length", "stop"]


def test_going_on_after_a_side_that_failed() -> None:
    before = {"text": "He", "deviceTokens": 2, "cloudTokens": 1}
    (result,) = read(case(event(text="llo") + b"data: [DONE]\n\n", before=before))
    assert result["sent"]["messages"][-1] == {"role": "assistant", "content": "He"}
    assert result["sent"]["max_tokens"] == 7
    usage = result["events"][-2]
    assert (usage["deviceTokens"], usage["cloudTokens"], usage["completionTokens"]) == (2, 2, 4)


def test_a_cloud_that_begins_anew_repeats_nothing() -> None:
    before = {"text": "The red cup", "deviceTokens": 3, "cloudTokens": 0}
    usage = {"prompt_tokens": 1, "completion_tokens": 6}
    sent = event(text="The red ") + event(text="cup holds ") + event(text="tea.") + event(usage=usage)
    (result,) = read(case(sent + b"data: [DONE]\n\n", before=before))
    assert text_of(result) == " holds tea."
    assert (result["events"][-2]["deviceTokens"], result["events"][-2]["cloudTokens"]) == (3, 3)


def test_what_is_held_back_comes_at_the_end() -> None:
    before = {"text": "The red cup of tea", "deviceTokens": 3, "cloudTokens": 0}
    (result,) = read(case(event(text=" The") + b"data: [DONE]\n\n", before=before))
    assert text_of(result) == " The"


async def read_in_python(shown: str, pieces: list[str]) -> tuple[list[tuple[str, int]], int | None]:
    """The events of ``CloudSide`` as (text, tokens), and the tokens that it counts in the end."""

    async def stream(request: Any) -> Any:
        for piece in pieces:
            yield Text(piece)

    events, total = [], None
    async for part in CloudSide(SimpleNamespace(stream=stream)).stream(Turn([], SamplingParams()), shown, 10):  # type: ignore[arg-type]
        if isinstance(part, Piece):
            events.append((part.text, part.tokens))
        elif isinstance(part, End):
            total = part.tokens
    return events, total


def read_in_javascript(*cases: tuple[str, list[str]]) -> list[tuple[list[tuple[str, int]], int | None]]:
    """The same of ``readCloud``."""
    done = b"data: [DONE]\n\n"
    given = [
        case(
            *[event(text=piece) for piece in pieces], done, before={"text": shown, "deviceTokens": 0, "cloudTokens": 0}
        )
        for shown, pieces in cases
    ]
    return [
        (
            [(entry["text"], entry["tokens"]) for entry in result["events"] if entry["type"] == "text"],
            result["events"][-2]["cloudTokens"],
        )
        for result in read(*given)
    ]


HELD: list[tuple[str, list[str], list[tuple[str, int]], int]] = [
    ("", ["A", " cup"], [("A", 1), (" cup", 1)], 2),
    ("more and more", [" more", " and", " less", "."], [(" more and less", 3), (".", 1)], 4),
    ("A fine ceramic cup ", [" ", "A", " fine", " thing"], [("A fine thing", 4)], 4),  # cut off: one blank
    ("more and more ", [" more", " and", " less"], [("more and less", 3)], 3),
    ("The cup is red and ", ["The cup ", "is red", " and blue", " today"], [("blue", 1), (" today", 1)], 1),
    ("The red cup is big", ["The red ", "cup is ", "big and so round"], [(" and so round", 1)], 1),
    ("The red", ["The re", "d cups!"], [(" cups!", 1)], 1),  # an event of text is one token at least
    ("The cup", ["The ", "cup", " of red tea"], [(" of red tea", 2)], 2),
    ("The cup", ["The ", "cup of good old red tea."], [(" of good old red tea.", 1)], 1),  # half a token is rounded up
]


async def test_tokens_held_back_count_by_their_share_that_is_new() -> None:
    """As the usage counts, and in both languages alike."""
    expected = [(events, total) for _, _, events, total in HELD]
    assert read_in_javascript(*[(shown, pieces) for shown, pieces, *_ in HELD]) == expected
    assert [await read_in_python(shown, pieces) for shown, pieces, *_ in HELD] == expected


async def test_both_languages_count_the_tokens_of_the_same_events() -> None:
    rng = random.Random(3)
    words = ["red", "cup", "tea", "ceramic", "holds", "茶", " ", "  ", "\n", "ha", ".", "handmade"]
    cases = []
    for _ in range(600):
        shown = "".join(rng.choice(words) + rng.choice(["", " "]) for _ in range(rng.randint(0, 8)))
        repeated = shown[rng.randint(0, len(shown)) if rng.random() < 0.5 else 0 :]
        sent = repeated + "".join(rng.choice(words) for _ in range(rng.randint(1, 6)))
        cuts = sorted({0, len(sent), *rng.choices(range(1, len(sent) + 1), k=rng.randint(0, 5))})
        cases.append((shown, [sent[a:b] for a, b in pairwise(cuts)]))
    in_python = [await read_in_python(*case) for case in cases]
    assert sum(len(events) > 0 and events[0][1] > 1 for events, _ in in_python) > 30
    assert read_in_javascript(*cases) == in_python
