"""``web/tandem.js`` with a stand-in for the worker: what no real browser does on demand."""

from __future__ import annotations

from typing import Any

import pytest

from pyapp.door.options import OPTION_NAMES, ClientOptions, camel
from pyapp.errors import BadArgument
from tests.unit.node_runner import run_node
from tests.unit.tandem_js import js


def test_addresses_are_made_absolute_and_names_are_not() -> None:
    result = js(
        """
        await opening({ model: "files/a.gguf", cloud: "stream", poolMiB: 64, onProgress() {} });
        const first = posted[0];
        await opening({ model: "smollm2-135m", cloud: null });
        return [first, posted[1], worker.url.endsWith("/worker.js")];
        """
    )
    wanted = {"model": "http://shop.example/page/files/a.gguf", "cloud": "http://shop.example/page/stream"}
    assert result[0]["options"] == {**wanted, "poolMiB": 64}
    assert result[0]["base"].endswith("/web/")
    assert result[1]["options"] == {"model": "smollm2-135m", "cloud": None}
    assert result[2] is True


SECONDS: tuple[Any, ...] = (None, 1, 30, 0.5, 3600, 3601, 0, "30", True, {})
OPTIONS: list[Any] = [
    {},
    {"model": "smollm2-135m", "vision": None, "mode": "only_on_device", "poolMiB": 1, "cloud": None, "adapter": "none"},
    {"mode": "only_in_cloud", "cloud": "/x", "adapter": "software", "poolMiB": 65536},
    *(
        {"model": name}
        for name in ("a.gguf", "A/B.GGUF?x=1#y", "http://h/a.gguf", "", " ", "a b", "x/y", "-a", 5, None)
    ),
    *({"vision": name} for name in ("cat", "a.b_c-d", "", "a/b", 1, True)),
    *({"mode": name} for name in ("fast", "", None, 1)),
    *({"poolMiB": size} for size in (0, 65537, 1.5, "900", None, True, 900.0)),
    *({"cloud": url} for url in ("", "  ", 7, "stream", "https://h/x")),
    *({"adapter": name} for name in ("gpu", None)),
    *({"rebuildsPerHour": count} for count in (0, 6, 1000, 1001, -1, 1.5, "6", None, True)),
    *({"cloudBelow": share} for share in (0, 0.7, 1, 1.01, -0.1, "0.5", None, True)),
    *({"streamBelow": share} for share in (1, 1.5, 2, 0.99, 2.01, "1", None)),
    *({"stallSeconds": seconds} for seconds in SECONDS),
    *({"contextPressure": tokens} for tokens in (None, 1, 2048, 1 << 20, (1 << 20) + 1, 0, 1.5, "2048", True)),
    *(
        {"site": key}
        for key in (None, "pk_rosa_5f2c9e", "x" * 128, "x" * 129, "short", "pk rosa 1", "pk_rosa_1\n", "", 5)
    ),
    *({"ancestor": origin} for origin in (None, "https://a.example", "http://[::1]:8000", "https://xn--a.example")),
    *({"ancestor": origin} for origin in ("https://a.example/", "a.example", "null", "ftp://a", "", "https://a b", 5)),
    *({name: value} for name in ("cloudWhileLoading", "tune") for value in (True, False, None, 1, "true")),
    *({"telemetry": url} for url in (None, "", " ", 5, "report", "https://h/x")),
    {"telemetry": "/x", "mode": "only_on_device"},
    {"telemetry": None, "mode": "only_on_device"},
    {"limits": None},
    {"limits": 5},
    {"limits": []},
    {"limits": {}},
    *({"limits": {"maxBufferSize": size}} for size in (1 << 20, (1 << 20) - 1)),
    {"limits": {"maxBufferSize": 16 << 20, "maxStorageBufferBindingSize": 4 << 20}},
    *({"limits": {"maxStorageBufferBindingSize": size}} for size in (None, "4194304", 4194304.5, True, 1 << 53)),
    {"limits": {"maxBuffers": 1 << 20}},
    {"mode": "only_in_cloud", "cloud": None},
    {"pool_mib": 5},
    {"colour": "red"},
]


def test_options_are_checked_as_python_checks_them() -> None:
    verdicts = run_node(
        """
        const { checkOptions } = await import(web + "options.js");
        return input.map((options) => {
          try { checkOptions(options, "http://shop.example/"); return null; } catch (error) { return error.code; }
        });
        """,
        OPTIONS,
    )
    names = {camel(name): name for name in OPTION_NAMES}
    expected: list[str | None] = []
    for options in OPTIONS:
        try:
            ClientOptions.checked({names.get(name, f"?{name}"): value for name, value in options.items()})
            expected.append(None)
        except BadArgument as error:
            expected.append(error.code)
    assert verdicts == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("null", "must be an object; it was null"),
        ("5", "must be an object; it was 5"),
        ("{ onProgress: 5 }", "onProgress must be a function; it was 5"),
        ("{ poolMiB: NaN }", "poolMiB must be a whole number from 1 to 65536; it was NaN"),
        ("{ poolMiB: 5n }", "poolMiB must be a whole number from 1 to 65536; it was 5"),
        ('{ mode: "fast" }', "mode must be one of prefer_on_device, only_on_device, prefer_in_cloud, only_in_cloud"),
        ("{ pool_mib: 5 }", "createClient does not know pool_mib; it takes model, vision"),
        ('{ cloud: "http://" }', "cloud must be an address"),
    ],
)
def test_bad_options_start_no_worker(options: str, says: str) -> None:
    result = js(f"return [await failure(() => createClient({options})), worker];")
    assert result[0]["code"] == "bad_argument"
    assert result[0]["ours"]
    assert says in result[0]["message"]
    assert result[1] is None


