"""Telemetry at the gateway: what it takes, what it refuses, and the figures that come of it."""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pyapp.errors import BadArgument
from pyapp.gateway.config import load_config
from pyapp.gateway.prices import Prices
from pyapp.gateway.settings import Settings
from pyapp.gateway.telemetry_metrics import TelemetryMetrics
from pyapp.gateway.telemetry_validation import MOST_RECORDS, parse_records
from pyapp.routing.telemetry import Record
from tests.conftest import ROOT
from tests.unit.gateway_fakes import gateway
from tests.unit.gateway_world import error_of
from tests.unit.test_gateway_access import SECRET, SHOP, sites, token

PATH, SUMMARY, METRICS = "/api/ai/telemetry", "/api/ai/telemetry/summary", "/api/ai/metrics"
KEY = {"authorization": "Bearer m-key"}
TABLE = """
[telemetry]
price_per_million_prompt_tokens = 2
price_per_million_completion_tokens = 10.0
currency = "EUR"
"""
ON_DEVICE: Record = {
    "mode": "prefer_on_device",
    "tier": "high",
    "outcome": "stop",
    "sides": ["device"],
    "device_tokens": 100,
    "cloud_tokens": 0,
    "prompt_tokens": 50,
    "fallbacks": [],
    "first_ms": 90.0,
    "total_ms": 1000.0,
}
TAKEN_OVER: Record = {
    **ON_DEVICE,
    "outcome": "length",
    "sides": ["device", "cloud"],
    "device_tokens": 40,
    "cloud_tokens": 60,
    "fallbacks": [{"reason": "device_lost", "from": "device", "to": "cloud", "takeover_ms": 60.0, "mid_text": True}],
}
FAILED: Record = {
    **ON_DEVICE,
    "tier": None,
    "outcome": "cloud_unavailable",
    "sides": [],
    "device_tokens": 0,
    "prompt_tokens": 0,
    "fallbacks": [{"reason": "no_device", "from": "device", "to": "cloud", "takeover_ms": None, "mid_text": False}],
    "first_ms": None,
}
LEFT: Record = {**ON_DEVICE, "outcome": "abort", "device_tokens": 0, "prompt_tokens": 0}


