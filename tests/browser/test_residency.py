"""Two models in one pool in a real browser, at budgets exact to the byte: roomy, tight, small; and their turns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from playwright.async_api import Browser

from pyapp.compiler.passes import fuse
from pyapp.compiler.reference import StepState
from tests.browser.door import MOUNT, serve_data
from tests.browser.pyodide_page import PyodidePage
from tests.unit.tiny_models import TINY as TINY_DATA
from tests.unit.tiny_models import Tiny

FILES = ["kernels/engine_on_gpu.py"]
MODULE = "kernels.engine_on_gpu"
VISION = "/models/efficientnet-lite0/manifest.json"
SMOLLM2 = "/models/smollm2-135m/manifest.json"
TINY = {
    "llama": f"{MOUNT}tiny/tiny-llama-Q4_1-tied.gguf",
    "qwen2": f"{MOUNT}tiny/tiny-qwen2-Q8_0-untied.gguf",
    "qwen3": f"{MOUNT}tiny/tiny-qwen3-Q8_0-tied.gguf",
}
IDS = [1, 5, 9, 17, 3, 8, 2]
SMALL = {"maxBufferSize": 16 << 20, "maxStorageBufferBindingSize": 4 << 20}
TINY_LIMITS = {"maxBufferSize": 1 << 20, "maxStorageBufferBindingSize": 32 << 10}
"""Small enough to cut a tiny model's layers into several blocks."""
ROOMY = 1 << 30
LEFT = 1e-4
"""Logits of two placements may differ by the order of a sum."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def python(browser: Browser, site: str) -> AsyncIterator[PyodidePage]:
    async with PyodidePage.opened(browser, site, 600_000, serve_data) as page:
        yield page


def url(site: str, path: str) -> str:
    return site + path


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def roomy(python: PyodidePage, site: str) -> dict[str, Any]:
    model = url(site, TINY["llama"])
    ask = {"language": model, "ids": IDS, "n": 12, "budget": ROOMY}
    found = await python.run(MODULE, "talk", FILES, **ask, vision=url(site, VISION))
    return {**found, "model": model}


async def test_a_later_visit_finds_its_weights_read_already(
    python: PyodidePage, site: str, roomy: dict[str, Any]
) -> None:
    found = await python.run(MODULE, "revisit", FILES, language=roomy["model"], vision=url(site, VISION))
    # What is read here are single rows, for the check of the kernels: the upload would be one read of everything.
    assert max(length for _, length in found["read"]) < found["moved"] / 10
    # A picture that comes before the GPU is ready is looked at by the CPU, which must not download the file again.
    assert found["missing"] == 0


def sound(found: dict[str, Any]) -> None:
    """What holds at any budget."""
    assert found["errors"] == []
    assert found["same_objects"]
    assert found["zeros"]
    assert not found["leased"]
    for plan in found["plans"].values():
        assert plan["peak"] <= 0.6 * plan["sum"]


def same_answers(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["greedy"] == wanted["greedy"]
    assert np.abs(np.array(found["logits"]) - wanted["logits"]).max() <= LEFT
    if found["picture"]:
        assert np.abs(np.array(found["picture"]) - wanted["picture"]).max() <= LEFT


async def test_roomy_switches_move_nothing(roomy: dict[str, Any]) -> None:
    sound(roomy)
    assert [moved for _, moved in roomy["moved"]] == [0, 0, 0, 0]
    assert roomy["streamed"] == 0
    assert [(each["model"], each["action"]) for each in roomy["decisions"]] == [
        ("language", "resident"),
        ("vision", "resident"),
    ]


async def test_tight_switches_move_the_overlap(roomy: dict[str, Any], python: PyodidePage, site: str) -> None:
    overlap = roomy["language"] // 3 // 256 * 256
    budget = roomy["language"] + roomy["vision"] + roomy["workspace"] - overlap
    found = await python.run(
        MODULE, "talk", FILES, language=roomy["model"], vision=url(site, VISION), ids=IDS, n=12, budget=budget
    )
    sound(found)
    same_answers(found, roomy)
    assert found["moved"] == [["vision", overlap], ["language", overlap]] * 2
    assert found["context"] == roomy["context"]


@pytest.mark.parametrize("name", TINY)
async def test_small_streams_the_rest_of_the_weights(python: PyodidePage, site: str, name: str) -> None:
    ask: dict[str, Any] = {"language": url(site, TINY[name]), "vision": None, "ids": IDS, "n": 12}
    whole = await python.run(MODULE, "talk", FILES, **ask, budget=ROOMY)
    ask["limits"] = TINY_LIMITS
    alone = await python.run(MODULE, "talk", FILES, **ask, budget=ROOMY)
    sound(alone)
    same_answers(alone, whole)
    assert alone["largest_binding"] <= TINY_LIMITS["maxStorageBufferBindingSize"]
    for part in (0.7, 0.85):
        room = int(whole["language"] * part) // 256 * 256
        found = await python.run(MODULE, "talk", FILES, **ask, budget=alone["workspace"] + room)
        sound(found)
        same_answers(found, whole)
        # Cut weights fuse less, and what that takes of the budget is missing for them.
        assert part - 0.2 < found["room"] <= part
        window = 2 * TINY_LIMITS["maxStorageBufferBindingSize"]
        assert 0 < found["streamed"] <= (1 - found["room"]) * whole["language"] + 2 * window
        assert found["decisions"][0]["action"] == "stream"
        # Each run of the plan brings what is streamed at least once.
        assert min(moved for _, moved in found["moved"]) >= 12 * (found["streamed"] - window)


@pytest.mark.parametrize("name", ["tiny-qwen2-Q8_0-tied", "tiny-qwen3-Q8_0-tied"])
async def test_a_float16_cache_keeps_the_weights_resident(python: PyodidePage, site: str, name: str) -> None:
    """256 bytes less than float32 needs: the cache is halved, and says what NumPy says with such a cache."""
    golden = json.loads((TINY_DATA / f"{name}.json").read_text(encoding="utf-8"))
    ids, n = golden["prompt_ids"], 16
    ask: dict[str, Any] = {"language": url(site, f"{MOUNT}tiny/{name}.gguf"), "vision": None, "ids": ids, "n": n}
    whole = await python.run(MODULE, "talk", FILES, **ask, budget=ROOMY)
    assert whole["decisions"][0]["kv"] == "f32"
    half = await python.run(MODULE, "talk", FILES, **ask, budget=whole["language"] + whole["workspace"] - 256)
    sound(half)
    [decision] = half["decisions"]
    assert (decision["action"], decision["kv"], half["context"]) == ("resident", "f16", whole["context"])
    assert half["streamed"] == 0

    model = await Tiny.open(name)
    decode, caches, state = fuse(model.graph(1, splits=4, kv="f16")), model.caches("f16"), StepState()
    for position, token in enumerate(ids):
        state = StepState(token=token, position=position)
        logits = model.run(decode, caches, state)["logits"][0]
    for _ in range(n - 1):
        model.run(decode, caches, state)
    assert half["greedy"] == state.ids
    assert np.abs(half["logits"] - logits).max() <= LEFT
    assert np.abs(half["logits"] - np.array(whole["logits"])).max() > 2 * LEFT  # it is another cache


async def test_small_buffers_and_bindings(roomy: dict[str, Any], python: PyodidePage, site: str) -> None:
    found = await python.run(
        MODULE, "talk", FILES, language=roomy["model"], vision=url(site, VISION), ids=IDS, n=12, budget=ROOMY,
        limits=SMALL,
    )  # fmt: skip
    sound(found)
    same_answers(found, roomy)
    assert found["picture"] is None  # an activation of 4.8 MB: pictures are for the CPU here
    assert found["largest_buffer"] <= 16 << 20
    assert found["largest_binding"] <= 4 << 20


async def test_turns(python: PyodidePage, site: str) -> None:
    found = await python.run(
        MODULE, "turns", FILES, language=url(site, TINY["llama"]), vision=url(site, VISION), ids=IDS, n=24
    )
    assert found["errors"] == []
    assert found["first"] == found["second"] == found["alone"] == found["again"] == found["continued"]
    assert found["drawn"] == found["resumed"]
    # Pictures come in between one text's tokens; the second text waits for the first one's end.
    order = found["order"]
    pictures = [index for index, name in enumerate(order) if name == "picture"]
    assert len(pictures) == 2
    assert pictures[-1] < len(order) // 2
    texts = [name for name in order if name != "picture"]
    assert texts == ["a"] * 24 + ["b"] * 24
    assert found["stale"] == "The lease 1 of language has ended."
    assert found["late"] == "vision waited 0.05 s for the GPU, which a test holds; try again or stop that."
    assert found["cut"] == [[True, 0, True]] * 3


async def test_smollm2_tight_and_small(python: PyodidePage, site: str) -> None:
    """Real weights: 10 MB of overlap; 60 % of the language model's weights; buffers of 16 MiB, bindings of 4."""
    ask: dict[str, Any] = {"language": url(site, SMOLLM2), "ids": [1, 504, 260, 2066, 314], "n": 3}
    whole = await python.run(MODULE, "talk", FILES, **ask, vision=url(site, VISION), budget=ROOMY)
    sound(whole)
    assert [moved for _, moved in whole["moved"]] == [0, 0, 0, 0]
    overlap = 10 << 20
    # A context beyond 2,048 is given up before the models' lying side by side, and one beyond 512 before streaming.
    comfortable = whole["workspace"] - max(0, whole["context"] - 2048) * whole["position"]
    budget = whole["language"] + whole["vision"] + comfortable - overlap
    tight = await python.run(MODULE, "talk", FILES, **ask, vision=url(site, VISION), budget=budget)
    sound(tight)
    same_answers(tight, whole)
    assert tight["moved"] == [["vision", overlap], ["language", overlap]] * 2
    workspace = whole["workspace"] - (whole["context"] - 512) * whole["position"]
    room = int(whole["language"] * 0.6) // 256 * 256
    small = await python.run(MODULE, "talk", FILES, **ask, vision=url(site, VISION), budget=workspace + room)
    sound(small)
    same_answers(small, whole)
    assert (small["decisions"][0]["action"], small["decisions"][1]["action"]) == ("stream", "resident")
    assert 0.38 * whole["language"] < small["streamed"] < 0.5 * whole["language"]
    cut = await python.run(MODULE, "talk", FILES, **ask, vision=None, budget=ROOMY, limits=SMALL)
    sound(cut)
    same_answers(cut, whole)
    assert cut["largest_buffer"] <= 16 << 20
    assert cut["largest_binding"] <= 4 << 20
