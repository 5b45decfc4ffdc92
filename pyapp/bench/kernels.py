"""The bench of kernels: what each takes, against ceilings that the same page measures, and what other choices would do.

Rows of plain data, ``{"bench": "kernels", "row": ...}``: ``ceiling``, ``kernel``, ``step``, ``shape``, ``attention``,
``tile``, ``tuned``, ``fusion``, ``left out`` (for want of time), ``end``; what goes wrong is a row with ``error``, and
the rest goes on. Times in us, by the ``clock`` that the row names (``gpu`` or ``wall``: ``engine.timing``), bytes, GB/s
and GFLOP/s of 10**9. ``docs/performance.md`` says how to read them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..engine.engine import Engine
from ..engine.language import NAME as LANGUAGE
from ..engine.language import LanguageModel, LanguageRunner
from ..engine.timing import Stopwatch
from ..engine.vision import NAME as VISION
from ..engine.vision import VisionModel
from ..errors import NoDevice, TandemError
from ..gpu.probe import probe
from ..weights.store import ensure_model
from . import synthetic
from .ceilings import MIB, Ceilings, measure_ceilings
from .kernel_options import KernelOptions, is_made_up
from .kernel_rows import kernel_rows
from .pairs import quiet
from .subjects import check_resident, chunk_of_prompt, picture, step_at
from .sweep import Sweep, stopped

Row = dict[str, Any]
SPARE_CONTEXT = 256
"""Positions past the last that is measured: a row of steps goes on into them."""


class Rows:
    """Posts rows as JSON, each with what it is about."""

    def __init__(self, post: Callable[[str], Any], **about: Any) -> None:
        self._post = post
        self._about = about

    def about(self, **more: Any) -> Rows:
        return Rows(self._post, **{**self._about, **more})

    def __call__(self, row: Row) -> None:
        self._post(json.dumps({"bench": "kernels", **self._about, **row}))

    def failed(self, what: str, error: Exception) -> None:
        text = error.message if isinstance(error, TandemError) else f"{type(error).__name__}: {error}"
        self({"what": what, "error": text})

    async def attempt(self, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """The result of ``work``; None, and a row, where it fails."""
        try:
            return await work()
        except Exception as error:
            self.failed(what, error)
            return None


async def run(query: str, base: str, post: Callable[[str], Any]) -> None:
    """Measures what ``query`` (JSON: ``KernelOptions.of``) asks for. Never raises. ``base``: the site's address."""
    rows = Rows(post)
    try:
        options = KernelOptions.of(json.loads(query))
        found = await probe(options.adapter)
        post(json.dumps({"adapter": found.adapter, "software": found.software, "tier": found.tier}))
    except Exception as error:
        rows.failed("the options, or the GPU", error)
        return
    start = time.perf_counter()
    ceilings = Ceilings()
    if "ceilings" in options.parts:
        said = rows.about(row="ceiling")
        measured = await rows.attempt("ceilings", lambda: measure_ceilings(found, options, said, said.failed))
        ceilings = measured or ceilings
    for model in options.models:
        said = rows.about(model=model)
        await said.attempt("model", lambda model=model, said=said: _language(model, options, base, ceilings, said))  # type: ignore[misc]
    if options.vision and "kernels" in options.parts:
        said = rows.about(model=options.vision)
        await said.attempt("model", lambda: _vision(options, base, ceilings, said))
    rows({"row": "end", "seconds": time.perf_counter() - start})


def _url(model: str, base: str) -> str:
    return model if "/" in model else f"{base}models/{model}/manifest.json"


async def _language(name: str, options: KernelOptions, base: str, ceilings: Ceilings, rows: Rows) -> None:
    made_up = is_made_up(name)
    if made_up:
        longest = options.longest_context
        model = await synthetic.language_model(name, longest + min(longest, SPARE_CONTEXT))
    else:
        model = await LanguageModel.open(await ensure_model(_url(name, base), quiet))
    try:
        engine = await Engine.of_models(await probe(options.adapter), options.pool * MIB, model, None, quiet)
        try:
            runner = engine.language
            assert runner is not None
            check_resident(runner.weights.placement.streamed, name)
            async with engine.leases.lease(LANGUAGE, holder="the bench of kernels"):
                try:
                    await _parts(engine, runner, options, ceilings, rows)
                finally:
                    runner.clear_cache()
        finally:
            await engine.close()
    finally:
        await (model.stored.discard(model.layout) if made_up else model.stored.close())


async def _parts(
    engine: Engine, runner: LanguageRunner, options: KernelOptions, ceilings: Ceilings, rows: Rows
) -> None:
    watch = await Stopwatch.of(engine.pool)

    async def halted() -> bool:
        return await stopped(runner)

    if "kernels" in options.parts:
        for context in options.contexts:
            subject = step_at(runner, context)
            await rows.attempt(
                f"decode at {context}",
                lambda subject=subject: kernel_rows(watch, subject, ceilings, options, rows, rows.failed, halted),  # type: ignore[misc]
            )
        chunk = chunk_of_prompt(runner)
        await rows.attempt("prefill", lambda: kernel_rows(watch, chunk, ceilings, options, rows, rows.failed))
    sweep = Sweep(engine, runner, watch, options, rows, rows.failed)
    if "fusions" in options.parts:  # before the sweep, which has many more rows
        await rows.attempt("fusions", sweep.fusions)
    if "shapes" in options.parts:
        begin, seconds = time.perf_counter(), options.seconds / len(options.models)
        # What one of them leaves of its share is there for the next.
        await rows.attempt("products", lambda: sweep.products(begin + seconds / 2))
        await rows.attempt("tuned", sweep.tuned)
        await rows.attempt("attention", lambda: sweep.attention(begin + seconds * 3 / 4))
        await rows.attempt("tiles", lambda: sweep.tiles(begin + seconds))
    for message in engine.device.errors:
        rows({"what": "the GPU", "error": message})


async def _vision(options: KernelOptions, base: str, ceilings: Ceilings, rows: Rows) -> None:
    assert options.vision
    model = await VisionModel.open(await ensure_model(_url(options.vision, base), quiet))
    try:
        engine = await Engine.of_models(await probe(options.adapter), options.pool * MIB, None, model, quiet)
        try:
            if engine.vision is None:
                raise NoDevice("The vision model does not run on this device: its bindings are too small.")
            async with engine.leases.lease(VISION, holder="the bench of kernels"):
                watch = await Stopwatch.of(engine.pool)
                await kernel_rows(watch, picture(engine.vision), ceilings, options, rows, rows.failed)
        finally:
            await engine.close()
    finally:
        await model.stored.close()
