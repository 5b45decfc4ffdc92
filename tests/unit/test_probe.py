"""The probe, in the page (web/probe.js) and in the worker (pyapp.gpu.probe): the same answers for the same browsers."""

from __future__ import annotations

import asyncio
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pyapp.errors import BadArgument
from pyapp.gpu import probe as python
from tests.unit.node_runner import WEB, run_node

GIB = 1 << 30
REAL = {"vendor": "nvidia", "architecture": "hopper", "device": "", "description": "NVIDIA H200"}
EMULATED = {
    "vendor": "google",
    "architecture": "swiftshader",
    "device": "",
    "description": "",
    "isFallbackAdapter": True,
}


def adapter(
    info: dict[str, Any] | None = None, binding: int = 2 * GIB, features: tuple[str, ...] = ()
) -> dict[str, Any]:
    limits = {
        "maxBufferSize": 4 * GIB,
        "maxStorageBufferBindingSize": binding,
        "maxStorageBuffersPerShaderStage": 10,
        "maxComputeWorkgroupStorageSize": 32768,
        "maxComputeInvocationsPerWorkgroup": 256,
    }
    return {"info": REAL if info is None else info, "limits": limits, "features": list(features)}


CASES: dict[str, dict[str, Any]] = {
    # gpu: what navigator.gpu is; asks: what its requestAdapter comes to, ask by ask
    "no WebGPU": {"gpu": False},
    "no adapter": {"asks": [None]},
    "no adapter of either kind": {"asks": [None, None], "wish": "software"},
    "an adapter that fails": {"asks": ["throws"]},
    "switched off": {"asks": [adapter()], "wish": "none"},
    "one that does not say what it is": {"asks": [{k: v for k, v in adapter().items() if k != "info"}]},
    "a real one": {"asks": [adapter(features=("subgroups", "shader-f16"))]},
    "a real one where an emulated one would do": {"asks": [adapter()], "wish": "software"},
    "an emulated one": {"asks": [adapter(EMULATED)]},
    "an emulated one, welcome": {"asks": [adapter(EMULATED)], "wish": "software"},
    "an emulated one on the second ask": {"asks": [None, adapter(EMULATED)], "wish": "software"},
    "emulated by name only": {"asks": [adapter({**REAL, "description": "llvmpipe (LLVM 19)"})]},
    "a word twice, and nameless": {"asks": [adapter({"vendor": "apple", "device": "apple"})]},
    "nameless": {"asks": [adapter({})]},
    **{
        f"binding {binding}, weights {weights}": {"asks": [adapter(binding=binding)], "weights": weights}
        for binding in (128 << 20, 512 << 20, GIB - 4, GIB, 2 * GIB)
        for weights in (None, 98_362_432, 870_000_000, 4_400_000_000)
    },
}


