"""The device side as a whole: one device, one pool, up to two models, and the turns they take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import NoDevice
from ..gpu.device import Device
from ..gpu.kernels import Kernels
from ..gpu.lease import LeaseCoordinator
from ..gpu.plan import Plan
from ..gpu.pool import Pool, Region
from ..gpu.probe import Probe, probe
from ..gpu.replay import clear
from ..gpu.residency import Residency
from ..text.chat import ChatTemplate
from ..text.sampling import SamplingParams
from ..text.tokenizer import Tokenizer
from . import language as language_module
from . import vision as vision_module
from .assets import Progress, shader_text
from .generation import Generation
from .language import LanguageModel, LanguageRunner
from .profile import profile
from .sizing import Need, size_pool
from .vision import VisionModel, VisionRunner


class Engine:
    """Models ready to run. Make one with ``create``; ``lost`` is set when the GPU goes away."""

    tokenizer: Tokenizer
    chat: ChatTemplate
    context: int

    def __init__(self, device: Device, budget: int) -> None:
        self.device = device
        self.pool = Pool(device, budget)
        self.residency = Residency(device, self.pool)
        self.kernels = Kernels(device, shader_text)
        self.leases = LeaseCoordinator(self._enter, self._leave)
        self.language: LanguageRunner | None = None
        self.vision: VisionRunner | None = None
        self.lost: asyncio.Event = device.lost
        self._activations: Region | None = None
        self._closed = False

    @classmethod
    async def create(
        cls, *, adapter: Probe | str, budget: int, language: Any | None, vision: Any | None, progress: Progress
    ) -> Engine:
        """Opens the device, takes the pool, uploads the weights and compiles the kernels.

        Args:
            adapter: what ``gpu.probe.probe`` found, or its argument.
            budget: bytes the pool may take.
            language, vision: stored models (``weights/store.py``), or None.
            progress: called with (stage, done, total): "prepare" and "upload" in bytes, "shaders" in pipelines.

        Raises: NoDevice, OutOfMemory, BadModel, BadWeights, DeviceLost. What was taken is given back first.
        """
        found = await probe(adapter) if isinstance(adapter, str) else adapter
        # A file that cannot run is found out before the GPU is asked for anything.
        language_model = await LanguageModel.open(language) if language else None
        vision_model = await VisionModel.open(vision) if vision else None
        engine = cls(await Device.open(found), budget)
        try:
            if language_model:
                # Before the download's head is let go, and before the pool is taken: a bad vocabulary costs nothing.
                engine.tokenizer = Tokenizer.from_gguf(language_model.file.metadata)
                engine.chat = ChatTemplate.from_gguf(language_model.file.metadata)
            await engine._load(language_model, vision_model, progress)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _load(self, language: LanguageModel | None, vision: VisionModel | None, progress: Progress) -> None:
        models = [model for model in (language, vision) if model]
        limits = self.device.limits
        if vision:
            self.vision = VisionRunner(vision, self.device, self.pool, self.residency)
        need = self._need(language, vision)
        sizing = size_pool(self.pool.budget, need, limits.max_buffer, limits.max_binding)
        self.context = sizing.context
        if language:
            self.language = LanguageRunner(language, self.device, self.pool, self.residency, sizing.context)
        await self.pool.add_slabs("weights", sizing.weights, need.largest_block)
        await self.pool.add_slabs("workspace", sizing.workspace, need.activations)
        self._activations = self.pool.take("workspace", need.activations, "activations")
        assert self._activations is not None, "the pool was sized for it"
        compiling = asyncio.ensure_future(
            self.kernels.prepare(
                (dispatch for plan in self._plans() for dispatch in plan.dispatches),
                lambda done, total: progress("shaders", done, total),
            )
        )
        try:
            if language and self.language:
                self.language.bind_memory(self._activations, await language.rope_factors())
            if self.vision:
                self.vision.bind_memory(self._activations)
            for name, model in ((language_module.NAME, language), (vision_module.NAME, vision)):
                if model:
                    self.residency.register(name, model.layout.blocks, await model.blob(progress))
            for name, runner in self._runners():
                await self.residency.ensure(name, lambda done, total: progress("upload", done, total))
                await compiling
                runner.build(self.kernels)
        finally:
            compiling.cancel()
            await asyncio.gather(compiling, return_exceptions=True)
        for model in models:
            # The packed blob is kept, so of the download only the file's head is needed from now on.
            await model.stored.release_chunks(model.file.data_offset)

    def _need(self, language: LanguageModel | None, vision: VisionModel | None) -> Need:
        layouts = [model.layout for model in (language, vision) if model]
        activations = self.vision.plan.memory.peak if self.vision else 0
        blocks = tuple(tuple(block.nbytes for block in layout.blocks) for layout in layouts)
        if not language:
            return Need(blocks, activations)
        config = language.config
        # Activations do not depend on the context, so any context's plans tell their peak.
        plans = language.plans(self.device.limits, config.context)
        return Need(
            blocks,
            max(activations, *(plan.memory.peak for plan in plans)),
            per_position=config.kv_bytes_per_token + config.head_dim * 4,
            position_in_layer=2 * config.kv_rows * 4,
            layers=config.layers,
            full_context=config.context,
        )

    def _plans(self) -> list[Plan]:
        plans = [self.vision.plan] if self.vision else []
        if self.language:
            plans += [self.language.prefill_plan, self.language.decode_plan]
        return plans

    def _runners(self) -> list[tuple[str, LanguageRunner | VisionRunner]]:
        named = ((vision_module.NAME, self.vision), (language_module.NAME, self.language))
        return [(name, runner) for name, runner in named if runner]

    # -- turns --------------------------------------------------------------------------------------------------

    async def _enter(self, name: str) -> None:
        self.check()
        moved = await self.residency.ensure(name)
        if moved:
            dict(self._runners())[name].rebind(moved)

    async def _leave(self, name: str) -> None:
        if self._activations is not None and not self._closed and not self.lost.is_set():
            clear(self.device, [self._activations.slice(0, self._activations.size)])

    def check(self) -> None:
        """Raises ``DeviceLost`` when nothing can run any more: also after ``close``, which only the client asks for,
        and which for whoever still waits for a turn is a device that went away.
        """
        self.device.check()

    def _language(self) -> LanguageRunner:
        self.check()
        if self.language is None:
            raise NoDevice("No language model runs on this device.")
        return self.language

    def _runner(self, which: str) -> LanguageRunner | VisionRunner:
        runner = dict(self._runners()).get(which)
        if runner is None:
            raise NoDevice(f"No {which} model runs on this device.")
        return runner

    # -- work ---------------------------------------------------------------------------------------------------

    def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        """The ids that follow a prompt; see ``Generation``. Raises ``ContextFull`` at its first id."""
        return Generation(self._language(), self.leases, list(prompt_ids), params, self.tokenizer.eos_ids)

    async def classify(self, rgb: np.ndarray) -> np.ndarray:
        """Logits float32 [1000] of a picture uint8 [224, 224, 3]."""
        self.check()
        if self.vision is None:
            raise NoDevice("No vision model runs on this device.")
        async with self.leases.lease(vision_module.NAME, holder="a picture being looked at"):
            return await self.vision.classify(rgb)

    # -- looking inside -----------------------------------------------------------------------------------------

    async def _inspect(self, ids: list[int], visit: Callable[[int, np.ndarray], None], last_only: bool) -> None:
        runner = self._language()
        async with self.leases.lease(language_module.NAME, holder="an inspection"):
            try:
                await runner.all_logits(ids, visit, last_only=last_only)
            finally:
                runner.clear_cache()

    async def logits(self, ids: list[int]) -> np.ndarray:
        """Logits float32 [vocab] after the last id, from an empty context."""
        out: list[np.ndarray] = []
        await self._inspect(ids, lambda _, logits: out.append(logits), last_only=True)
        return out[0]

    async def nll(self, ids: list[int]) -> np.ndarray:
        """-ln p(ids[i + 1] | ids[..i]) in nats, float32 [len(ids) - 1]."""
        out = np.zeros(len(ids) - 1, np.float32)

        def visit(position: int, logits: np.ndarray) -> None:
            wide = logits.astype(np.float64)
            top = wide.max()
            out[position] = top + np.log(np.exp(wide - top).sum()) - wide[ids[position + 1]]

        await self._inspect(ids[:-1], visit, last_only=False)
        return out

    async def greedy(self, ids: list[int], n: int) -> list[int]:
        """``n`` greedy ids, going on past an end token. Raises ``ContextFull`` when they do not fit."""
        runner = self._language()
        runner.check_room(len(ids) + n - 1)
        generation = Generation(runner, self.leases, list(ids), SamplingParams(max_tokens=n), frozenset())
        return [token async for token in generation]

    def memory(self) -> dict[str, Any]:
        """The pool's figures (``Pool.memory``), pipelines counted among the objects."""
        figures = self.pool.memory()
        figures["objects"] = {**figures["objects"], "pipeline": self.kernels.count}
        return figures

    def pool_status(self) -> dict[str, Any]:
        """``status.pool``: bytes of the budget, bytes in use, and what each model holds."""
        used = sum(slab.free.used for slab in self.pool.slabs)
        tenants = self.residency.tenants()
        held = sum(tenant["resident"] for tenant in tenants)
        if used > held:
            tenants.append({"name": "workspace", "bytes": used - held, "resident": used - held})
        return {"budget": self.pool.budget, "used": used, "tenants": tenants}

    def plan(self, which: str) -> dict[str, Any]:
        """The table of what runs: ``language`` (one decode step) or ``vision``."""
        runner = self._runner(which)
        plan = runner.plan if isinstance(runner, VisionRunner) else runner.decode_plan
        # A step samples one way or the other; the table shows the greedy one.
        rows = [row for row in plan.rows() if row["operation"] != "sample_random"]
        per_layer = len([row for row in rows if row["operation"].startswith("layers.0.")])
        return {
            "rows": rows,
            "activations": {"peak": plan.memory.peak, "sum": plan.memory.sum},
            "dispatchesPerLayer": per_layer,
        }

    async def profile(self, which: str) -> list[dict[str, Any]]:
        """Microseconds of each distinct kernel of ``language`` (a decode step) or ``vision``: ``profile.profile``."""
        self.check()
        runner = self._runner(which)
        async with self.leases.lease(which, holder="a profile"):
            if isinstance(runner, VisionRunner):
                return await profile(self.device, runner.replay, runner.plan)
            try:
                runner.hold_at(min(128, runner.context - 1))
                return await profile(self.device, runner.decode, runner.decode_plan)
            finally:
                runner.clear_cache()

    async def close(self) -> None:
        """Gives every GPU byte back, closes the device and lets go of the stored weights."""
        if not self._closed:
            self._closed = True
            self.pool.close()
            self.device.close()
            await self.residency.close()
