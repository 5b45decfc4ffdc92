"""What the operator sees: health, metrics, and log lines as JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import pyapp
from pyapp.errors import BadArgument
from pyapp.gateway.logs import JsonFormatter
from pyapp.gateway.settings import Settings
from tests.unit.gateway_fakes import gateway, openai_chunk
from tests.unit.gateway_world import PROMPT, TEXTS, WHOLE, chunks, error_of, replies, world
from tests.unit.test_gateway_retry import QUICK, in_turn

HEALTH, METRICS = "/api/ai/health", "/api/ai/metrics"
KEY = {"authorization": "Bearer m-key"}


def samples(page: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """The page's figures by name and label values."""
    return {
        (sample.name.removeprefix("tandem_gateway_"), tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_metrics_tell_what_happened() -> None:
    script = in_turn(
        replies(503, b""),
        chunks(WHOLE),
        replies(500, b""),
        chunks(openai_chunk("abc"), end=False),
    )
    async with world(script, metrics_key="m-key", **QUICK) as it:
        for _ in range(3):
            await it.ask()
        await it.ask(prompt=5)
        response = await it.client.get(METRICS, headers=KEY)
    assert response.headers["content-type"].startswith("text/plain; version=")
    figures = samples(response.text)
    assert figures["calls_total", ("ok", "")] == 1
    assert figures["calls_total", ("cloud_unavailable", "")] == 2
    assert figures["calls_total", ("bad_argument", "")] == 1
    assert figures["tokens_total", ("prompt", "")] == 9
    assert figures["tokens_total", ("completion", "")] == 3
    assert figures["upstream_retries_total", ("503",)] == 1
    assert figures["first_text_seconds_count", ()] == 2
    assert figures["call_seconds_count", ()] == 2
    assert figures["streams", ()] == 0
    assert figures["upstream_ready", ()] == 1
    for secret in (PROMPT, *TEXTS, "k-123", "127.0.0.1"):
        assert secret not in response.text


async def test_metrics_need_their_key() -> None:
    async with world(chunks(WHOLE), metrics_key="m-key") as it:
        for headers in ({}, {"authorization": "Bearer m-kez"}, {"authorization": "m-key"}):
            response = await it.client.get(METRICS, headers=headers)
            assert "TANDEM_METRICS_KEY" in error_of(response, 401, "cloud_unavailable")
    async with world(chunks(WHOLE)) as it:
        assert (await it.client.get(METRICS, headers={"authorization": "Bearer"})).status_code == 404


async def test_two_gateways_in_one_process_count_apart() -> None:
    async with world(chunks(WHOLE), metrics_key="m-key") as one, world(chunks(WHOLE), metrics_key="m-key") as other:
        await one.ask()
        assert ("calls_total", ("ok", "")) in samples((await one.client.get(METRICS, headers=KEY)).text)
        assert ("calls_total", ("ok", "")) not in samples((await other.client.get(METRICS, headers=KEY)).text)


@pytest.mark.parametrize(
    ("settings", "status", "body"),
    [
        ({"upstream_url": "http://127.0.0.1:9"}, 200, {"status": "ok", "upstream": "external", "ready": True}),
        ({"embedded": "off"}, 503, {"status": "unavailable", "upstream": "none", "ready": False}),
        ({"embedded": "first_request"}, 200, {"status": "ok", "upstream": "embedded", "ready": True}),
    ],
)
async def test_health(settings: dict[str, Any], status: int, body: dict[str, Any]) -> None:
    async with gateway(Settings(**settings)) as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.get(HEALTH)
        assert (await client.post(HEALTH)).status_code == 404
    assert response.status_code == status
    assert response.json() == {**body, "version": pyapp.__version__}
    assert response.headers["cache-control"] == "no-store"


async def test_a_call_as_a_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tandem.gateway")
    async with world(chunks(WHOLE)) as it:
        await it.ask()
    line = JsonFormatter().format(next(record for record in caplog.records if "outcome" in record.getMessage()))
    assert "\n" not in line
    logged = json.loads(line)
    assert logged["outcome"] == "ok"
    assert (logged["level"], logged["logger"]) == ("info", "tandem.gateway")
    assert (logged["call"], logged["status"], logged["characters"]) == (1, 200, len("".join(TEXTS)))
    assert 0 < logged["first_s"] <= logged["total_s"]
    assert logged["site"] is None
    for secret in (PROMPT, *(text.strip() for text in TEXTS), "k-123", "127.0.0.1"):
        assert secret not in line


def test_an_exception_as_a_line_of_json() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        record = logging.LogRecord("tandem", logging.ERROR, __file__, 1, "failed %s", ("é",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "failed é"
    assert "ValueError" in json.loads(line)["exception"]


def test_an_unknown_log_format_is_refused() -> None:
    with pytest.raises(BadArgument, match="'xml'; give one of text, json"):
        Settings.from_env({"TANDEM_LOG_FORMAT": "xml"})
