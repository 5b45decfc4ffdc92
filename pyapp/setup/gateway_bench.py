"""``build.py bench gateway``: one gateway process under many streams at once, against its upstream asked directly.

Three processes: the gateway as ``python -m pyapp.gateway`` runs it, ``scripted_upstream`` behind it, and this one,
which is all the clients. First they ask the upstream directly, then through the gateway, with the same load. Every
token says when it was sent, so what is measured is the time of each one on its way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from pyapp.gateway.app import CLOUD_STREAM_PATH

from .failure import SetupError
from .gateway_load import Figures, load

Row = dict[str, Any]
DIRECT_SECONDS = 60.0
"""The most for the upstream asked directly; less in a short run."""
SPREAD_SECONDS = 5.0
WINDOW_SECONDS = 60.0
"""Memory is compared between the first such window after the warm-up and the last."""
FULL_SECONDS = 600.0
"""A run that is shorter says too little of memory to be kept."""
MOST_ADDED_P99_MS = 20.0
MOST_GROWTH_MIB = 4.0
_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20


@contextmanager
def process(root: Path, *arguments: str, **environ: str) -> Iterator[tuple[str, int]]:
    """``python -m`` these arguments while the block runs; gives the address that it prints, and its process id.

    Raises SetupError where it ends without one.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", *arguments]
    started = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=root, env={**clean, **environ})
    assert started.stdout
    assert started.stderr
    said: deque[str] = deque(maxlen=20)
    # Read as whoever collects logs does: a full pipe would stop the process, and a slow disk must not.
    reader = threading.Thread(target=said.extend, args=(started.stderr,), daemon=True)
    reader.start()
    try:
        url = started.stdout.readline().strip()
        if not url:
            reader.join()
            raise SetupError(f"{arguments[0]} ended before it answered: {''.join(said).strip() or 'no word of why'}")
        yield url, started.pid
    finally:
        started.terminate()
        started.wait()
        reader.join()
        started.stdout.close()
        started.stderr.close()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mib(pid: int) -> float:
    """Memory that a process holds at the moment (RSS)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


async def watch_memory(pid: int, samples: list[tuple[float, float]]) -> None:
    """Adds (s since now, MiB) ten times a second until it is cancelled."""
    began = time.monotonic()
    while True:
        samples.append((time.monotonic() - began, resident_mib(pid)))
        await asyncio.sleep(0.1)


def memory(samples: list[tuple[float, float]], seconds: float) -> Row:
    """MiB, medians of a window after the warm-up and of the last one, of a run of ``seconds``; and the most."""
    window = min(WINDOW_SECONDS, seconds / 4)
    after = min(WINDOW_SECONDS / 2, seconds / 4)
    first = median(mib for at, mib in samples if after <= at <= after + window)
    last = median(mib for at, mib in samples if seconds - window <= at <= seconds)
    return {
        "rss_first_mib": round(first, 2),
        "rss_last_mib": round(last, 2),
        "rss_growth_mib": round(last - first, 2),
        "rss_most_mib": round(max(mib for _, mib in samples), 2),
    }


def latency(figures: Figures) -> dict[str, float]:
    """ms from the upstream to the client, by percentile."""
    late = sorted(figures.late_us)
    return {name: late[min(len(late) - 1, int(len(late) * share))] / 1000 for name, share in SHARES.items()}


SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


async def measure(upstream: str, gateway: tuple[str, int], options: argparse.Namespace) -> Row:
    """One run. Both loads have the same draw of answers' lengths."""
    url, pid = gateway
    direct_seconds = min(DIRECT_SECONDS, options.seconds)
    spread = min(SPREAD_SECONDS, options.seconds / 4)
    print(f"  {options.streams} streams at the upstream for {direct_seconds:g} s …", flush=True)
    direct = await load(f"{upstream}/v1/chat/completions", options.streams, direct_seconds, spread)
    print(f"  {options.streams} streams at the gateway for {options.seconds:g} s …", flush=True)
    samples: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch_memory(pid, samples))
    began, cpu = time.monotonic(), cpu_seconds(pid)
    through = await load(f"{url}{CLOUD_STREAM_PATH}", options.streams, options.seconds, spread)
    seconds, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
    watching.cancel()
    if not direct.late_us or not through.late_us:
        raise SetupError(f"No stream came: {[*direct.cut, *through.cut][:1]}")
    asked, answered = latency(direct), latency(through)
    events = len(through.late_us)
    return {
        "bench": "gateway",
        "processors": len(os.sched_getaffinity(0)),
        "streams_at_once": options.streams,
        "tokens_per_s_and_stream": options.rate,
        "seconds": options.seconds,
        "streams": through.streams,
        "cut": len(through.cut),
        "cut_direct": len(direct.cut),
        "why_cut": through.cut[:5],
        "events": events,
        "events_per_s": round(events / seconds),
        "cpu_share": round(cpu / seconds, 3),
        "cpu_us_per_event": round(cpu / events * 1e6, 1),
        **{f"direct_{name}_ms": round(value, 3) for name, value in asked.items()},
        **{f"gateway_{name}_ms": round(value, 3) for name, value in answered.items()},
        **{f"added_{name}_ms": round(answered[name] - asked[name], 3) for name in SHARES},
        **memory(samples, options.seconds),
    }


