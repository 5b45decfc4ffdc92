"""Engines of exact budgets, run in the worker: what moves, what comes out, what is left. Bytes everywhere."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from pyapp.engine.engine import Engine
from pyapp.engine.generation import Generation
from pyapp.errors import LeaseTimeout, StaleLease
from pyapp.gpu.lease import Lease
from pyapp.text.sampling import SamplingParams
from pyapp.weights.store import ensure_model

PICTURE = np.random.default_rng(5).integers(0, 256, (224, 224, 3), np.uint8)


def _quiet(stage: str, loaded: int, total: int | None = None) -> None:
    """Progress that nobody watches."""


async def _engine(language: str, vision: str | None, budget: int, limits: dict[str, int] | None = None) -> Engine:
    return await Engine.create(
        adapter="software",
        budget=budget,
        language=await ensure_model(language, _quiet),
        vision=await ensure_model(vision, _quiet) if vision else None,
        progress=_quiet,
        limits=limits,
    )


async def talk(
    language: str, vision: str | None, ids: list[int], n: int, budget: int, limits: dict[str, int] | None = None
) -> dict[str, Any]:
    """An engine of this budget: what its models need, what they say, and what their switches move."""
    engine: Any = await _engine(language, vision, budget, limits)
    try:
        return await _talk(engine, ids, n)
    finally:
        await engine.close()
        assert engine.pool.live == 0


async def revisit(language: str, vision: str) -> dict[str, Any]:
    """An engine of a model that an earlier one has packed: the bytes moved to the GPU, and those of packed weights
    that this thread had to read for it. And how many bytes of the vision model's own file are missing."""
    from pyapp.weights.browser import OpfsFiles

    reads: list[tuple[int, int]] = []
    open_file = OpfsFiles.open

    async def counting(self: OpfsFiles, name: str, write: bool = False) -> Any:
        file: Any = await open_file(self, name, write)
        if file and name.endswith(".packed"):
            read = file.read

            def counted(offset: int, length: int) -> Any:
                reads.append((offset, length))
                return read(offset, length)

            file.read = counted
        return file

    OpfsFiles.open = counting  # type: ignore[method-assign]
    try:
        engine = await _engine(language, None, 1 << 30)
        moved = engine.residency.moved_bytes
        await engine.close()
    finally:
        OpfsFiles.open = open_file  # type: ignore[method-assign]
    file = (await ensure_model(vision, _quiet)).source
    return {"moved": moved, "read": reads, "missing": file.size - file.near}


async def _talk(engine: Any, ids: list[int], n: int) -> dict[str, Any]:
    moved, picture = [], None
    greedy: list[int] = []
    before = engine.memory()
    for _ in range(2):
        start = engine.residency.moved_bytes
        if engine.vision:
            picture = await engine.classify(PICTURE)
            moved.append(["vision", engine.residency.moved_bytes - start])
            start = engine.residency.moved_bytes
        greedy = await engine.greedy(ids, n)
        moved.append(["language", engine.residency.moved_bytes - start])
    logits = await engine.logits(ids)
    after = engine.memory()
    weights = engine.residency.sets["language"]
    config = engine.language.config
    return {
        "language": weights.nbytes,
        "vision": engine.residency.sets["vision"].nbytes if engine.vision else 0,
        "workspace": sum(slab["size"] for slab in after["slabs"] if slab["role"] == "workspace"),
        "position": config.kv_bytes_per_token + config.head_dim * 4,
        "greedy": greedy,
        "logits": [float(value) for value in logits],
        "picture": None if picture is None else [float(value) for value in picture],
        "moved": moved,
        "room": engine.room,
        "decisions": engine.decisions,
        "context": engine.context,
        "streamed": sum(weights.blocks[index].nbytes for index in weights.placement.streamed),
        "blocks": len(weights.blocks),
        "largest_buffer": max(slab["size"] for slab in after["slabs"]),
        "largest_binding": max(
            engine.language._resolve(plan, binding)[2]
            for plan in (engine.language.decode_plan, engine.language.prefill_plan)
            for dispatch in plan.dispatches
            for binding in dispatch.bindings
        ),
        "same_objects": all(before[key] == after[key] for key in ("asked", "live", "objects")),
        "errors": engine.device.errors,
        "leased": engine.leases.current is not None,
        "zeros": await _zeros(engine),
        "plans": {which: engine.plan(which)["activations"] for which in ("language", "vision") if which in
                  [name for name, _ in engine._runners()]},
    }  # fmt: skip


