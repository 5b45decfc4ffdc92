"""Runs in Pyodide, in a worker of the page: the check of the kernels on several devices, and of broken kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyapp.engine import selfcheck
from pyapp.engine.assets import shader_text
from pyapp.engine.engine import Engine
from pyapp.engine.language import LanguageModel
from pyapp.gpu.kernels import Kernels
from pyapp.gpu.plan import Shader
from pyapp.gpu.preprocess import preprocess
from pyapp.gpu.probe import probe
from pyapp.weights.store import ensure_model

MIB = 1 << 20


def _quiet(stage: str, loaded: int, total: int | None = None) -> None:
    """Progress that nobody watches."""


async def _engine(
    language: str, *, subgroups: bool = True, budget: int = 512 * MIB, limits: dict[str, int] | None = None
) -> Engine:
    found = await probe("software")
    if not subgroups:
        found = replace(found, features=found.features - {"subgroups"})
    model = await LanguageModel.open(await ensure_model(language, _quiet))
    return await Engine.of_models(found, budget, model, None, _quiet, limits)


async def healthy(language: str, room: float | int | None = None, **how: Any) -> dict[str, Any]:
    """The check at load, and what it leaves behind. ``room``: what the weights have of their bytes (as a share), or
    bytes by which the pool is smaller than what the model needs."""
    if room is not None:
        roomy: Any = await _engine(language, **how)
        workspace = sum(slab.size for slab in roomy.pool.slabs if slab.role == "workspace")
        weights = roomy.residency.sets["language"].nbytes
        await roomy.close()
        share = int(weights * room) // 256 * 256 if isinstance(room, float) else weights + room
        how["budget"] = workspace + share
    engine: Any = await _engine(language, **how)
    try:
        report = engine.checked
        memory = engine.memory()
        again = await engine.selfcheck()
        return {
            "kernels": [[each.operation, each.kernel, each.error] for each in report.findings],
            "ms": report.ms,
            "again": [each["error"] for each in again["kernels"]],
            "pipelines": engine.kernels.count,
            "decision": engine.decisions[0],
            "zeros": await _zeros(engine),
            "filled": engine.language.written,
            "same": memory["objects"] == engine.memory()["objects"] and memory["live"] == engine.memory()["live"],
            "errors": engine.device.errors,
        }
    finally:
        await engine.close()


async def _zeros(engine: Any) -> bool:
    """Whether the beginnings of activations and KV caches read back as zeros."""
    plan = engine.language.prefill_plan
    caches = [name for name in engine.language._caches if name != "rope"]
    begins = [await engine.language.read(plan, name, 0, 256) for name in (*caches, *plan.memory.sizes)]
    return not any(begin.any() for begin in begins)


async def broken(
    language: str, patches: list[tuple[str, str, str]], room: float | int | None = None, **how: Any
) -> list[dict[str, Any]]:
    """For each (file, text in it, what it is replaced by): the kernels that change by it, and those found wrong."""
    engine: Any = await _engine(language, **how)
    runner = engine.language
    sound = engine.kernels
    out = []
    try:
        for file, old, new in patches:
            text = shader_text(file)
            assert text.count(old) >= 1, f"{file} has no {old!r}"

            def load(name: str, file: str = file, patched: str = text.replace(old, new)) -> str:
                return patched if name == file else shader_text(name)

            kernels = Kernels(engine.device, load)
            changed = [shader for shader in sound._pipelines if _code(shader, load) != _code(shader, shader_text)]
            kernels._pipelines = {s: pipeline for s, pipeline in sound._pipelines.items() if s not in changed}
            plans = runner.decode_plan, runner.prefill_plan
            await kernels.prepare(dispatch for plan in plans for dispatch in plan.dispatches)
            runner.build(kernels)
            report = await selfcheck.check(runner)
            out.append(
                {
                    "file": file,
                    "changed": sorted(shader.label for shader in changed),
                    "wrong": sorted(each.kernel for each in report.wrong),
                    "error": max((each.error or 0) for each in report.findings),
                }
            )
        runner.build(sound)
        assert not (await selfcheck.check(runner)).wrong, "the kernels that are not broken are right"
        assert engine.device.errors == []
        return out
    finally:
        await engine.close()


def _code(shader: Shader, load: Callable[[str], str]) -> str:
    return preprocess(load(f"{shader.file}.wgsl"), dict(shader.params), load)
