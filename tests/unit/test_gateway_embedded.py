"""The embedded llama.cpp with the real SmolLM2 from the cache folder, and what becomes of its process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyapp.errors import BadArgument, CloudUnavailable
from pyapp.gateway.app import create_app
from pyapp.gateway.embedded import EmbeddedServer
from pyapp.gateway.serve import serve
from pyapp.gateway.settings import Settings
from tests.unit.gateway_fakes import serve_app
from tests.unit.gateway_world import PATH, error_of, events_of

ROOT = Path(__file__).resolve().parents[2]


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(holds: Callable[[], object]) -> bool:
    """Waits up to 5 s for what nothing announces, such as the end of another process."""
    async with asyncio.timeout(5.0):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return True


async def gone(pid: int) -> bool:
    return await until(lambda: not alive(pid))


async def test_the_default_gateway_writes_with_the_real_model() -> None:
    app = create_app(None, Settings(model_path=Settings.from_env().model_path))
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    async with serve_app(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        first, second = await asyncio.gather(
            *(client.post(PATH, json={"messages": question, "max_tokens": 24, "seed": 1}) for _ in range(2))
        )
        short = await client.post(PATH, json={"messages": question, "max_tokens": 3, "seed": 2**53 - 1})
        long = await client.post(PATH, json={"prompt": "word " * 20_000})
        health = await client.get("/healthz")
        pid = app.state.upstream.embedded.pid
        async with client.stream("POST", PATH, json={"prompt": "Count.", "max_tokens": 2000}) as response:
            await anext(response.aiter_bytes())
        began = time.monotonic()
    assert time.monotonic() - began < 5.0  # a client that left does not hold the end up
    assert await gone(pid)

    events = events_of(first)
    assert "Paris" in "".join(event.get("text", "") for event in events)
    usage = events[-1]["usage"]
    assert usage["finish_reason"] == "stop"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens"] < 24
    assert events_of(second)[-1]["usage"]["completion_tokens"] > 0
    assert events_of(short)[-1]["usage"]["finish_reason"] == "length"
    assert events_of(short)[-1]["usage"]["completion_tokens"] == 3
    error_of(long, 400, "context_full")
    assert health.json() == {"status": "ok", "upstream": "embedded", "ready": True}


async def test_a_child_that_died_is_started_again() -> None:
    server = EmbeddedServer(Settings(model_path=Settings.from_env().model_path))
    try:
        first, together = await asyncio.gather(server.address(), server.address())
        assert first == together
        pid = server.pid
        assert pid
        async with httpx.AsyncClient() as client:
            body = {"messages": [{"role": "user", "content": "x"}]}
            refused = await client.post(f"{first.url}/v1/chat/completions", json=body)
        assert refused.status_code == 401  # other users of this machine have no key
        os.kill(pid, signal.SIGKILL)
        assert await gone(pid)
        await until(lambda: not server.ready)  # asyncio hears of the death a moment later
        assert (await server.address()).key != first.key
        assert server.pid != pid
    finally:
        await server.close()


@pytest.mark.parametrize(("content", "message"), [(None, "has no language model"), (b"GGUF junk", "did not start")])
async def test_no_model_or_a_broken_one_is_a_clear_503(tmp_path: Path, content: bytes | None, message: str) -> None:
    model = tmp_path / "model.gguf"
    if content:
        model.write_bytes(content)
    app = create_app(None, Settings(model_path=model))
    async with serve_app(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        for _ in range(2):
            assert message in error_of(await client.post(PATH, json={"prompt": "x"}), 503, "cloud_unavailable")
        assert (await client.get("/healthz")).json()["ready"] is False


async def test_a_start_that_takes_too_long_is_given_up_and_leaves_no_process(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "model.gguf")  # opening it for reading never returns

    class Piped(EmbeddedServer):
        def _model(self) -> Path:
            return pipe

    server = Piped(Settings(embedded_start_seconds=1.0))
    starting = server.start()
    await until(lambda: server.pid)
    pid = server.pid
    assert pid
    with pytest.raises(CloudUnavailable, match="not ready after 1 s"):
        await starting
    assert await gone(pid)
    await server.close()


def start_gateway(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TANDEM_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pyapp.gateway", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environ,
    )
    assert process.stdout
    return process, process.stdout.readline().strip()


def child_of(url: str, pid: int) -> int:
    deadline = time.monotonic() + 60
    while not httpx.get(f"{url}/healthz").json()["ready"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_no_end_of_the_gateway_leaves_an_orphan(how: signal.Signals) -> None:
    process, url = start_gateway()
    with process:
        try:
            child = await asyncio.to_thread(child_of, url, process.pid)
            assert alive(child)
            process.send_signal(how)
            assert process.wait(10) == (0 if how == signal.SIGINT else -how)
            assert await gone(child)
        finally:
            process.kill()


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadArgument, match=f"Port {port} on 127.0.0.1 cannot be taken"):
            serve(None, port=port, settings=Settings(embedded="off"))
    with pytest.raises(BadArgument, match="cannot be used"):
        serve(None, host="no.such.host.invalid", settings=Settings(embedded="off"))


def test_the_child_says_why_it_cannot_start(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": str(tmp_path / "none"), "context": 64, "slots": 1, "threads": 1, "key": "k"}
    done = subprocess.run(
        [sys.executable, "-m", "pyapp.gateway.embedded_child"],
        input=json.dumps(options) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert set(json.loads(done.stdout)) == {"error"}