async def _zeros(engine: Any) -> bool:
    """Whether activations and KV cache read back as zeros."""
    import tandem_replay

    runner = engine.language
    regions = [engine._activations, *(region for name, region in runner._caches.items() if name != "rope")]
    staging = runner._logits_staging
    for region in regions:
        step = staging.size // 256 * 256
        for offset in range(0, region.size, step):
            buffer, at, size = region.slice(offset, min(step, region.size - offset))
            data = await tandem_replay.readBack(engine.device.handle, buffer, at, size, staging)
            if np.frombuffer(data.to_bytes(), np.uint32).any():
                return False
    return True


async def turns(language: str, vision: str, ids: list[int], n: int) -> dict[str, Any]:
    """Leases as they are held and missed: pictures between tokens, a time-out, a stale lease, cut generations."""
    engine: Any = await _engine(language, vision, 1 << 30)
    try:
        alone = await engine.greedy(ids, n)
        order: list[str] = []

        async def write(name: str) -> list[int]:
            out: list[int] = []
            async for fresh in engine.generate(ids, SamplingParams(max_tokens=n)):
                order.extend([name] * len(fresh))
                out += fresh
            return out

        async def look() -> None:
            await asyncio.sleep(0)
            for _ in range(2):
                await engine.classify(PICTURE)
                order.append("picture")

        first, second, _ = await asyncio.gather(write("a"), write("b"), look())
        half = n // 2
        rest = SamplingParams(max_tokens=n - half)
        continued = await _ids(engine.generate(ids + alone[:half], rest, step=half))
        seeded = SamplingParams(max_tokens=n, temperature=1.5, seed=11)
        drawn = await _ids(engine.generate(ids, seeded))
        rest = SamplingParams(max_tokens=n - half, temperature=1.5, seed=11)
        resumed = await _ids(engine.generate(ids + drawn[:half], rest, step=half))
        stale = ""
        try:
            await engine.language.steps(Lease("language", 1, "nobody", active=False), SamplingParams(), 1)
        except StaleLease as error:
            stale = error.message
        late = ""
        async with engine.leases.lease("language", holder="a test"):
            task = asyncio.ensure_future(_wait_for(engine, 0.05))
            await asyncio.wait([task])
            late = str(task.result())
        cut = []
        for stop in range(3):
            cutting = asyncio.ensure_future(engine.greedy(ids, n))
            for _ in range(7 * stop):
                await asyncio.sleep(0)
            cutting.cancel()
            await asyncio.wait([cutting])
            cut.append([engine.leases.current is None, engine.leases.waiting, await _zeros(engine)])
        return {
            "alone": alone, "first": first, "second": second, "order": order, "continued": alone[:half] + continued,
            "drawn": drawn, "resumed": drawn[:half] + resumed, "stale": stale, "late": late, "cut": cut,
            "again": await engine.greedy(ids, n), "errors": engine.device.errors,
        }  # fmt: skip
    finally:
        await engine.close()


async def _ids(generation: Generation) -> list[int]:
    return [token async for fresh in generation for token in fresh]


async def _wait_for(engine: Any, seconds: float) -> str:
    try:
        async with engine.leases.lease("vision", holder="the next", timeout=seconds):
            return "granted"
    except LeaseTimeout as error:
        return error.message