@asynccontextmanager
async def reporting(folder: Path, toml: str = TABLE, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    (config := folder / "gateway.toml").write_text(toml)
    fixed: dict[str, Any] = {"embedded": "off", "config": config, "metrics_key": "m-key"}
    async with (
        gateway(Settings(**{**fixed, **settings})) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as client,
    ):
        yield client


async def report(client: httpx.AsyncClient, *records: Any, **more: Any) -> httpx.Response:
    return await client.post(PATH, json={"records": records}, **more)


async def test_there_is_no_address_unless_it_is_configured(tmp_path: Path) -> None:
    async with reporting(tmp_path, "") as client:
        assert (await report(client, ON_DEVICE)).status_code == 404
        assert (await client.get(SUMMARY, headers=KEY)).status_code == 404
    async with reporting(tmp_path, metrics_key=None) as client:
        assert (await report(client, ON_DEVICE)).status_code == 204
        assert (await client.get(SUMMARY, headers={"authorization": "Bearer"})).status_code == 404


async def test_an_empty_table_turns_it_on(tmp_path: Path) -> None:
    async with reporting(tmp_path, "[telemetry]\n") as client:
        assert (await report(client, ON_DEVICE)).status_code == 204
        assert (await client.get(SUMMARY, headers=KEY)).json()["saved"] == {"amount": 0, "currency": "USD"}


async def test_summary_adds_up(tmp_path: Path) -> None:
    async with reporting(tmp_path) as client:
        assert (await report(client, ON_DEVICE, TAKEN_OVER)).status_code == 204
        assert (await report(client, FAILED, LEFT)).status_code == 204
        summary = (await client.get(SUMMARY, headers=KEY)).json()
    del summary["since"]
    assert summary == {
        "texts": 4,
        "outcomes": {"abort": 1, "cloud_unavailable": 1, "length": 1, "stop": 1},
        "availability": round(2 / 3, 4),
        "served": {"both": 1, "device": 2, "none": 1},
        "tokens": {"cloud": 60, "device": 140},
        "device_share": {"texts": round(2 / 3, 4), "tokens": 0.7},
        "tiers": {"": 1, "high": 3},
        "fallbacks": {"device_lost": 1, "no_device": 1},
        "takeover_ms": {"count": 1, "p50": 65.0, "p95": 78.5, "p99": 79.7},
        "first_ms": {"count": 3, "p50": 75.0, "p95": 97.5, "p99": 99.5},
        # 50 tokens of prompt and 100 of the answer in one text, 40 of the answer in the other.
        "saved": {"amount": round((50 * 2 + 140 * 10) / 1e6, 6), "currency": "EUR"},
    }


async def test_metrics_of_what_pages_report(tmp_path: Path) -> None:
    async with reporting(tmp_path) as client:
        await report(client, ON_DEVICE, TAKEN_OVER)
        page = (await client.get(METRICS, headers=KEY)).text
    found = {
        (sample.name.removeprefix("tandem_client_"), frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["texts_total", frozenset({"prefer_on_device", "device", "stop", ""})] == 1
    assert found["texts_total", frozenset({"prefer_on_device", "both", "length", ""})] == 1
    assert found["tokens_total", frozenset({"device", ""})] == 140
    assert found["prompt_tokens_total", frozenset({"both", ""})] == 50
    assert found["fallbacks_total", frozenset({"device_lost", "device", "cloud", ""})] == 1
    assert found["takeover_seconds_bucket", frozenset({"cloud", "true", "0.08", ""})] == 1
    assert found["takeover_seconds_bucket", frozenset({"cloud", "true", "0.05", ""})] == 0
    assert found["cloud_cost_saved_total", frozenset({"EUR", ""})] == pytest.approx(0.0015)
    assert found["tiers_total", frozenset({"high", ""})] == 2
    assert found["first_text_seconds_count", frozenset({"device", ""})] == 1


async def test_summary_needs_the_key_of_the_metrics(tmp_path: Path) -> None:
    async with reporting(tmp_path) as client:
        for headers in ({}, {"authorization": "Bearer m-kez"}):
            response = await client.get(SUMMARY, headers=headers)
            assert "TANDEM_METRICS_KEY" in error_of(response, 401, "cloud_unavailable")


async def test_where_there_are_shops_a_report_needs_a_token_and_counts_for_its_shop(tmp_path: Path) -> None:
    async with reporting(tmp_path, sites() + TABLE, token_secrets=SECRET) as client:
        error_of(await report(client, ON_DEVICE), 401, "cloud_unavailable")
        assert (await report(client, ON_DEVICE, headers=await token(client, ancestor=SHOP))).status_code == 204
        page = (await client.get(METRICS, headers=KEY)).text
    assert 'tandem_client_texts_total{mode="prefer_on_device",outcome="stop",served="device",site="rosa"} 1.0' in page


async def test_reports_are_limited_and_leave_the_clients_texts_alone(tmp_path: Path) -> None:
    async with reporting(tmp_path, "[client]\nrequests_per_minute = 1\nconcurrent = 1\n" + TABLE) as client:
        statuses = [(await report(client, ON_DEVICE)).status_code for _ in range(61)]
        refused = await report(client, ON_DEVICE)
        text = await client.post("/api/ai/cloud-stream", json={"prompt": "Hi"})
    assert statuses == [204] * 60 + [429]
    assert "60" in error_of(refused, 429, "busy")
    assert refused.headers["retry-after"]
    assert "no upstream" in error_of(text, 503, "cloud_unavailable")  # let through: it was the client's first


async def test_a_body_that_is_too_big_and_other_methods(tmp_path: Path) -> None:
    async with reporting(tmp_path) as client:
        response = await client.post(PATH, content=b" " * 70_000)
        assert "larger than 65536 bytes" in error_of(response, 413, "bad_argument")
        assert "POST only" in error_of(await client.get(PATH), 405, "bad_argument")


async def test_nothing_of_a_record_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tandem.gateway")
    async with reporting(tmp_path) as client:
        await report(client, ON_DEVICE)
        await report(client, {**ON_DEVICE, "prompt": "a secret teapot"})
    assert caplog.messages == []


def body(record: Any) -> bytes:
    return json.dumps({"records": [record]}).encode()


def changed(**fields: Any) -> bytes:
    return body({**TAKEN_OVER, **fields})


def fallback(**fields: Any) -> bytes:
    return changed(fallbacks=[{**TAKEN_OVER["fallbacks"][0], **fields}])


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "must be a JSON object with records"),
        (b"\xff", "must be a JSON object with records"),
        (b"[" * 60_000, "must be a JSON object with records"),
        (b'{"records":[],"who":"me"}', "and nothing else"),
        (b'{"records":[]}', "There are 0 records"),
        (json.dumps({"records": [ON_DEVICE] * (MOST_RECORDS + 1)}).encode(), "There are 101 records"),
        (body(5), r"records\[0\] must be an object with"),
        (changed(prompt="hello"), "and nothing else"),
        (body({name: value for name, value in ON_DEVICE.items() if name != "tier"}), "and nothing else"),
        (changed(mode="fast"), r"records\[0\].mode must be one of prefer_on_device"),
        (changed(mode=None), "mode must be one of"),
        (changed(tier="huge"), "tier must be one of high"),
        (changed(outcome=""), "outcome must be a word"),
        (changed(outcome="x" * 33), "outcome must be a word"),
        (changed(outcome=1), "outcome must be a word"),
        (changed(sides=["moon"]), "sides must be one of device, cloud"),
        (changed(sides=["device"] * 3), "sides must be a list"),
        (changed(sides="device"), "sides must be a list"),
        (changed(device_tokens=-1), "device_tokens must be a whole number"),
        (changed(device_tokens=1.5), "device_tokens must be a whole number"),
        (changed(cloud_tokens=True), "cloud_tokens must be a whole number"),
        (changed(prompt_tokens=1_000_001), "prompt_tokens must be a whole number"),
        (changed(total_ms=None), "total_ms must be a number"),
        (changed(total_ms=float("nan")), "total_ms must be a number"),
        (changed(first_ms=float("inf")), "first_ms must be a number"),
        (changed(first_ms="5"), "first_ms must be a number"),
        (changed(fallbacks=TAKEN_OVER["fallbacks"] * 17), "fallbacks must be a list"),
        (fallback(reason=["x"]), r"records\[0\].fallbacks\[0\].reason must be a word"),
        (fallback(to="moon"), "to must be one of"),
        (fallback(mid_text=1), "mid_text must be true or false"),
        (fallback(takeover_ms=-0.1), "takeover_ms must be a number"),
        (fallback(note="x"), "and nothing else"),
    ],
)
def test_what_is_no_record_is_refused(payload: bytes, says: str) -> None:
    with pytest.raises(BadArgument, match=says):
        parse_records(payload)


