"""The device side as a whole: one device, one pool, up to two models, and the turns they take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import timeline
from ..errors import BadModel, NoDevice
from ..gpu.device import Device
from ..gpu.kernels import Kernels
from ..gpu.lease import LeaseCoordinator
from ..gpu.occupancy import Owner
from ..gpu.pool import Pool, Region
from ..gpu.probe import Probe, probe
from ..gpu.replay import Ranges
from ..gpu.residency import Residency
from ..text.chat import ChatTemplate
from ..text.sampling import SamplingParams
from . import language as language_module
from . import selfcheck
from . import vision as vision_module
from .assets import Progress, reading_ahead, shader_text
from .generation import Generation
from .language import LanguageModel, LanguageRunner
from .loading import load
from .profile import profile
from .selfcheck import Verdicts
from .tuner import ShapeNotes
from .tuning import Tuning
from .vision import VisionModel, VisionRunner

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

TURN_SECONDS = 60.0
"""How long a picture waits for its turn. A text offers its own at every token, so whoever takes longer is stuck."""


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
        self.room = 1.0
        """Bytes of room for the language model's weights over the bytes they have: below 1 they are streamed."""
        self.decisions: list[dict[str, Any]] = []
        """What was decided for each model: {when (ms since the epoch), model, need, room (bytes), action}."""
        self.checked: selfcheck.Report | None = None
        """What the check of the kernels found at load; None where an earlier one counted."""
        self.lost: asyncio.Event = device.lost
        self._conversation = asyncio.Lock()
        """One text at a time: there is one KV cache."""
        self._activations: Region | None = None
        self._closed = False

    @classmethod
    async def create(
        cls, *, adapter: Probe | str, budget: int, language: Any | None, vision: Any | None, progress: Progress,
        limits: Mapping[str, int] | None = None, stream_below: float = 1.0, verdicts: Verdicts | None = None,
        shapes: ShapeNotes | None = None,
    ) -> Engine:  # fmt: skip
        """Opens the device, takes the pool, uploads the weights, compiles the kernels and checks what they compute.

        Args:
            adapter: what ``gpu.probe.probe`` found, or its argument.
            budget: bytes the pool may take.
            language, vision: stored models (``weights/store.py``), or None. Where the device's bindings are too small
                for the vision model, and there is a language model, ``Engine.vision`` is None.
            progress: called with (stage, done, total): "prepare" and "upload" in bytes, "shaders" in pipelines,
                "check" in kernels.
            limits: ``maxBufferSize`` and ``maxStorageBufferBindingSize`` (bytes) to keep to below the adapter's.
            stream_below: as in ``sizing.size_pool``.
            verdicts: kernels that need no check, since they have passed one lately.
            shapes: which shapes were the fastest at an earlier start; None leaves the usual ones and tries no others.

        Raises: NoDevice, OutOfMemory, BadModel, BadWeights, DeviceLost. What was taken is given back first.
        """
        found = await probe(adapter) if isinstance(adapter, str) else adapter
        # The GPU's process is busy with the device while the heads are read here, and with the kernels while the
        # vocabulary is. A file that cannot run is found out before the device is asked for memory.
        opening = asyncio.ensure_future(_device(found, limits))
        async with reading_ahead(vision, language):  # in the order in which they are uploaded
            try:
                with timeline.stage("language head", "language file"):
                    language_model = await LanguageModel.open(language) if language else None
                with timeline.stage("vision head", "vision file"):
                    vision_model = await VisionModel.open(vision) if vision else None
            except BaseException:
                opening.add_done_callback(_unwanted)  # not waited for: a GPU that hangs would keep the error
                raise
            engine = cls(await opening, budget)

            def read_text() -> None:
                if language_model:
                    with timeline.stage("tokenizer", "language head"):
                        engine.tokenizer, engine.chat = _text_of(language_model)

            await engine._load(language_model, vision_model, progress, stream_below, verdicts, shapes, read_text)
        return engine

    @classmethod
    async def of_models(
        cls, found: Probe, budget: int, language: LanguageModel | None, vision: VisionModel | None, progress: Progress,
        limits: Mapping[str, int] | None = None, stream_below: float = 1.0, verdicts: Verdicts | None = None,
        shapes: ShapeNotes | None = None,
    ) -> Engine:  # fmt: skip
        """``create`` for models that are open already. Such an engine knows ids only: it has no ``tokenizer`` and no
        ``chat``, and ``generate`` must be told where a text ends.
        """
        engine = cls(await _device(found, limits), budget)
        await engine._load(language, vision, progress, stream_below, verdicts, shapes, lambda: None)
        return engine

    async def _load(
        self, language: LanguageModel | None, vision: VisionModel | None, progress: Progress, stream_below: float,
        verdicts: Verdicts | None, shapes: ShapeNotes | None, meanwhile: Callable[[], None],
    ) -> None:  # fmt: skip
        """``meanwhile``: as in ``loading.load``. Closes the engine where it fails."""
        try:
            tuning = Tuning(shapes, language) if shapes and language else None
            loaded = await load(
                self.device, self.pool, self.residency, self.kernels, language, vision, progress, stream_below,
                tuning, meanwhile,
            )  # fmt: skip
            if loaded.language:
                check = partial(progress, "check")
                with timeline.stage("self-check", "recorded", "shapes tried"):
                    self.checked = await selfcheck.vouch(loaded.language, verdicts, check)
            if tuning:
                await tuning.keep()
        except BaseException:
            await self.close()
            raise
        self.context, self._activations = loaded.context, loaded.activations
        self.language, self.vision = loaded.language, loaded.vision
        self.room, self.decisions = loaded.room, list(loaded.decisions)

    def _runners(self) -> list[tuple[str, LanguageRunner | VisionRunner]]:
        named = ((vision_module.NAME, self.vision), (language_module.NAME, self.language))
        return [(name, runner) for name, runner in named if runner]

    @property
    def pulse(self) -> int:
        """Changes with whatever the GPU gets done and with all weights that come: stands still while it hangs."""
        return self.device.finished + self.residency.uploads

    # -- turns --------------------------------------------------------------------------------------------------

    def _enter(self, name: str) -> Awaitable[None] | None:
        self.check()
        return None if self.residency.whole(name) else self.residency.ensure(name)

    def _leave(self, name: str) -> None:
        runner = dict(self._runners()).get(name)
        cleared = False
        if runner is not None:
            cleared, runner.cleared = runner.cleared, False
        if self._activations is None or cleared or self._closed or self.lost.is_set():
            return
        Ranges(self.device, [self._activations.slice(0, self._activations.size)]).clear()

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

    def generate(
        self, ids: list[int], params: SamplingParams, *, step: int = 0, ends: frozenset[int] | None = None
    ) -> Generation:
        """The ids that follow a prompt; see ``Generation``. Raises ``ContextFull`` at its first ids.

        Args:
            step: how many of the last ``ids`` belong to the answer already: it goes on as if it had never stopped.
            ends: ids that end the text; the tokenizer's where it is None.
        """
        return self._generation(list(ids), params, self.tokenizer.eos_ids if ends is None else ends, step)

    def _generation(self, ids: list[int], params: SamplingParams, ends: frozenset[int], step: int = 0) -> Generation:
        return Generation(self._language(), self.leases, self._conversation, ids, params, ends, step)

    def _vision(self) -> VisionRunner:
        self.check()
        if self.vision is None:
            raise NoDevice("No vision model runs on this device.")
        return self.vision

    async def classify(self, rgb: np.ndarray) -> np.ndarray:
        """Logits float32 [1000] of a picture uint8 [224, 224, 3]."""
        runner = self._vision()
        async with self.leases.lease(
            vision_module.NAME, holder="a picture being looked at", timeout=TURN_SECONDS
        ) as lease:
            return await runner.classify(lease, rgb)

    # -- looking inside -----------------------------------------------------------------------------------------

    async def _inspect(self, ids: list[int], visit: Callable[[int, np.ndarray], None], last_only: bool) -> None:
        runner = self._language()
        async with self._conversation, self.leases.lease(language_module.NAME, holder="an inspection") as lease:
            try:
                await runner.all_logits(lease, ids, visit, last_only=last_only)
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
        generation = self._generation(list(ids), SamplingParams(max_tokens=n), frozenset())
        return [token async for fresh in generation for token in fresh]

    async def vision_times(self, rgb: np.ndarray, count: int) -> list[float]:
        """Seconds of a picture that is on the GPU until its logits are here, ``count`` times."""
        runner = self._vision()
        async with self.leases.lease(vision_module.NAME, holder="a picture being timed") as lease:
            return await runner.times(lease, rgb, count)

    def memory(self) -> dict[str, Any]:
        """The pool's figures (``Pool.memory``), pipelines counted among the objects; what has moved so far and the last
        moves; who has the turn (None: nobody) and how many wait for it; how many bytes of each layer's cache (a span
        whose label ends in .kv) are ``filled``."""
        figures = self.pool.memory()
        figures["objects"] = {**figures["objects"], "pipeline": self.kernels.count}
        figures["moved"] = {"bytes": self.residency.moved_bytes, "uploads": self.residency.uploads}
        figures["moves"] = list(self.residency.moves)
        holder = self.leases.current
        figures["lease"] = {"holder": holder and holder.holder, "waiting": self.leases.waiting}
        passing = self.residency.passing()
        for span in (span for slab in figures["slabs"] for span in slab["spans"]):
            if Owner(span["tenant"], span["label"]) in passing:
                span["streamed"] = True
            if self.language and span["label"].endswith(".kv"):
                span["filled"] = self.language.filled_bytes
        return figures

    def pool_status(self) -> dict[str, Any]:
        """``status.pool``: bytes of the budget, bytes in use, and what each model holds."""
        used = sum(slab.used for slab in self.pool.slabs)
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
        async with self._conversation, self.leases.lease(which, holder="a profile"):
            if isinstance(runner, VisionRunner):
                return await profile(self.device, runner.steps.replay, runner.plan)
            try:
                runner.hold_at(min(128, runner.context - 1))
                return await profile(self.device, runner.decode.replay, runner.decode_plan)
            finally:
                runner.clear_cache()

    async def selfcheck(self) -> dict[str, Any]:
        """Checks the language model's kernels now: {kernels: rows of {operation, kernel, error}, ms, msAtLoad}.

        ``error`` is over the tolerance: at most 1 is right (``selfcheck.Finding``). ``msAtLoad`` is None where an
        earlier visit's check counted.
        """
        runner = self._language()
        async with self._conversation, self.leases.lease(language_module.NAME, holder="a check of the kernels"):
            report = await selfcheck.check(runner)
        return {**report.as_dict(), "msAtLoad": self.checked and self.checked.ms}

    async def close(self) -> None:
        """Gives every GPU byte back, closes the device and lets go of the stored weights."""
        if not self._closed:
            self._closed = True
            self.pool.close()
            self.device.close()
            await self.residency.close()


async def _device(found: Probe, limits: Mapping[str, int] | None) -> Device:
    with timeline.stage("device", "adapter"):
        return await Device.open(found, limits)


def _unwanted(opening: asyncio.Future[Device]) -> None:
    """Closes a device that has come for nobody."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _text_of(model: LanguageModel) -> tuple[Tokenizer, ChatTemplate]:
    """How the model reads and writes text. Raises ``BadModel``, also for ids that its embedding does not have."""
    from ..text.tokenizer import Tokenizer  # and regex with it, which takes its time: now, beside the kernels

    metadata = model.file.metadata
    tokenizer = Tokenizer.from_gguf(metadata)
    if tokenizer.vocab_size != model.config.vocab:
        raise BadModel(
            f"The model file names {tokenizer.vocab_size} tokens and its embedding has {model.config.vocab} rows; "
            "it is damaged, download it again.",
            tokens=tokenizer.vocab_size,
            rows=model.config.vocab,
        )
    return tokenizer, ChatTemplate.from_gguf(metadata)
