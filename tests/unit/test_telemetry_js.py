"""Telemetry through ``web/tandem.js``: records from the worker, and those of texts that it could not finish."""

from __future__ import annotations

import json

import pytest

from pyapp.gateway.telemetry_validation import parse_records
from tests.unit.tandem_js import js

RECORDS = """
  const records = [];
  const onTelemetry = (record) => records.push(record);
"""
DIES = """
  const client = await opening({ onTelemetry, ...options });
  worker.answer = ({ op, id }) => {
    if (op !== "generate") return;
    const event = { type: "text", source: "device" };
    for (const text of ["He", "l"]) worker.say({ re: id, event: { ...event, text, tokens: text.length } });
    worker.onerror({ message: "out of memory", preventDefault() {} });
  };
"""


def test_records_of_the_worker_are_told_and_one_that_comes_with_the_close_too() -> None:
    result = js(
        RECORDS
        + """
        const client = await opening({ onTelemetry });
        worker.say({ telemetry: { outcome: "stop" } });
        worker.answer = ({ id }) => {
          worker.say({ telemetry: { outcome: "closed" } });
          worker.say({ re: id, value: null });
        };
        await client.close();
        return [records, "onTelemetry" in posted[0].options];
        """
    )
    assert result == [[{"outcome": "stop"}, {"outcome": "closed"}], False]


def test_a_callback_that_fails_harms_no_text() -> None:
    result = js(
        """
        const told = [];
        console.error = (...words) => told.push(words[0]);
        const client = await opening({ onTelemetry() { throw new Error("mine"); } });
        worker.answer = ({ id }) => {
          worker.say({ telemetry: { outcome: "stop" } });
          worker.say({ re: id, event: { type: "done", reason: "stop", source: "device" } });
          worker.say({ re: id, end: true });
        };
        return [(await collect(client.generate({ prompt: "a" }))).length, told];
        """
    )
    assert result == [1, ["onTelemetry failed"]]


def test_text_that_the_worker_died_at_is_told_and_sent_as_the_gateway_takes_it() -> None:
    result = js(
        RECORDS
        + 'const options = { telemetry: "report" };'
        + DIES
        + """
        const sent = [];
        cloud({ text: "lo" }, { usage: { prompt_tokens: 9, completion_tokens: 1, finish_reason: "stop" } });
        const stream = globalThis.fetch;
        globalThis.fetch = async (url, options) => {
          if (!url.endsWith("/report")) return stream(url, options);
          sent.push({ url, keepalive: options.keepalive, body: JSON.parse(options.body) });
          throw new TypeError("no network");
        };
        await collect(client.generate({ prompt: "a secret teapot" }));
        return { records, sent };
        """
    )
    (record,) = result["records"]
    assert result["sent"] == [
        {"url": "http://shop.example/page/report", "keepalive": True, "body": {"records": [record]}}
    ]
    assert "teapot" not in json.dumps(result)
    (parsed,) = parse_records(json.dumps({"records": [record]}).encode())
    assert parsed == record
    assert record["outcome"] == "stop"
    assert record["sides"] == ["device", "cloud"]
    assert (record["device_tokens"], record["cloud_tokens"], record["prompt_tokens"]) == (3, 1, 9)
    (fallback,) = record["fallbacks"]
    assert (fallback["reason"], fallback["from"], fallback["mid_text"]) == ("no_device", "device", True)
    assert 0 <= fallback["takeover_ms"] <= record["total_ms"]
    assert 0 <= record["first_ms"] <= record["total_ms"]


def test_tokens_that_came_together_are_counted_where_no_usage_follows() -> None:
    result = js(
        RECORDS
        + "const options = {};"
        + DIES
        + """
        cloud({ text: " " }, { text: "a" }, { text: " cup" }, { error: "it broke" });
        await failure(() => collect(client.generate({ prompt: "Hi" })));
        return records;
        """
    )
    # A blank may be a repetition: it is held until the next piece has come.
    assert [(record["outcome"], record["device_tokens"], record["cloud_tokens"]) for record in result] == [
        ("cloud_unavailable", 3, 3)
    ]


@pytest.mark.parametrize("options", ['{ mode: "only_on_device" }', "{ cloud: null }"])
def test_text_that_nobody_may_go_on_with_is_told_and_nothing_is_sent(options: str) -> None:
    result = js(
        RECORDS
        + f"const options = {options};"
        + DIES
        + """
        cloud({ text: "never" });
        await failure(() => collect(client.generate({ prompt: "Hi" })));
        return [records, asked];
        """
    )
    assert [record["outcome"] for record in result[0]] == ["no_device"]
    assert result[0][0]["fallbacks"][0]["takeover_ms"] is None
    assert result[1] is None


def test_where_the_cloud_was_to_write_it_is_no_fallback() -> None:
    result = js(
        RECORDS
        + """
        cloud({ text: "a" }, { text: "b" });
        const client = createClient({ mode: "only_in_cloud", onTelemetry });
        worker.say({ dead: "blocked" });
        await collect((await client).generate({ prompt: "Hi" }));
        return records;
        """
    )
    assert [(record["sides"], record["cloud_tokens"], record["fallbacks"]) for record in result] == [(["cloud"], 2, [])]


def test_only_on_device_refuses_an_address_for_telemetry() -> None:
    result = js(
        """
        const wish = { mode: "only_on_device", telemetry: "/api/ai/telemetry" };
        return [await failure(() => createClient(wish)), worker];
        """
    )
    assert "telemetry must be null when mode is only_on_device" in result[0]["message"]
    assert result[1] is None
