"""Whether a visit went as it must, and how long the two things took that a shopper could notice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .faults import NONE, Visit
from .world import Exchange

Seen = dict[str, Any]
"""What ``data/visits_page.js`` saw of a visit."""
SENTENCE = re.compile(r"[A-Z].{20,}[.]", re.DOTALL)


@dataclass(frozen=True)
class Truth:
    """The text that every whole answer must be, and its tokens."""

    text: str
    tokens: int


@dataclass(frozen=True)
class Server:
    """What the servers saw of a visit. ``struck``: when a fault of theirs came, ms since 1970; ``strange``: texts that
    the upstream was asked to go on with and that begin no answer."""

    exchanges: Sequence[Exchange]
    strange: Sequence[str]
    struck: float | None


@dataclass(frozen=True)
class Outcome:
    """A visit and what came of it. ``wrong``: what must not be, in words; times in ms, None where there was none."""

    visit: Visit
    ended: str
    wrong: tuple[str, ...]
    detected: float | None
    taken_over: float | None


def judged(visit: Visit, seen: Seen, server: Server, truth: Truth) -> Outcome:
    wrong = list(_ending(visit, seen))
    wrong += _text(seen, truth)
    if seen["ended"] == "done":
        wrong += _end_of_text(visit, seen, truth)
    if not visit.allows_cloud and server.exchanges:
        wrong.append(f"{len(server.exchanges)} requests reached the gateway")
    if len(server.exchanges) > 1:
        wrong.append(f"the gateway was asked {len(server.exchanges)} times for one text")
    if server.strange:
        wrong.append(f"the cloud was to go on with {server.strange[0]!r}")
    if visit.early:  # the cloud writes whether or not there is a fault
        return Outcome(visit, _ended(seen), tuple(wrong), None, None)
    return Outcome(visit, _ended(seen), tuple(wrong), detected(visit, seen, server), taken_over(seen, server))


def _ended(seen: Seen) -> str:
    if seen["ended"] == "done":
        return "text"
    return f"error {seen['error']['code']}" if seen["ended"] == "error" else str(seen["ended"])


def _ending(visit: Visit, seen: Seen) -> list[str]:
    """A text or a clear error, whichever it must be."""
    if seen["ended"] == "hung":
        return ["it did not end in time"]
    if seen["ended"] == "done":
        return [] if visit.wanted == "text" else ["a text where nobody could write one"]
    error = seen["error"]
    said = f"{error.get('code')}: {error['message']}"
    if visit.wanted == "text":
        return [f"an error where there was somebody to write: {said}"]
    if not error["ours"] or error["code"] not in visit.codes or not SENTENCE.fullmatch(error["message"]):
        return [f"no clear error: {said}"]
    return []


def _text(seen: Seen, truth: Truth) -> list[str]:
    """What was shown is the text, or where it ended early its beginning: nothing repeated, nothing lost."""
    shown = "".join(event["text"] for event in seen["events"] if event["type"] == "text")
    wanted = truth.text
    if seen.get("continuation"):
        own = seen["continuation"]
        if not wanted.startswith(own["shown"]):
            return [f"{own['shown']!r} was shown before the device went on, and begins no {wanted!r}"]
        # How the device goes on from there is its own affair, and so is where its last token would have ended.
        wanted = own["shown"] + own["text"]
        return [] if wanted.startswith(shown.rstrip("\ufffd")) else [f"{shown!r} instead of {wanted!r}"]
    whole = seen["ended"] == "done"
    if not whole:
        shown = _before_the_device_took_over(seen["events"])
    right = shown == wanted if whole else wanted.startswith(shown)
    return [] if right else [f"{shown!r} instead of {wanted!r}"]


def _before_the_device_took_over(events: Sequence[Mapping[str, Any]]) -> str:
    """All of the text where it did not, and where it had nothing to go on from. What it would have gone on with cannot
    be asked of one that has failed since."""
    taken = [at for at, event in enumerate(events) if event["type"] == "status" and event["source"] == "device"]
    texts = [(at, event["text"]) for at, event in enumerate(events) if event["type"] == "text"]
    begun = next((at for at in taken if texts and texts[0][0] < at), len(events))
    return "".join(text for at, text in texts if at < begun)


def _end_of_text(visit: Visit, seen: Seen, truth: Truth) -> list[str]:
    kinds = [event["type"] for event in seen["events"]]
    if kinds[-2:] != ["usage", "done"] or kinds.count("usage") != 1 or kinds.count("done") != 1:
        return [f"the last events were {kinds[-3:]}"]
    usage = seen["events"][-2]
    counted = usage["deviceTokens"] + usage["cloudTokens"]
    # An upstream that repeats itself makes more tokens than the text has, so where they end is its own affair.
    right = truth.tokens if visit.style == "exact" else usage["completionTokens"]
    if counted != usage["completionTokens"] or counted != right:
        return [f"{usage} where there were {truth.tokens} tokens"]
    return []


def detected(visit: Visit, seen: Seen, server: Server) -> float | None:
    """From the fault to the first sign of it: a status event, a client that opens without its device, or the error."""
    first, second = (visit.device, visit.cloud) if visit.mode.endswith("on_device") else (visit.cloud, visit.device)
    struck: float | None = seen["struck"] or server.struck
    if struck is None or second is not NONE or first is NONE:
        return None  # with two faults it would not be plain which of them was noticed
    signs = [event["at"] for event in seen["events"] if event["type"] == "status"]
    if seen["opened"] and seen["status"]["source"] == "cloud":
        signs.append(seen["opened"])
    if seen["ended"] == "error":
        signs.append(seen["endedAt"])
    return min((at - struck for at in signs if at >= struck), default=None)


def taken_over(seen: Seen, server: Server) -> float | None:
    """From the status event that says that the cloud goes on to the cloud's first text, less what the gateway took."""
    told: float | None = None
    for event in seen["events"]:
        if event["type"] == "status" and event["source"] == "cloud":
            told = event["at"]
        if event["type"] == "text" and event["source"] == "cloud":
            waited = server.exchanges[-1].waited if server.exchanges else None
            return None if told is None or waited is None else float(event["at"] - told - 1000 * waited)
    return None
