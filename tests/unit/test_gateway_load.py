"""Many streams at once through the gateway, in short; and that what measures them sees what goes wrong."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from pyapp.gateway import upstream
from pyapp.gateway.deadline import Deadline
from pyapp.gateway.settings import Settings
from pyapp.setup import gateway_bench
from pyapp.setup.failure import SetupError
from pyapp.setup.gateway_bench import Figures, failures, latency, memory, process, report
from pyapp.setup.gateway_load import load
from pyapp.setup.scripted_upstream import DONE, FINISH, HEAD, TOKEN, address, chunk, mark, start
from tests.conftest import ROOT
from tests.unit.gateway_fakes import gateway
from tests.unit.gateway_world import PATH
from tests.unit.test_gateway_operation import samples

STREAMS = 50
TOKENS = (10, 30)


async def test_no_stream_is_cut_and_no_ticket_is_left(tmp_path: Path) -> None:
    """The limits have room for these streams and not one more: a ticket that is not given back refuses the next."""
    (config := tmp_path / "gateway.toml").write_text(f"[client]\nconcurrent = {STREAMS}\n")
    async with await start(25) as scripted:
        settings = Settings(upstream_url=address(scripted), config=config, metrics_key="m-key")
        async with gateway(settings) as url, httpx.AsyncClient(base_url=url) as client:
            for seed in (1, 2):
                figures = await load(f"{url}{PATH}", STREAMS, 1.0, 0.2, TOKENS, seed)
                assert figures.cut == []
                assert figures.streams >= STREAMS
            page = await client.get("/api/ai/metrics", headers={"authorization": "Bearer m-key"})
        scripted.close()
    found = samples(page.text)
    assert found["streams", ()] == 0
    assert not any("busy" in labels or "client_left" in labels for name, labels in found if name == "calls_total")
    gc.collect()
    assert not any(isinstance(left, Deadline) for left in gc.get_objects())


async def answering(body: bytes, close: bool = False) -> list[str]:
    """Why a client of a server with that answer calls it cut."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            writer.write(body)
            await writer.drain()
            if not close:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(5):
        port = server.sockets[0].getsockname()[1]
        return (await load(f"http://127.0.0.1:{port}/x", 1, 0.0, 0.0, (2, 2))).cut


def token(number: int) -> bytes:
    return chunk(TOKEN % mark(number))


END = chunk(FINISH + DONE) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "close", "why"),
    [
        (HEAD + token(0) + token(1), True, "the connection ended after 2 of 2 tokens"),
        (HEAD + token(0), True, "the connection ended after 1 of 2"),
        (HEAD + token(0) + END, False, "the end came after 1 of 2 tokens"),
        (HEAD + token(0) + token(0), False, "token 0 came in place of 1"),
        (HEAD + token(1), False, "token 1 came in place of 0"),
        (b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n", False, "refused: HTTP/1.1 429"),
        (b"", True, "the connection ended after 0"),
    ],
)
async def test_what_is_no_whole_answer_counts_as_cut(body: bytes, close: bool, why: str) -> None:
    (cut,) = await answering(body, close)
    assert why in cut


async def test_a_whole_answer_in_any_pieces_is_none() -> None:
    assert await answering(HEAD + token(0) + token(1) + END) == []