def of_python(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    asks = iter(case.get("asks", []))

    async def request_adapter(**wishes: Any) -> Any:
        answer = next(asks)
        if answer == "throws":
            raise RuntimeError("Error: driver gone")
        if answer is None:
            return None
        features = SimpleNamespace(values=lambda: answer["features"])
        info = {"info": SimpleNamespace(**answer["info"])} if "info" in answer else {}
        return SimpleNamespace(**info, limits=SimpleNamespace(**answer["limits"]), features=features)

    gpu = SimpleNamespace(requestAdapter=request_adapter) if case.get("gpu", True) else None
    monkeypatch.setitem(sys.modules, "js", SimpleNamespace(navigator=SimpleNamespace(gpu=gpu)))
    found = asyncio.run(python.probe(case.get("wish", "auto"), case.get("weights")))
    said = {name: getattr(found, name) for name in ("tier", "adapter", "software", "usable", "reason", "limits")}
    return {**said, "features": sorted(found.features)}


def of_page(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    script = """
      const { probeDevice } = await import(web + "probe.js");
      const found = [];
      for (const { gpu = true, asks = [], wish = "auto", weights = null } of input) {
        const requestAdapter = async () => {
          const answer = asks.shift();
          if (answer === "throws") throw new Error("driver gone");
          return answer && { ...answer, features: new Set(answer.features) };
        };
        const value = gpu ? { gpu: { requestAdapter }, deviceMemory: 8 } : {};
        Object.defineProperty(globalThis, "navigator", { value, configurable: true });
        found.push(await probeDevice({ adapter: wish, weights }));
      }
      return found;
    """
    return list(run_node(script, cases))


def test_page_and_worker_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = of_page(list(CASES.values()))
    for (name, case), answer in zip(CASES.items(), answers, strict=True):
        ms, memory = answer.pop("ms"), answer.pop("memoryGiB")
        assert 0 <= ms < 300, name
        assert memory == (None if "gpu" in case else 8), name
        assert answer == of_python(case, monkeypatch), name


def test_tiers_are_those_of_the_1_5b_class_scaled_by_the_model() -> None:
    tiers = {binding: python.tier_of(binding) for binding in (1, (GIB // 2) - 1, GIB // 2, GIB - 1, GIB)}
    assert list(tiers.values()) == ["low", "low", "medium", "medium", "high"]
    assert python.tier_of(128 << 20, 98_362_432) == "high", "the site's own model has room under the smallest limit"
    assert python.tier_of(GIB, 1_740_000_000) == "medium"
    assert python.tier_of(GIB, 0) == "high"


def test_browser_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(**wishes: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(python, "ANSWER_SECONDS", 0.01)
    gpu = SimpleNamespace(requestAdapter=never)
    monkeypatch.setitem(sys.modules, "js", SimpleNamespace(navigator=SimpleNamespace(gpu=gpu)))
    found = asyncio.run(python.probe("auto"))
    assert (found.usable, found.reason) == (False, "the browser gave no answer about a GPU within 0.01 s")
    script = """
      const waits = [];
      globalThis.setTimeout = (work, ms) => { waits.push(ms); queueMicrotask(work); };
      const value = { gpu: { requestAdapter: () => new Promise(() => {}) } };
      Object.defineProperty(globalThis, "navigator", { value, configurable: true });
      const { probe } = await import(web + "tandem.js");
      return [await probe(), waits];
    """
    answer, waits = run_node(script, None)
    assert (answer["tier"], answer["reason"]) == ("unsupported", "the browser gave no answer about a GPU within 3 s")
    assert waits == [3000]


@pytest.mark.parametrize(
    ("vendor", "languages", "packed_dot"),
    [
        ("nvidia", ["packed_4x8_integer_dot_product"], True),
        ("nvidia", ["subgroup_id"], False),
        ("nvidia", None, False),
        ("apple", ["packed_4x8_integer_dot_product"], False),
    ],
)
def test_products_of_bytes_are_taken_where_they_are_known_to_be_fast(
    vendor: str, languages: list[str] | None, packed_dot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = adapter({**REAL, "vendor": vendor})

    async def request_adapter(**wishes: Any) -> Any:
        parts = {name: SimpleNamespace(**offered[name]) for name in ("info", "limits")}
        return SimpleNamespace(**parts, features=SimpleNamespace(values=lambda: []))

    known = {} if languages is None else {"wgslLanguageFeatures": SimpleNamespace(values=lambda: languages)}
    gpu = SimpleNamespace(requestAdapter=request_adapter, **known)
    monkeypatch.setitem(sys.modules, "js", SimpleNamespace(navigator=SimpleNamespace(gpu=gpu)))
    assert asyncio.run(python.probe()).device_limits().packed_dot == packed_dot


def test_wrong_wish_is_refused_alike() -> None:
    with pytest.raises(BadArgument):
        asyncio.run(python.probe("gpu"))
    script = """
      const { probeDevice } = await import(web + "probe.js");
      try { return await probeDevice({ adapter: "gpu" }); } catch (error) { return [error.code, error.message]; }
    """
    assert run_node(script, None) == ["bad_argument", "adapter must be one of auto, software, none; it was 'gpu'."]


def test_no_other_script_of_the_page_touches_the_gpu() -> None:
    touch = re.compile(r"navigator\??\.gpu|[\"']gpu[\"'] in navigator")
    assert [str(file.relative_to(WEB)) for file in WEB.rglob("*.js") if touch.search(file.read_text())] == ["probe.js"]
