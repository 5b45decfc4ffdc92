"""Golden values through the door: real weights and tiny models, in Chromium's WebGPU, against float32 engines.

Tolerances are those of the project's first issue; docs/accuracy.md has what was measured for all the golden values.
Here runs what tells most in a few minutes of a software adapter; the constants below say how much that is.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import Browser

from pyapp.setup.worker_script import put_before_worker
from tests.browser.door import DATA, DISGUISE, Door, door_in
from tests.unit.text_models import golden

LOGITS = 5e-3
"""Largest difference of a logit of SmolLM2, absolute."""
TINY_LOGITS = 2e-4
VISION_LOGITS = 1e-2
MEAN_NLL = 5e-3
"""Largest difference of a passage's mean negative log-likelihood, relative."""
MARGIN = 0.05
"""A greedy id may differ first where the two best logits are closer than this."""

STEPS = {"chat_coffee": 24, "chat_labels": 3, "chat_title": 2, "plain_text": 4, "chat_chinese": 2}
"""Greedy steps of each prompt; 48 are listed."""
LOGITS_AT = {"chat_coffee": (0, 19, 47), "plain_text": (7,)}
"""Steps whose logits are compared: the first, a near tie, the last."""
LONG_TOKENS = 258
"""Of the long prompt's 565: a prompt runs in chunks of 256, so this one takes two."""
PASSAGE_TOKENS = 64

PROMPTS = {prompt["name"]: prompt for prompt in golden("lm_greedy.json")["prompts"]}
PICTURES = golden("effnet_lite0.json")["pictures"]
TINY_FILES = (
    "tiny-llama-BF16-tied", "tiny-llama-Q4_1-tied", "tiny-qwen2-F16-tied", "tiny-qwen2-IQ4_XS-tied",
    "tiny-qwen2-Q4_0-untied", "tiny-qwen2-Q4_K-untied", "tiny-qwen2-Q4_K_M-tied", "tiny-qwen2-Q6_K-tied",
    "tiny-qwen2-Q8_0-tied", "tiny-qwen3-Q8_0-tied",
)  # fmt: skip
"""Every kernel format and architecture. The other types of a file are packed into the same formats, and
tests/unit/test_reference_decoder.py compares all of them, packed, with their goldens."""
HARDWARE = "as on hardware"
"""With the kernels that a GPU gets; emulated ones have simpler ones."""
ON_HARDWARE = ("tiny-llama-Q4_1-tied", "tiny-qwen2-Q4_0-untied", "tiny-qwen2-Q4_K_M-tied", "tiny-qwen3-Q8_0-tied")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def smollm2(browser: Browser, site: str) -> AsyncIterator[Door]:
    """SmolLM2 and EfficientNet on the device."""
    async with door_in(browser, site) as door:
        status = await door.open()
        assert (status["source"], status["software"]) == ("device", True)
        yield door


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def without_gpu(browser: Browser, site: str) -> AsyncIterator[Door]:
    async with door_in(browser, site) as door:
        await door.open(adapter="none", mode="prefer_on_device")
        yield door


@dataclass
class Tiny:
    """A tiny model in the door, and what it should say."""

    door: Door
    expected: dict[str, Any]

    @property
    def prompt(self) -> list[int]:
        return list(self.expected["prompt_ids"])

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """float32 [prompt, vocabulary]."""
        flat = np.frombuffer(base64.b64decode(self.expected["all_logits_f32le_b64"]), "<f4")
        return flat.reshape(len(self.prompt), -1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tiny_page(browser: Browser, site: str) -> AsyncIterator[Door]:
    async with door_in(browser, site) as door:
        yield door


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def disguised_page(browser: Browser, site: str) -> AsyncIterator[Door]:
    """One that takes the emulated GPU for a real one."""
    async with door_in(browser, site, lambda page: put_before_worker(page, DISGUISE)) as door:
        yield door


TINY = [*TINY_FILES, *(f"{name} {HARDWARE}" for name in ON_HARDWARE)]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=TINY)
async def tiny(tiny_page: Door, disguised_page: Door, request: pytest.FixtureRequest) -> AsyncIterator[Tiny]:
    name, _, hardware = str(request.param).partition(" ")
    page, adapter = (disguised_page, "auto") if hardware else (tiny_page, "software")
    expected = golden(f"tiny/{name}.json")
    # One of them in the shapes that are tried at a first start, whichever those are.
    tune = bool(hardware) and name == ON_HARDWARE[0]
    await page.open(model=f"/__data__/tiny/{expected['file']}", vision=None, adapter=adapter, tune=tune)
    plan = await page.inspect("plan", "language")
    kernels = {row["kernel"].split(" ")[0] for row in plan["rows"]}
    assert kernels & {"linear", "matvec", "attention", "attention_split"} == (
        {"matvec", "attention_split"} if hardware else {"linear", "attention"}
    )
    yield Tiny(page, expected)
    await page.close()