async def test_scripted_upstream_keeps_its_rate_and_stops_for_who_leaves() -> None:
    async with await start(100) as scripted:
        async with httpx.AsyncClient() as client:
            request = client.stream("POST", address(scripted), json={"max_tokens": 5})
            async with request as response:
                lines = [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: {")]
            async with client.stream("POST", address(scripted), json={"max_tokens": 100_000}):
                pass
        scripted.close()
    texts = [line["choices"][0]["delta"]["content"] for line in lines[:5]]
    sent = [int(text.split(":")[1].rstrip(";")) for text in texts]
    assert [text.split(":")[0] for text in texts] == ["@0", "@1", "@2", "@3", "@4"]
    assert sent[-1] - sent[0] >= 35e6  # ns: four spaces of 10 ms, less what timers are early
    assert lines[-1]["usage"] == {"prompt_tokens": 24, "completion_tokens": 5}


def test_percentiles_of_latency() -> None:
    late = latency(Figures(late_us=array("I", range(1000, 0, -1))))
    assert late == {"p50": 0.501, "p95": 0.951, "p99": 0.991}


def test_memory_is_compared_after_the_warm_up() -> None:
    course = [(float(second), 10.0 if second < 30 else 40.0 if second < 540 else 43.0) for second in range(601)]
    assert memory(course, 600.0) == {
        "rss_first_mib": 40.0,
        "rss_last_mib": 43.0,
        "rss_growth_mib": 3.0,
        "rss_most_mib": 43.0,
    }


ROW: dict[str, Any] = {
    "streams": 10,
    "cut": 0,
    "cut_direct": 0,
    "why_cut": [],
    "added_p99_ms": 20.0,
    "rss_growth_mib": 4.0,
}


def test_what_a_run_must_hold() -> None:
    assert failures(ROW) == []
    assert failures({**ROW, "cut": 1, "why_cut": ["token 2 came"]}) == ["1 of 11 streams were cut: token 2 came."]
    assert "added latency is 20.1 ms" in failures({**ROW, "added_p99_ms": 20.1})[0]
    assert "grew by 4.1 MiB" in failures({**ROW, "rss_growth_mib": 4.1})[0]


def test_the_whole_bench_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real processes, as in the long run; the figures of such a run say nothing, only that there are some does."""
    options = argparse.Namespace(seconds=2.0, streams=5, rate=200.0)
    row = gateway_bench.measure_all(options, ROOT)
    assert (row["cut"], row["cut_direct"]) == (0, 0)
    assert row["streams"] >= 5
    assert row["events"] >= 5 * 128
    assert row["cpu_us_per_event"] > 0
    assert 10 < row["rss_first_mib"] < 500
    report(row, tmp_path)
    table = (tmp_path / "gateway.md").read_text()
    assert f"| {row['streams']} |" in table.replace(",", "")
    assert json.loads((tmp_path / "results" / "gateway.jsonl").read_text()) == row
    assert "gateway.md" in capsys.readouterr().out


def test_a_process_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(SetupError, match=r"pyapp\.gateway ended before it answered: .*TANDEM_UPSTREAM_URL must start"),
        process(ROOT, "pyapp.gateway", "--port", "0", TANDEM_UPSTREAM_URL="ftp://x"),
    ):
        pytest.fail("it started")


# --- the deadline


async def test_deadline_ends_the_block_when_it_is_not_put_off() -> None:
    with Deadline(0.02) as waiting:
        await anyio.sleep(5)
        pytest.fail("it was not ended")
    assert waiting.passed


@pytest.mark.parametrize(("first", "following"), [(1.0, 9.0), (9.0, 1.0)])
async def test_deadline_that_is_put_off_counts_from_then(first: float, following: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with Deadline(first) as waiting:
        for _ in range(4):
            await anyio.sleep(0.3)  # longer than the first, in all, and far from any of them alone
            waiting.restart(following)
        waiting.restart(0.1)
        await anyio.sleep(9)
    assert waiting.passed
    assert 1.3 < loop.time() - began < 8
    assert waiting.seconds == 0.1


async def test_deadline_that_is_stopped_never_comes() -> None:
    with Deadline(0.02) as waiting:
        waiting.stop()
        await anyio.sleep(0.1)
        waiting.restart(5.0)
    assert not waiting.passed


async def test_deadline_leaves_errors_and_other_cancellations_alone() -> None:
    with pytest.raises(ValueError, match="mine"), Deadline(5.0):
        raise ValueError("mine")
    with anyio.move_on_after(0.02) as outer, Deadline(5.0) as waiting:
        await anyio.sleep(5)
    assert outer.cancelled_caught
    assert not waiting.passed


# --- the proxy


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, "https://llm.example/v1", None),
        ({"https_proxy": "http://p:1"}, "https://llm.example/v1", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "http://llm.example/v1", None),
        ({"all_proxy": "http://p:2"}, "HTTP://llm.example/v1", "http://p:2"),
        ({"https_proxy": "http://p:1", "no_proxy": "example,llm.example"}, "https://llm.example/v1", None),
    ],
)
def test_proxy_of_the_environment(
    environ: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert upstream.proxy_for(url) == proxy