async def test_a_body_with_one_fault_counts_nothing(tmp_path: Path) -> None:
    async with reporting(tmp_path) as client:
        error_of(await report(client, ON_DEVICE, {**ON_DEVICE, "mode": "x"}), 400, "bad_argument")
        assert (await client.get(SUMMARY, headers=KEY)).json()["texts"] == 0


@given(st.sets(st.text(min_size=1, max_size=32), min_size=1, max_size=20))
def test_words_that_nobody_knows_make_one_series(words: set[str]) -> None:
    registry = CollectorRegistry()
    metrics = TelemetryMetrics(registry, Prices())
    for word in words:
        record = copy.deepcopy(TAKEN_OVER)
        record["outcome"] = record["fallbacks"][0]["reason"] = f"{word[:31]}!"
        for checked in parse_records(body(record)):
            metrics.count(checked, "")
    assert metrics.summary()["outcomes"] == metrics.summary()["fallbacks"] == {"other": len(words)}


def test_a_summary_of_nothing_divides_by_nothing() -> None:
    summary = TelemetryMetrics(CollectorRegistry(), Prices(), clock=lambda: 0.0).summary()
    assert summary["since"] == "1970-01-01T00:00:00+00:00"
    assert summary["availability"] is None
    assert summary["device_share"] == {"texts": None, "tokens": None}
    assert summary["takeover_ms"] == {"count": 0, "p50": None, "p95": None, "p99": None}


def test_percentiles_stay_at_the_last_limit_for_values_beyond() -> None:
    metrics = TelemetryMetrics(CollectorRegistry(), Prices())
    metrics.count({**ON_DEVICE, "first_ms": 3_600_000.0}, "")
    assert metrics.summary()["first_ms"] == {"count": 1, "p50": 120_000.0, "p95": 120_000.0, "p99": 120_000.0}


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 10**6), st.floats(0, 10**6))
def test_what_is_saved_is_what_the_cloud_would_have_read_and_written(
    device: int, cloud: int, prompt: int, prompt_price: float, price: float
) -> None:
    record: Record = {**ON_DEVICE, "device_tokens": device, "cloud_tokens": cloud, "prompt_tokens": prompt}
    whole = prompt * prompt_price if device and not cloud else 0
    assert Prices(prompt_price, price).saved(record) == pytest.approx((whole + device * price) / 1e6)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("telemetry = 5", "telemetry in the file must be a table"),
        ("[telemetry]\nprice = 5", "'price' in .telemetry. is not known"),
        ("[telemetry]\nprice_per_million_prompt_tokens = -1", "must be a number from 0 to 1000000"),
        ("[telemetry]\nprice_per_million_prompt_tokens = true", "must be a number from 0"),
        ("[telemetry]\nprice_per_million_completion_tokens = nan", "must be a number from 0"),
        ("[telemetry]\ncurrency = 'euro'", "three capital letters"),
    ],
)
def test_a_table_that_makes_no_sense(toml: str, says: str, tmp_path: Path) -> None:
    (file := tmp_path / "gateway.toml").write_text(toml)
    with pytest.raises(BadArgument, match=says):
        load_config(file)


async def test_the_deployment_page_names_the_metrics_that_there_are(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    async with reporting(tmp_path) as client:
        await report(client, TAKEN_OVER)
        metrics = (await client.get(METRICS, headers=KEY)).text
    named = set(re.findall(r"tandem_client_[a-z_]+", page))
    assert len(named) >= 8
    assert named <= set(re.findall(r"tandem_client_[a-z_]+", metrics))
