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
    language: str, *, subgroups: bool = True, hardware: bool = False, budget: int = 512 * MIB,
    limits: dict[str, int] | None = None,
) -> Engine:  # fmt: skip
    """``hardware``: as if the adapter were none in software."""
    found = replace(await probe("software"), software=not hardware)
    if not subgroups:
        found = replace(found, features=found.features - {"subgroups"})
    model = await LanguageModel.open(await ensure_model(language, _quiet))
    return await Engine.of_models(found, budget, model, None, _quiet, limits)


async def examine(
    language: str, batches: list[list[list[str]]], room: float | int | None = None, **how: Any
) -> dict[str, Any]:
    """The check at load and what it leaves behind, and what it finds of kernels that are broken (``_broken``).

    ``room``: what the weights have of their bytes (as a share), or bytes by which the pool is smaller than the model
    needs.
    """
    if room is not None:
        roomy: Any = await _engine(language, **how)
        workspace = sum(slab.size for slab in roomy.pool.slabs if slab.role == "workspace")
        weights = roomy.residency.sets["language"].nbytes
        await roomy.close()
        how["budget"] = workspace + (int(weights * room) // 256 * 256 if isinstance(room, float) else weights + room)
    engine: Any = await _engine(language, **how)
    try:
        report, memory = engine.checked, engine.memory()
        return {
            "kernels": [[each.operation, each.kernel, each.error] for each in report.findings],
            "broken": [await _broken(engine, batch) for batch in batches],
            "again": [each["error"] for each in (await engine.selfcheck())["kernels"]],
            "pipelines": engine.kernels.count,
            "decision": engine.decisions[0],
            "zeros": await _zeros(engine),
            "filled": engine.language.written,
            "same": all(memory[key] == engine.memory()[key] for key in ("asked", "live", "objects", "tenants")),
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


async def _broken(engine: Any, batch: list[list[str]]) -> dict[str, Any]:
    """With each (file, text in it, what it is replaced by) of a batch at once: the kernels whose code each of them
    changes, and those that are found wrong."""
    runner, sound = engine.language, engine.kernels
    changed = {}
    for file, old, new, *_ in batch:
        load = _patched([[file, old, new]])
        changed[file] = {shader for shader in sound._pipelines if _code(shader, load) != _code(shader, shader_text)}
    all_changed = set().union(*changed.values())
    assert len(all_changed) == sum(map(len, changed.values())), "each kernel is broken in one way at a time"
    kernels = Kernels(engine.device, _patched(batch))
    kernels._pipelines = {shader: made for shader, made in sound._pipelines.items() if shader not in all_changed}
    plans = runner.decode_plan, runner.prefill_plan
    await kernels.prepare(dispatch for plan in plans for dispatch in plan.dispatches)
    runner.build(kernels)
    try:
        report = await selfcheck.check(runner)
    finally:
        runner.build(sound)
    return {
        "changed": {file: sorted(shader.label for shader in shaders) for file, shaders in changed.items()},
        "wrong": sorted(each.kernel for each in report.wrong),
    }


def _patched(batch: list[list[str]]) -> Callable[[str], str]:
    texts = {}
    for file, old, new, *_ in batch:
        texts[file] = shader_text(file).replace(old, new)
        assert texts[file] != shader_text(file), f"{file} has no {old!r}"
    return lambda name: texts.get(name) or shader_text(name)


def _code(shader: Shader, load: Callable[[str], str]) -> str:
    return preprocess(load(f"{shader.file}.wgsl"), dict(shader.params), load)
