"""What is done at the same time while an engine is made, and what is left behind when that fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pyapp.engine import engine as engine_module
from pyapp.engine.engine import Engine
from pyapp.engine.language import LanguageModel
from pyapp.engine.loading import load
from pyapp.errors import BadModel
from pyapp.gpu.pool import Pool
from pyapp.weights.source import BytesSource

from .gpu_fakes import fake_device
from .tiny_models import TINY

MIB = 1 << 20
FILE = (TINY / "tiny-qwen2-Q4_0-untied.gguf").read_bytes()


def test_the_worker_is_there_before_regex_and_tiktoken_are() -> None:
    """They come with the vocabulary, beside the kernels' compilation, and with the first long text."""
    modules = "pyapp.worker, pyapp.engine.engine, pyapp.engine.cpu_vision, pyapp.weights.store, pyapp.vision.decode"
    script = f"import sys, {modules}; print(sorted({{'regex', 'tiktoken'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Kernels:
    """Compiles for ever."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def prepare(self, dispatches: Any, progress: Any) -> None:
        assert list(dispatches)
        self.log.append("compiling")
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append("compiling ended")


async def test_text_is_read_while_kernels_compile_and_before_weights_are_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    device = fake_device()
    device.before_scope_closes = lambda: asyncio.sleep(0)  # every scope is a way to the GPU's process and back
    model = await LanguageModel.open(SimpleNamespace(source=BytesSource(FILE)))

    async def blob(progress: Any) -> Any:
        log.append("weights")

    monkeypatch.setattr(model, "blob", blob)

    def bad_vocabulary() -> None:
        log.append("text")
        raise BadModel("The vocabulary is none.")

    with pytest.raises(BadModel, match="vocabulary"):
        await load(
            device, Pool(device, 64 * MIB), SimpleNamespace(), Kernels(log), model, None, lambda *report: None,  # type: ignore[arg-type]
            meanwhile=bad_vocabulary,
        )  # fmt: skip
    assert log == ["compiling", "text", "compiling ended"]


@pytest.mark.parametrize("late", [False, True])
async def test_a_file_that_is_none_leaves_no_device_behind(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Whether the device is there by then or comes when nobody waits for it any more."""
    asked, comes, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def device(found: Any, limits: Any) -> Any:
        asked.set()
        await comes.wait()
        return SimpleNamespace(close=closed.set)

    async def head(stored: Any) -> Any:
        await asked.wait()  # the device is asked for first: it takes its time in another process
        if not late:
            comes.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        raise BadModel("This is no model.")

    async def nothing() -> None:
        """There are no packed weights."""

    monkeypatch.setattr(engine_module, "_device", device)
    monkeypatch.setattr(LanguageModel, "open", head)
    stored = SimpleNamespace(read_ahead=nothing, stop_reading_ahead=nothing)
    with pytest.raises(BadModel, match="no model"):
        await Engine.create(
            adapter=SimpleNamespace(),  # type: ignore[arg-type]
            budget=MIB, language=stored, vision=None, progress=lambda *report: None,
        )  # fmt: skip
    comes.set()
    await asyncio.wait_for(closed.wait(), 2)
