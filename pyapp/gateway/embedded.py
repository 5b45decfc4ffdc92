"""An OpenAI-compatible server of our own: llama.cpp in a child process, for a gateway without an upstream."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pyapp

from ..errors import CloudUnavailable
from .settings import Settings

log = logging.getLogger("tandem.gateway")

_RESTART_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the child listens, and the key it wants."""

    url: str
    key: str


class EmbeddedServer:
    """Starts the child once, in the background or when first asked for, and again if it dies.

    A process of its own keeps a crash or the load of llama.cpp out of the gateway. It holds the reading end of a pipe
    whose other end is ours: it ends when we close that, or when we die.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: Process | None = None
        self._address: Address | None = None
        self._starting: asyncio.Task[Address] | None = None
        self._stderr_reader: asyncio.Task[None] | None = None
        self._stderr: deque[str] = deque(maxlen=20)
        self._failed_at = 0.0
        self._closed = False

    @property
    def ready(self) -> bool:
        return self._address is not None and self._process is not None and self._process.returncode is None

    @property
    def begun(self) -> bool:
        """Whether it has been started, or tried to be."""
        return self._starting is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> asyncio.Task[Address]:
        """Begins to start the child unless that has been done; the task's result is its address."""
        if self._starting is None or (self._starting.done() and not self.ready):
            self._starting = asyncio.create_task(self._start())
            # Whoever asks for the address gets the failure; a start in the background must not warn about it too.
            self._starting.add_done_callback(_mark_seen)
        return self._starting

    async def address(self) -> Address:
        """The running child's address. Raises ``CloudUnavailable`` (503) with the reason when there is none."""
        if self._address is not None and self.ready:
            return self._address
        # Shielded: one client that gives up must not stop the start that the others wait for.
        return await asyncio.shield(self.start())

    async def close(self) -> None:
        self._closed = True
        if self._starting and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._stop()

    async def _start(self) -> Address:
        if self._closed:
            raise CloudUnavailable("The gateway is shutting down.", status=503)
        await self._stop()
        model = self._model()
        if (pause := self._failed_at + _RESTART_PAUSE_SECONDS - time.monotonic()) > 0:
            raise CloudUnavailable(
                "The gateway's embedded language server did not start; see the gateway's log, then try again.",
                status=503,
                retry_after=str(int(pause) + 1),
            )
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.embedded_start_seconds):
                address = await self._launch(model)
        except TimeoutError:
            await self._fail(f"not ready after {self._settings.embedded_start_seconds:g} s")
        except asyncio.CancelledError:
            await self._stop()
            raise
        self._address = address
        log.info("embedded server ready pid=%d seconds=%.2f", self.pid or 0, time.monotonic() - began)
        return address

    def _model(self) -> Path:
        model = self._settings.model_path
        if model is None or not model.is_file():
            raise CloudUnavailable(
                "The gateway has no language model: set TANDEM_UPSTREAM_URL to an OpenAI-compatible server, or "
                "TANDEM_MODEL_PATH to a GGUF file.",
                status=503,
            )
        return model

    async def _launch(self, model: Path) -> Address:
        root = str(Path(pyapp.__file__).resolve().parent.parent)
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
        # A session of its own: Ctrl-C in the terminal is for the gateway, which then ends the child.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pyapp.gateway.embedded_child",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env,
            start_new_session=True,
        )
        self._process = process
        assert process.stdin
        assert process.stdout
        self._stderr.clear()
        self._stderr_reader = asyncio.create_task(self._keep_stderr(process))
        key = secrets.token_urlsafe(24)
        options = {
            "model": str(model),
            "context": self._settings.embedded_context,
            "slots": self._settings.embedded_slots,
            "threads": self._settings.embedded_threads,
            "key": key,
        }
        try:
            process.stdin.write(json.dumps(options).encode() + b"\n")
            await process.stdin.drain()
            answer = json.loads(await process.stdout.readline())
            return Address(answer["url"], key)
        except (OSError, ValueError, KeyError):
            await process.wait()
            await self._fail(f"exit status {process.returncode}")

    async def _fail(self, why: str) -> NoReturn:
        await self._stop()
        self._failed_at = time.monotonic()
        log.error("embedded server did not start (%s): %s", why, " | ".join(self._stderr) or "it said nothing")
        raise CloudUnavailable(
            f"The gateway's embedded language server did not start ({why}); see the gateway's log.", status=503
        )

    async def _keep_stderr(self, process: Process) -> None:
        assert process.stderr
        while chunk := await process.stderr.read(4096):
            self._stderr.extend(line[:300] for line in chunk.decode(errors="replace").splitlines() if line.strip())

    async def _stop(self) -> None:
        process, self._process, self._address = self._process, None, None
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        try:
            async with asyncio.timeout(2.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._stderr_reader:
            await asyncio.gather(self._stderr_reader, return_exceptions=True)
            self._stderr_reader = None


def _mark_seen(task: asyncio.Task[Address]) -> None:
    if not task.cancelled():
        task.exception()