def failures(row: Row) -> list[str]:
    """What the run did not hold, a sentence each."""
    found = []
    if row["cut"]:
        found.append(f"{row['cut']} of {row['streams'] + row['cut']} streams were cut: {row['why_cut'][0]}.")
    if row["added_p99_ms"] > MOST_ADDED_P99_MS:
        found.append(f"The p99 of the added latency is {row['added_p99_ms']} ms, over {MOST_ADDED_P99_MS:g}.")
    if row["rss_growth_mib"] > MOST_GROWTH_MIB:
        found.append(f"The gateway's memory grew by {row['rss_growth_mib']} MiB, over {MOST_GROWTH_MIB:g}.")
    return found


def measure_all(options: argparse.Namespace, root: Path) -> Row:
    """Starts the processes, measures, ends them. Raises SetupError."""
    with (
        process(root, "pyapp.setup.scripted_upstream", "--rate", str(options.rate)) as (upstream, _),
        process(root, "pyapp.gateway", "--port", "0", TANDEM_UPSTREAM_URL=upstream) as gateway,
    ):
        return asyncio.run(measure(upstream, gateway, options))


def report(row: Row, docs: Path) -> None:
    """Writes the row and a table of it into ``docs``."""
    results = docs / "results"
    results.mkdir(parents=True, exist_ok=True)
    (results / "gateway.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (docs / "gateway.md").write_text(markdown(row), encoding="utf-8")
    print(f"Written: {results / 'gateway.jsonl'}, {docs / 'gateway.md'}")


def markdown(row: Row) -> str:
    lines = [
        "# The gateway under load",
        "",
        f"One gateway process on a machine of {row['processors']} processors, with the upstream and all clients on "
        f"the same ones: {row['streams_at_once']} streams at once, {row['tokens_per_s_and_stream']:g} tokens a second "
        f"each, for {row['seconds']:g} s. Written by `python3 build.py bench gateway`; how to read it: "
        "`performance.md`.",
        "",
        "| figure | measured | must be |",
        "|---|---|---|",
        f"| streams that came whole | {row['streams']:,} | |",
        f"| streams cut | {row['cut']} | 0 |",
        f"| events, events a second | {row['events']:,}, {row['events_per_s']:,} | |",
        *(
            f"| latency {name}: direct, through the gateway, added | {row[f'direct_{name}_ms']:.3g}, "
            f"{row[f'gateway_{name}_ms']:.3g}, {row[f'added_{name}_ms']:.3g} ms | "
            + (f"under {MOST_ADDED_P99_MS:g} ms added |" if name == "p99" else "|")
            for name in SHARES
        ),
        f"| memory (RSS): first minute after the warm-up, last, most | {row['rss_first_mib']:.4g}, "
        f"{row['rss_last_mib']:.4g}, {row['rss_most_mib']:.4g} MiB | grown by {MOST_GROWTH_MIB:g} MiB at most |",
        f"| processor time of the gateway | {row['cpu_share']:.0%} of one, {row['cpu_us_per_event']:.3g} us an event "
        "| |",
    ]
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace, root: Path) -> int:
    """Prints the row, and keeps it in ``docs/`` where the run was of full length. Exit status 1 where it did not hold.

    Raises SetupError.
    """
    row = measure_all(options, root)
    print(json.dumps(row, indent=1))
    if options.seconds >= FULL_SECONDS:
        report(row, root / "docs")
    found = failures(row)
    print("\n".join(found) if found else "It held.")
    return 1 if found else 0
