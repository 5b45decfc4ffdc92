"""The check of the decoder's kernels: right on every device and format, and no kernel can be broken unnoticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.door import MOUNT, data_route
from tests.browser.pyodide_page import PyodidePage

FILES = ["kernels/selfcheck_on_gpu.py"]
MODULE = "kernels.selfcheck_on_gpu"
CUT = {"maxBufferSize": 1 << 20, "maxStorageBufferBindingSize": 32 << 10}
"""Small enough to cut the weights of a tiny model by rows."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def python(browser: Browser, site: str) -> AsyncIterator[PyodidePage]:
    page = await browser.new_page()
    page.set_default_timeout(300_000)
    await page.route(f"**{MOUNT}**", data_route)
    await page.goto(site + "/style.css")
    yield await PyodidePage.start(page, site)
    await page.close()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("qwen2-Q4_1-tied", {"subgroups": False}),
        ("qwen3-Q8_0-tied", {"room": -256}),
        ("llama-Q4_1-tied", {"limits": CUT}),
        ("qwen3-Q8_0-tied", {"limits": CUT, "room": 0.8}),
        ("qwen2-Q4_K_M-tied", {}),
    ],
    ids=["no subgroups", "float16 cache", "cut", "streamed", "mixed formats"],
)
async def test_right_kernels_pass_and_nothing_is_left(
    python: PyodidePage, site: str, name: str, how: dict[str, Any]
) -> None:
    found = await python.run(MODULE, "healthy", FILES, language=f"{site}{MOUNT}tiny/tiny-{name}.gguf", **how)
    # Far from the tolerance, so that other hardware stays within it too.
    assert [each for each in found["kernels"] if each[2] is None or not each[2] < 0.01] == []
    assert found["again"] == [error for _, _, error in found["kernels"]]
    assert len(found["kernels"]) == found["pipelines"], "every kernel, and none is compiled for the check"
    assert found["zeros"]
    assert (found["filled"], found["same"], found["errors"]) == (0, True, [])
    if "room" in how:
        half = how["room"] == -256
        assert (found["decision"]["kv"] == "f16") == half
        assert (found["decision"]["action"] == "resident") == half


LINEAR = "linear.wgsl"
BROKEN: dict[str, tuple[dict[str, Any], list[tuple[str, str, str]]]] = {
    "qwen2-Q4_1-tied": (
        {},
        [
            (LINEAR, "+= block_dot(w, in${m})", "-= block_dot(w, in${m})"),
            (LINEAR, "b += ${LANES}u", "b += ${LANES * 2}u"),
            (LINEAR, "v += subgroupShuffleXor", "v -= subgroupShuffleXor"),
            (LINEAR, "a${r}_${m} *= factor${m};", ""),
            (LINEAR, "*squares += dot(x0, x0)", "*squares += dot(x0, x1)"),
            (LINEAR, "a${r}_${m} += added;", ""),
            (LINEAR, "let token = state.count - 1u;", "let token = 0u;"),
            (LINEAR, "in${m} = load_inputs(token + ${m}u", "in${m} = load_inputs(token"),
            ("block.wgsl", "w.s.z * second", "w.s.x * second"),
            ("weights_q4.wgsl", "ws[row * NB + b]", "ws[row * NB]"),
            ("nibbles.wgsl", "w >> 4u", "w >> 3u"),
            ("embed.wgsl", "* UNIT * w.s", "* w.s"),
            ("attention.wgsl", "total * keep + weight", "total + weight"),
            ("attention.wgsl", "head / ${HEADS // KV_HEADS}u", "head % ${KV_HEADS}u"),
            ("attention.wgsl", "state.position + token + 1u", "state.position + 1u"),
            ("attention_partials.wgsl", "total += weight * part.y", "total += part.y"),
            ("epilogue_residual.wgsl", "+=", "="),
            ("epilogue_silu_mul.wgsl", "exp(-a", "exp(a"),
            ("epilogue_store.wgsl", "= a", "= -a"),
            ("epilogue_rope_cache.wgsl", "pair.x * turn.y + pair.y", "pair.x * turn.y - pair.y"),
            ("epilogue_rope_cache.wgsl", "row < ${Q_ROWS + KV_ROWS}u", "row < ${Q_ROWS}u"),
            ("sample_greedy.wgsl", "v > value", "v < value"),
            ("sample_greedy.wgsl", "best_value[i] > value", "best_value[i] < value"),
            ("sample.wgsl", "h * 747796405u", "h * 747796407u"),
            ("sample.wgsl", "if (before > aim)", "if (before < aim)"),
            ("sample.wgsl", "inner = candidate", "inner = 0u"),
            ("step_end.wgsl", "state.step += 1u", "state.step += 2u"),
            ("step_end.wgsl", "0x7f800000u) != ", "0x7f800000u) == "),
        ],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_kernel_is_found(python: PyodidePage, site: str, name: str) -> None:
    how, patches = BROKEN[name]
    found = await python.run(
        MODULE, "broken", FILES, language=f"{site}{MOUNT}tiny/tiny-{name}.gguf", patches=patches, **how
    )
    for patch, each in zip(patches, found, strict=True):
        print(patch, each)