def test_options_that_are_undefined_are_not_given() -> None:
    result = js("await opening({ model: undefined, cloud: undefined }); return posted[0].options;")
    assert result == {}


def test_refused_open_ends_the_worker() -> None:
    result = js(
        """
        const client = failure(() => createClient({ model: "gpt-9" }));
        const error = { code: "bad_argument", message: "No.", details: {} };
        worker.answer = ({ id }) => worker.say({ re: id, error });
        return [await client, worker.ended];
        """
    )
    assert result == [{"ours": True, "code": "bad_argument", "message": "No."}, True]


def test_close_ends_calls_at_once_and_waits_only_a_moment_for_the_worker() -> None:
    result = js(
        """
        const client = await opening({});
        const writing = failure(() => collect(client.generate({ prompt: "a" })));
        const calls = [writing, failure(() => client.inspect.memory())];
        await turn();
        const closing = client.close();
        const ends = await Promise.all(calls);
        const limit = timers.at(-1);
        limit.work();
        await closing;
        return { ends, ms: limit.ms, ended: worker.ended, again: client.close() === closing };
        """
    )
    assert [entry["code"] for entry in result["ends"]] == ["closed", "closed"]
    assert result["ms"] <= 5000
    assert result["ended"]
    assert result["again"]


def test_signal_and_leaving_reach_python_once() -> None:
    result = js(
        """
        const client = await opening({});
        const event = { type: "text", text: "a", tokens: 1, source: "device" };
        worker.answer = ({ op, id }) => {
          if (op === "generate") worker.say({ re: id, event });
          if (op === "cancel") {
            worker.say({ re: id, event: { type: "done", reason: "abort", source: "device" } });
            worker.say({ re: id, end: true });
          }
        };
        const controller = new AbortController();
        const events = [];
        for await (const event of client.generate({ prompt: "x", signal: controller.signal })) {
          events.push(event);
          controller.abort();
        }
        for await (const event of client.generate({ prompt: "y" })) if (event) break;
        await turn();
        controller.abort();
        await turn();
        return { events, ops: posted.map(({ op }) => op) };
        """
    )
    assert [event["type"] for event in result["events"]] == ["text", "done"]
    assert result["ops"] == ["open", "generate", "cancel", "generate", "cancel"]


def test_iterator_that_is_never_read_asks_for_nothing() -> None:
    result = js(
        """
        const client = await opening({});
        const idle = client.generate({ prompt: "x" });
        const left = client.generate({ prompt: "y" });
        const end = await left.return("early");
        await turn();
        const same = idle[Symbol.asyncIterator]() === idle;
        return { end, next: await left.next(), ops: posted.map(({ op }) => op), same };
        """
    )
    assert result["end"] == {"value": "early", "done": True}
    assert result["next"]["done"] is True
    assert result["ops"] == ["open"]
    assert result["same"]


def test_arrays_come_as_they_were_sent_and_typed_ids_are_taken() -> None:
    result = js(
        """
        const client = await opening({});
        worker.answer = ({ id }) => worker.say({ re: id, value: null }, new Float32Array([1.5]));
        const logits = await client.inspect.logits(new Int32Array([1, 2]));
        return [logits.constructor.name, logits[0], posted.at(-1).args.ids];
        """
    )
    assert result == ["Float32Array", 1.5, [1, 2]]


def test_status_is_a_snapshot() -> None:
    result = js(
        """
        const client = await opening({});
        const before = client.status;
        before.tier = "mine";
        worker.say({ status: { ...status, source: "cloud" } });
        return [client.status, before.source];
        """
    )
    assert result[0]["tier"] == "high"
    assert result[0]["source"] == "cloud"
    assert result[1] == "device"


def test_stream_serves_readers_in_order_and_ends_those_that_wait() -> None:
    result = js(
        """
        let finish;
        const stream = new EventStream(() => new Promise((resolve) => { finish = resolve; }));
        const reads = [stream.next(), stream.next(), stream.next()];
        await turn();
        stream.push(1);
        stream.push(2);
        finish();
        const first = await Promise.all(reads);
        const broken = new EventStream(async (self) => { self.push(1); throw new TandemError("busy", "No."); });
        const got = [await broken.next(), await failure(() => broken.next()), await broken.next()];
        const waiting = new EventStream(() => new Promise(() => {}));
        const pending = waiting.next();
        await waiting.return();
        return { first, got, pending: await pending, aborted: waiting.signal.aborted };
        """
    )
    assert [read["done"] for read in result["first"]] == [False, False, True]
    assert [read.get("value") for read in result["first"]] == [1, 2, None]
    assert result["got"][0] == {"value": 1, "done": False}
    assert result["got"][1]["code"] == "busy"
    assert result["got"][2]["done"] is True
    assert result["pending"]["done"] is True
    assert result["aborted"]