def same_ids(found: list[int], expected: list[int], margins: list[float]) -> bool:
    """Whether ids agree up to a step where the best two logits are nearly equal."""
    first = next((step for step, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]), None)
    return first is None or margins[first] < MARGIN


def difference(found: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    return float(np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max())


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [True, False], ids=["special", "plain"])
async def test_tokenisation(smollm2: Door, special: bool) -> None:
    cases = golden("tok_encode.json")["cases"]
    found = await smollm2.inspect_all("tokenize", [[case["text"], {"special": special}] for case in cases])
    expected = [case["ids"] if special else case.get("ids_plain", case["ids"]) for case in cases]
    assert len(cases) == 184
    assert found == expected


async def test_tokens_to_text(smollm2: Door) -> None:
    cases = golden("tok_decode.json")["cases"]
    found = await smollm2.inspect_all("detokenize", [[case["ids"]] for case in cases])
    assert len(cases) == 25
    assert found == [case["text_final"] for case in cases]


async def test_chat_template(smollm2: Door) -> None:
    cases = golden("chat_template.json")["templates"][0]["cases"]
    assert len(cases) == 8
    asked = [[case["messages"], {"generationPrompt": turn}] for case in cases for turn in (True, False)]
    expected = [text for case in cases for text in (case["prompt"], case["no_generation_prompt"])]
    assert await smollm2.inspect_all("render", asked) == expected
    prompts = [[case["prompt"]] for case in cases]
    assert await smollm2.inspect_all("tokenize", prompts) == [case["prompt_ids"] for case in cases]


# -- SmolLM2 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STEPS)
async def test_greedy_ids(smollm2: Door, name: str) -> None:
    prompt, steps = PROMPTS[name], STEPS[name]
    found = await smollm2.inspect("greedy", prompt["prompt_ids"], steps)
    assert same_ids(found, prompt["gen_ids"][:steps], prompt["margin"])


@pytest.mark.parametrize(("name", "step"), [(name, step) for name, steps in LOGITS_AT.items() for step in steps])
async def test_logits(smollm2: Door, name: str, step: int) -> None:
    prompt = PROMPTS[name]
    logits = await smollm2.inspect("logits", prompt["prompt_ids"] + prompt["gen_ids"][:step])
    assert logits.shape == (49152,)
    assert difference(logits[prompt["top8_ids"][step]], prompt["top8_logits"][step]) <= LOGITS
    # The sum over the whole vocabulary and its moments: a logit that is wrong elsewhere shows here.
    wide = logits.astype(np.float64)
    assert abs(wide.mean() - prompt["logit_mean"][step]) <= LOGITS
    assert abs(wide.std() - prompt["logit_std"][step]) <= LOGITS
    top = wide.max()
    assert abs(top + np.log(np.exp(wide - top).sum()) - prompt["logsumexp"][step]) <= LOGITS


async def test_a_long_prompt(smollm2: Door) -> None:
    """The best id after the first part of a long prompt, and its logit: of this prompt these are listed everywhere."""
    prompt, last = PROMPTS["chat_long"], LONG_TOKENS - 1
    listed = prompt["per_position"]
    logits = await smollm2.inspect("logits", prompt["prompt_ids"][:LONG_TOKENS])
    assert listed["margin"][last] > 2 * LOGITS
    assert int(logits.argmax()) == listed["argmax"][last]
    assert abs(float(logits.max()) - listed["top1_logit"][last]) <= LOGITS


async def test_likelihood_of_a_passage(smollm2: Door) -> None:
    [passage] = golden("lm_perplexity.json")["passages"]
    found = await smollm2.inspect("nll", passage["ids"][:PASSAGE_TOKENS])
    expected = np.array(passage["token_nll"][: PASSAGE_TOKENS - 1])
    assert found.shape == expected.shape
    assert abs(float(found.mean(dtype=np.float64)) / expected.mean() - 1) <= MEAN_NLL
    assert difference(found, expected) <= 2 * LOGITS


async def test_a_layer_takes_six_dispatches_at_most(smollm2: Door) -> None:
    plan = await smollm2.inspect("plan", "language")
    for layer in range(30):
        assert (
            1 <= sum(row["dispatches"] for row in plan["rows"] if row["operation"].startswith(f"layers.{layer}.")) <= 6
        )
    assert plan["dispatchesPerLayer"] <= 6


