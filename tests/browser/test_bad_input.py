"""Bad input through the door: one clear sentence each, and what worked before goes on working."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import Browser, Route

from tests.browser.door import DATA, Door, DoorError, door_in, text_of

from .conftest import Open

TINY = "/__data__/tiny/tiny-llama-Q4_1-tied.gguf"
GGUF = (DATA / "tiny" / "tiny-llama-Q4_1-tied.gguf").read_bytes()
COFFEE = (DATA / "pics" / "coffee.png").read_bytes()
MIB = 1 << 20
BOTH = {"mode": "prefer_on_device", "cloud": "/api/ai/cloud-stream", "cloudWhileLoading": False}


def clear(message: str, *words: str) -> bool:
    """A sentence or two for people: words that say what it is about, nothing of the program's inside."""
    inside = ("Traceback", "Error:", "JsException", "undefined", "NoneType", "\n")
    ends = message.endswith((".", "…"))
    return (
        ends and len(message) < 400 and not any(each in message for each in inside) and all(w in message for w in words)
    )


async def refused(work: Any, code: str, *words: str) -> DoorError:
    with pytest.raises(DoorError) as caught:
        await work
    error = caught.value
    assert error.code == code, error
    assert clear(error.message, *words), error.message
    return error


def jpeg(width: int, height: int) -> bytes:
    """The coffee cup, enlarged."""
    with Image.open(io.BytesIO(COFFEE)) as picture:
        large = picture.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    stream = io.BytesIO()
    large.save(stream, "JPEG", quality=60)
    return stream.getvalue()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def writer(browser: Browser, site: str) -> AsyncIterator[Door]:
    """A client with a tiny language model and the real vision model, for all that must not harm it."""
    async with door_in(browser, site) as door:
        await door.open(model=TINY, poolMiB=100)
        yield door


@pytest_asyncio.fixture(loop_scope="session")
async def door(open_page: Open, site: str) -> Door:
    page = await open_page("")
    page.set_default_timeout(120_000)
    return await Door.at(page, site)


async def still_works(door: Door) -> None:
    """Both models answer on the device, and as they always do."""
    assert (await door.describe(COFFEE))["labels"][0]["name"] == "espresso"
    events = await door.generate(prompt="Hi", maxTokens=4)
    assert events[-1] == {"type": "done", "reason": "length", "source": "device"}
    assert (await door.status())["source"] == "device"


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "image/png", ["empty", "0 bytes"]),
        (b"This is a text, not a picture.", "text/plain", ["not a picture"]),
        (GGUF[:100_000], "image/jpeg", ["not a picture"]),
        (COFFEE[: len(COFFEE) // 2], "image/png", ["PNG", "damaged or cut off"]),
        (COFFEE[:200] + bytes(1000) + COFFEE[1200:], "image/png", ["PNG", "damaged or cut off"]),
    ],
    ids=["empty", "text", "a-model", "cut-png", "broken-png"],
)
async def test_what_is_no_picture(writer: Door, content: bytes, kind: str, words: list[str]) -> None:
    memory = await writer.inspect("memory")
    await refused(writer.describe(content, kind), "bad_image", *words)
    await still_works(writer)
    assert await writer.inspect("memory") == memory


