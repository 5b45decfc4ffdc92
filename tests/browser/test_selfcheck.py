"""The check of the decoder's kernels: right on every device and format, and no kernel can be broken unnoticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.door import MOUNT, serve_data
from tests.browser.pyodide_page import PyodidePage

FILES = ["kernels/selfcheck_on_gpu.py"]
CUT = {"maxBufferSize": 1 << 20, "maxStorageBufferBindingSize": 32 << 10}
"""Small enough to cut the weights of a tiny model by rows."""
Patch = tuple[str, str, str] | tuple[str, str, str, str]
"""(file, text in it, what it is replaced by), and which of the kernels that have the text do not use it."""
LINEAR = "linear.wgsl"

DEVICES: dict[str, tuple[str, dict[str, Any], list[list[Patch]]]] = {
    "everything": (
        "qwen2-Q4_1-tied",
        {},
        [
            [
                ("attention.wgsl", "total * keep + weight", "total + weight"),
                ("embed.wgsl", "* UNIT * w.s", "* w.s"),
                ("epilogue_residual.wgsl", "+=", "="),
                ("epilogue_silu_mul.wgsl", "exp(-a", "exp(a"),
                ("epilogue_store.wgsl", "= a", "= -a"),
                ("epilogue_rope_cache.wgsl", "pair.x * turn.y + pair.y", "pair.x * turn.y - pair.y"),
                ("sample_greedy.wgsl", "largest(high) > best", "largest(high) < best"),
                ("sample.wgsl", "h * 747796405u", "h * 747796407u"),
            ],
            [
                ("attention.wgsl", "head / ${HEADS // KV_HEADS}u", "head % ${KV_HEADS}u"),
                ("epilogue_rope_cache.wgsl", "row < ${Q_ROWS + KV_ROWS}u", "row < ${Q_ROWS}u"),
                ("attention_partials.wgsl", "total += weight * part.y", "total += part.y"),
                ("sample_greedy.wgsl", "atomicMax(&highest, best)", "atomicMax(&highest, 0u)"),
                ("sample_listed.wgsl", "held_above.x < share", "held_above.x > share"),
            ],
            [
                ("attention.wgsl", "state.position + token + 1u", "state.position + token"),
                (LINEAR, "a${r}_${m} += added;", ""),
                ("sample_searched.wgsl", "reached |=", "reached &="),
            ],
            [
                (LINEAR, "+= block_dot(w, in${m})", "-= block_dot(w, in${m})"),
                ("sample_listed.wgsl", "above < vec2u(wanted)", "above > vec2u(wanted)"),
            ],
            [
                ("sum_lanes.wgsl", "v += subgroupShuffleXor", "v -= subgroupShuffleXor"),
                ("step_end.wgsl", "state.step = step + 1u", "state.step = step + 2u"),
            ],
            [
                (LINEAR, "a${r}_${m} *= factor${m};", ""),
                ("logits.wgsl", "keys < vec4u(0xff000000u)", "keys >= vec4u(0xff000000u)"),
            ],
            [(LINEAR, "let token = state.count - 1u;", "let token = 0u;")],
            [(LINEAR, "in${m} = load_inputs(token + ${m}u", "in${m} = load_inputs(token + ${m // 2}u")],
            [("block.wgsl", "w.s.y * x.sums.x", "w.s.y * x.sums.y", "embed")],
            [("weights_q4.wgsl", "ws[at]", "ws[0]")],
            [("nibbles.wgsl", "w >> 4u", "w >> 3u")],
        ],
    ),
    "as on hardware": (
        "qwen2-Q4_1-tied",
        {"hardware": True},
        [
            [
                ("matvec.wgsl", "a${r}_0 += bias${r};", ""),
                ("matmul.wgsl", "a${r}_${m} *= factor;", ""),
                ("attention_split.wgsl", "total${g} * keep + weight;", "total${g} * keep + weight + 1.0;"),
                ("attention_chunk.wgsl", "total *= keep;", ""),
            ],
            [
                ("matvec.wgsl", "a${r}_0 *= factor;", ""),
                ("matmul.wgsl", "weights[(${r}u * ACROSS + across)", "weights[(${r}u * ACROSS + down)"),
                ("attention_chunk.wgsl", "four < vec4u(seen${r})", "four <= vec4u(seen${r})"),
            ],
            [
                ("merge_parts.wgsl", "v += four[${j}] * value", "v += value"),
                ("attention_chunk.wgsl", "select(KEYS, (slice", "select(0u, (slice"),
            ],
            [
                ("matvec.wgsl", "y[first + ${r}u] = old${r} + a${r}_0;", "y[first + ${r}u] = a${r}_0;"),
                # Wrong from the third workgroup of a head on.
                ("attention_chunk.wgsl", "group.x % (TILE_QUERIES / QUERIES)", "group.x % 2u"),
            ],
        ],
    ),
    "no subgroups": (
        "qwen2-Q4_0-untied",
        {"subgroups": False},
        [[("weights_s4.wgsl", "ws[at >> 1u]", "ws[at]")]],
    ),
    "mixed formats": (
        "qwen2-Q4_K_M-tied",
        {},
        [
            [
                ("weights_g4.wgsl", "ws[at * 2u + 1u]", "ws[at * 2u]"),
                ("weights_g8.wgsl", "ws[at * 4u + 2u]", "ws[at * 4u]"),
            ],
            [("signed_bytes.wgsl", "- vec4f(128.0, 32768.0, 8388608.0, 0.0)", "")],
        ],
    ),
    "float16 cache": (
        "qwen3-Q8_0-tied",
        {"room": -256},
        [
            [
                ("half_cache.wgsl", "unpack2x16float(words.x)", "unpack2x16float(words.y)", "rope_cache"),
                ("weights_q8.wgsl", "ws[at >> 1u]", "ws[0]"),
            ],
            [("half_cache.wgsl", "pack2x16float(clamp(pair", "pack2x16float(clamp(pair.yx", "attention")],
            [("rope_cache.wgsl", "pair.x * turn.x - pair.y", "pair.x * turn.x + pair.y")],
            [("rope_cache.wgsl", "squares / ${D}.0", "squares")],
        ],
    ),
    "cut": (
        "qwen2-F16-tied",
        {"limits": CUT},
        [
            [("silu_mul.wgsl", "exp(-", "exp("), ("rope_cache.wgsl", "turn.y + pair.y", "turn.y - pair.y")],
            [("plain_halves.wgsl", "halves(raw.q.xy)", "halves(raw.p.xy)")],
        ],
    ),
    "bfloat16 weights": ("llama-BF16-tied", {}, [[("weights_bf16.wgsl", "w.y << 16u", "w.x << 16u")]]),
    "streamed": ("qwen3-Q8_0-tied", {"limits": CUT, "room": 0.8}, []),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def python(browser: Browser, site: str) -> AsyncIterator[PyodidePage]:
    async with PyodidePage.opened(browser, site, 300_000, serve_data) as page:
        yield page


@pytest.mark.parametrize("device", DEVICES)
async def test_right_kernels_pass_and_each_broken_one_is_found(python: PyodidePage, site: str, device: str) -> None:
    name, how, batches = DEVICES[device]
    language = f"{site}{MOUNT}tiny/tiny-{name}.gguf"
    found = await python.run("kernels.selfcheck_on_gpu", "examine", FILES, language=language, batches=batches, **how)
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
    for batch, each in zip(batches, found["broken"], strict=True):
        assert all(each["changed"].values())
        used = [
            kernel
            for kernels, patch in zip(each["changed"].values(), batch, strict=True)
            for kernel in kernels
            if len(patch) == 3 or not kernel.startswith(patch[3])
        ]
        assert each["wrong"] == sorted(used), batch