# -- tiny models: every quantised type, three architectures -----------------------------------------------------------


async def test_tiny_logits_at_every_position(tiny: Tiny) -> None:
    prompt = tiny.prompt
    found = await tiny.door.inspect_all("logits", [[prompt[:length]] for length in range(1, len(prompt) + 1)])
    assert difference(np.stack(found), tiny.logits) <= TINY_LOGITS
    assert difference(found[-1], tiny.expected["last_logits"]) <= TINY_LOGITS


async def test_tiny_likelihoods(tiny: Tiny) -> None:
    wide = tiny.logits.astype(np.float64)
    likelihoods = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    found = await tiny.door.inspect("nll", tiny.prompt)
    assert difference(found, -likelihoods[np.arange(len(wide) - 1), tiny.prompt[1:]]) <= 2 * TINY_LOGITS


async def test_tiny_greedy_ids(tiny: Tiny) -> None:
    found = await tiny.door.inspect("greedy", tiny.prompt, 16)
    assert same_ids(found, tiny.expected["greedy16_ids"], tiny.expected["greedy16_margin"])


async def test_tiny_text_and_plan(tiny: Tiny) -> None:
    """The tiny files share one vocabulary; its pre-tokenizer is the architecture's."""
    pre = "smollm" if tiny.expected["arch"] == "llama" else "qwen2"
    [cases] = [each["cases"] for each in golden("tiny_tok.json")["sets"] if each["pre"] == pre]
    for special in (True, False):
        found = await tiny.door.inspect_all("tokenize", [[case["text"], {"special": special}] for case in cases])
        assert found == [case["ids"] if special else case.get("ids_plain", case["ids"]) for case in cases]
    conversations = golden("chat_template.json")["templates"][1]["cases"]
    found = await tiny.door.inspect_all("render", [[case["messages"]] for case in conversations])
    assert found == [case["prompt"] for case in conversations]
    assert 1 <= (await tiny.door.inspect("plan", "language"))["dispatchesPerLayer"] <= 6


async def test_a_text_over_two_parts_of_the_context(tiny_page: Door, disguised_page: Door) -> None:
    """Attention is split from 64 positions on; read as a prompt, the text takes several tiles of tokens and of keys."""
    expected = golden(f"tiny/{ON_HARDWARE[0]}.json")
    texts, logits = [], []
    for page, adapter in ((tiny_page, "software"), (disguised_page, "auto")):
        await page.open(model=f"/__data__/tiny/{expected['file']}", vision=None, adapter=adapter)
        texts.append(await page.inspect("greedy", expected["prompt_ids"], 120))
        logits.append(await page.inspect("logits", expected["prompt_ids"] + texts[-1]))
        await page.close()
    assert texts[0] == texts[1]
    assert difference(logits[0], logits[1]) <= TINY_LOGITS


# -- EfficientNet -----------------------------------------------------------------------------------------------------


def pixels(picture: dict[str, Any]) -> npt.NDArray[np.uint8]:
    with Image.open(DATA / "pics" / picture["model_input"]) as image:
        return np.asarray(image.convert("RGB"))


def check_description(found: dict[str, Any], picture: dict[str, Any], source: str) -> None:
    assert (found["source"], [found["width"], found["height"]]) == (source, picture["size"])
    assert [label["index"] for label in found["labels"]] == [best["class"] for best in picture["top5"]]
    assert [label["name"] for label in found["labels"]] == [best["name"] for best in picture["top5"]]
    probabilities = np.array([label["p"] for label in found["labels"]])
    assert difference(np.log(probabilities), np.log([best["p"] for best in picture["top5"]])) <= 2 * VISION_LOGITS


@pytest.mark.parametrize("picture", PICTURES, ids=[picture["picture"] for picture in PICTURES])
async def test_a_picture_on_the_device(smollm2: Door, picture: dict[str, Any]) -> None:
    logits = await smollm2.vision(pixels(picture))
    assert logits.shape == (1000,)
    best = [each["class"] for each in picture["top5"]]
    assert difference(logits[best], [each["logit"] for each in picture["top5"]]) <= VISION_LOGITS
    if "logits" in picture:
        assert difference(logits, picture["logits"]) <= VISION_LOGITS
    check_description(await smollm2.describe((DATA / "pics" / picture["picture"]).read_bytes()), picture, "device")


@pytest.mark.parametrize("picture", PICTURES, ids=[picture["picture"] for picture in PICTURES])
async def test_a_picture_on_the_cpu(without_gpu: Door, picture: dict[str, Any]) -> None:
    check_description(await without_gpu.describe((DATA / "pics" / picture["picture"]).read_bytes()), picture, "cpu")