async def test_a_photo_of_108_megapixels(writer: Door) -> None:
    """Larger than any canvas should hold, but no reason to refuse it."""
    memory = await writer.inspect("memory")
    found = await writer.describe(jpeg(12_000, 9_000), "image/jpeg")
    assert (found["width"], found["height"], found["source"]) == (12_000, 9_000, "device")
    assert found["labels"][0]["name"] == "espresso"
    await still_works(writer)
    assert await writer.inspect("memory") == memory


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "b"}]}, "role"),
        ({"prompt": "a", "maxTokens": 0}, "maxTokens"),
        ({"prompt": "a", "maxTokens": 1.5}, "maxTokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "topK": -1}, "topK"),
        ({"prompt": "a", "topP": 0}, "topP"),
        ({"prompt": "a", "topP": 1.5}, "topP"),
        ({"prompt": "a", "seed": -1.5}, "seed"),
        ({"prompt": "a", "tempreature": 1}, "tempreature"),
        ({"facts": {"labels": "cup"}}, "labels"),
        ({"brief": {"length": "endless", "keywords": ["cup"]}}, "length"),
        ({"prompt": "a", "signal": 5}, "signal"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else value,
)
async def test_arguments_of_generate(writer: Door, request_: dict[str, Any], word: str) -> None:
    await refused(writer.generate(**request_), "bad_argument", word)
    assert (await writer.generate(prompt="Hi", maxTokens=1))[-1]["source"] == "device"


@pytest.mark.parametrize(
    ("method", "arguments", "word"),
    [
        ("tokenize", [5], "text"),
        ("detokenize", [[1, -2]], "ids"),
        ("logits", [[]], "ids"),
        ("logits", [[512]], "ids"),
        ("nll", [[1]], "ids"),
        ("greedy", [[1], 0], "n"),
        ("plan", ["sound"], "plan"),
        ("render", [[{"role": "user"}]], "content"),
    ],
)
async def test_arguments_of_inspect(writer: Door, method: str, arguments: list[Any], word: str) -> None:
    await refused(writer.inspect(method, *arguments), "bad_argument", word)


async def test_more_tokens_than_the_context_holds(writer: Door) -> None:
    memory = await writer.inspect("memory")
    long = "word " * 2000
    error = await refused(writer.generate(prompt=long, maxTokens=4), "context_full", "512")
    assert error.details["tokens"] > error.details["context"] == 512
    await refused(writer.inspect("logits", [5] * 513), "context_full", "513", "512")
    await refused(writer.inspect("greedy", [5] * 510, 4), "context_full", "513", "512")
    assert len(await writer.inspect("greedy", [5] * 509, 4)) == 4
    await still_works(writer)
    assert await writer.inspect("memory") == memory
    # An answer that would grow past the context ends there, and says so.
    filled = await writer.generate(prompt="word " * 230, maxTokens=600)
    [usage] = [event for event in filled if event["type"] == "usage"]
    assert usage["promptTokens"] + usage["completionTokens"] in (512, 513)
    assert filled[-1]["reason"] == "length"


# -- model files ------------------------------------------------------------------------------------------------------


def _other_architecture() -> bytes:
    """The same file, said to be of another architecture whose name is as long."""
    key = b"general.architecture"
    at = GGUF.index(b"llama", GGUF.index(key) + len(key))
    return GGUF[:at] + b"bloom" + GGUF[at + 5 :]


PAGE = b"<!doctype html><html><body>Please log in.</body></html>"
FILES: dict[str, tuple[bytes, str, str, list[str]]] = {
    # what: (content, content type, code, words of the sentence)
    "cut in its data": (GGUF[: len(GGUF) // 2], "application/octet-stream", "bad_model", ["bytes"]),
    "cut in its head": (GGUF[:300], "application/octet-stream", "bad_model", []),
    "another architecture": (_other_architecture(), "application/octet-stream", "bad_model", ["bloom", "llama"]),
    "random bytes": (random.Random(7).randbytes(300_000), "application/octet-stream", "bad_model", ["GGUF"]),
    "a web page": (PAGE, "text/html", "bad_weights", ["web page"]),
    "a web page in disguise": (PAGE, "application/octet-stream", "bad_weights", ["web page"]),
    "empty": (b"", "application/octet-stream", "bad_model", ["0 bytes"]),
}


async def serve(door: Door, content: bytes, kind: str) -> None:
    """From now on the address /upload/model.gguf answers with this."""
    headers = {"etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"', "content-type": kind}
    await door.page.unroute("**/upload/model.gguf")
    await door.page.route("**/upload/model.gguf", lambda route: route.fulfill(body=content, headers=headers))


@pytest.mark.parametrize("what", FILES)
async def test_a_model_file_that_is_none(door: Door, what: str) -> None:
    content, kind, code, words = FILES[what]
    await serve(door, content, kind)
    await refused(door.open(model="/upload/model.gguf", vision=None), code, *words)


async def test_a_bad_model_file_leaves_nothing_behind(door: Door) -> None:
    """Refused again at the next visit; and when the server has the right file at that address, that one is taken."""
    options = {"model": "/upload/model.gguf", "vision": None}
    content, kind, code, words = FILES["cut in its data"]
    await serve(door, content, kind)
    for _ in range(2):
        await refused(door.open(**options), code, *words)
    await serve(door, GGUF, kind)
    await door.open(**options)
    assert (await door.generate(prompt="Hi", maxTokens=2))[-1]["source"] == "device"


async def test_a_model_that_is_not_there(door: Door) -> None:
    await refused(door.open(model="/nowhere/model.gguf"), "bad_weights", "404")
    status = await door.open(model="/nowhere/model.gguf", **BOTH)
    assert status["source"] == "cloud"
    assert clear(status["reason"], "404")
    # What does not depend on the file works: the picture is looked at on the device, the cloud writes.
    assert (await door.describe(COFFEE))["source"] == "device"
    events = await door.generate(prompt="Say hello.", maxTokens=4)
    assert events[-1]["source"] == "cloud"
    assert text_of(events)


# -- weights in mid-download ------------------------------------------------------------------------------------------


def chunks(dist: Path, model: str) -> list[str]:
    manifest = json.loads((dist / "models" / model / "manifest.json").read_text())
    return [chunk["url"] for chunk in manifest["chunks"]]


async def test_a_chunk_with_one_wrong_bit(door: Door, dist: Path) -> None:
    """The vision model's second chunk comes damaged: pictures are refused, texts are not, and nothing bad is kept."""
    name = chunks(dist, "efficientnet-lite0")[1]
    asked = 0

    async def damage(route: Route) -> None:
        nonlocal asked
        asked += 1
        body = bytearray((dist / "models" / "efficientnet-lite0" / name).read_bytes())
        body[12_345] ^= 1
        await route.fulfill(body=bytes(body), content_type="application/octet-stream")

    await door.page.route(f"**/{name}", damage)
    await door.open(model=TINY)
    assert (await door.generate(prompt="Hi", maxTokens=2))[-1]["source"] == "device"
    await refused(door.describe(COFFEE), "bad_weights", "hunk 2 of", "not the one promised")
    assert asked >= 2  # once more, past any cache on the way
    assert (await door.generate(prompt="Hi", maxTokens=2))[-1]["source"] == "device"
    await door.page.unroute(f"**/{name}")
    assert (await door.describe(COFFEE))["labels"][0]["name"] == "espresso"
    await door.close()
    await door.open(model=TINY)
    assert (await door.describe(COFFEE))["source"] == "device"


async def test_a_cache_emptied_in_mid_download(door: Door, site: str, dist: Path) -> None:
    held = asyncio.Event()
    reached = asyncio.Event()
    last = chunks(dist, "efficientnet-lite0")[-1]

    async def hold(route: Route) -> None:
        reached.set()
        await held.wait()
        await route.continue_()

    await door.page.route(f"**/{last}", hold)
    opening = asyncio.ensure_future(door.open(model=TINY))
    await reached.wait()
    session = await door.page.context.new_cdp_session(door.page)
    await session.send("Storage.clearDataForOrigin", {"origin": site, "storageTypes": "all"})
    held.set()
    await opening
    await still_works(door)
    await door.close()
    await door.open(model=TINY)  # and nothing half is left behind
    await still_works(door)


# -- room -------------------------------------------------------------------------------------------------------------


async def test_a_pool_that_is_too_small(door: Door) -> None:
    error = await refused(door.open(poolMiB=20), "out_of_memory", "20971520")
    assert error.details["need"] > error.details["budget"] == 20 * MIB
    status = await door.open(poolMiB=20, **BOTH)
    assert (status["source"], status["pool"]) == ("cloud", None)
    assert clear(status["reason"], "20971520")
    assert (await door.describe(COFFEE))["source"] == "cpu"
    events = await door.generate(prompt="Say hello.", maxTokens=4)
    assert events[-1]["source"] == "cloud"
    assert text_of(events)
    await door.close()
    await door.open(poolMiB=100, model=TINY)
    await still_works(door)
