"""``web/tandem.js`` with a stand-in for the worker: what no real browser does on demand."""

from __future__ import annotations

from typing import Any

import pytest

from pyapp.door.options import OPTION_NAMES, ClientOptions, camel
from pyapp.errors import BadArgument
from tests.unit.node_runner import run_node

SETUP = """
  globalThis.location = { href: "http://shop.example/page/" };
  let worker = null;
  const posted = [];
  globalThis.Worker = class {
    constructor(url) { worker = this; this.url = String(url); this.ended = false; }
    postMessage([line, attachment]) {
      const message = JSON.parse(line);
      posted.push(message);
      queueMicrotask(() => this.answer?.(message, attachment));
    }
    terminate() { this.ended = true; }
    say(message, attachment = null) { this.onmessage({ data: [JSON.stringify(message), attachment] }); }
  };
  const timers = [];
  const later = globalThis.setTimeout;
  globalThis.setTimeout = (work, ms, ...rest) => { timers.push({ work, ms }); return later(work, ms, ...rest); };
  let asked = null;
  const cloud = (...events) => {
    globalThis.fetch = async (url, options) => {
      asked = { url, ...JSON.parse(options.body) };
      const lines = [...events.map((event) => JSON.stringify(event)), "[DONE]"].map((data) => `data: ${data}\\n\\n`);
      return new Response(lines.join(""), { headers: { "content-type": "text/event-stream" } });
    };
  };
  const { createClient, TandemError } = await import(web + "tandem.js");
  const { EventStream } = await import(web + "event-stream.js");
  const status = { tier: "high", adapter: "gpu", software: false, source: "device", reason: "", pool: null };
  const opening = (options) => {
    const client = createClient(options);
    worker.answer = ({ op, id }) => { if (op === "open") worker.say({ re: id, value: status }); };
    return client;
  };
  const failure = async (work) => {
    try { return { value: await work() }; }
    catch (error) { return { ours: error instanceof TandemError, code: error.code, message: error.message }; }
  };
  const collect = async (iterator) => {
    const all = [];
    for await (const event of iterator) all.push(event);
    return all;
  };
  const turn = () => new Promise((resolve) => later(resolve, 5));
"""


def js(body: str) -> Any:
    return run_node(SETUP + body + "\n", None)


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


def test_worker_that_dies_at_work_hands_over_to_the_small_reader() -> None:
    result = js(
        """
        cloud({ text: "lo" }, { usage: { prompt_tokens: 9, completion_tokens: 1, finish_reason: "stop" } });
        const client = await opening({});
        worker.answer = ({ op, id }) => {
          if (op !== "generate") return;
          const event = { type: "text", source: "device" };
          worker.say({ re: id, event: { ...event, text: "He", tokens: 2 } });
          worker.say({ re: id, event: { ...event, text: "l", tokens: 1 } });
          worker.onerror({ message: "out of memory", preventDefault() {} });
        };
        const events = await collect(client.generate({ prompt: "Hi", maxTokens: 8 }));
        const look = await failure(() => client.describe(new Blob(["x"])));
        return { events, asked, look, status: client.status, ended: worker.ended };
        """
    )
    assert "".join(event.get("text", "") for event in result["events"]) == "Hello"
    kinds = [event["type"] for event in result["events"]]
    assert kinds == ["text", "text", "status", "text", "usage", "done"]
    usage = result["events"][-2]
    assert (usage["deviceTokens"], usage["cloudTokens"], usage["completionTokens"]) == (3, 1, 4)
    assert result["asked"]["messages"][-1] == {"role": "assistant", "content": "Hel"}
    assert result["asked"]["max_tokens"] == 5
    assert result["asked"]["url"] == "http://shop.example/api/ai/cloud-stream"
    assert result["look"]["code"] == "no_device"
    assert result["status"]["source"] == "cloud"
    assert "out of memory" in result["status"]["reason"]
    assert result["ended"]


def test_the_small_reader_asks_for_the_shop_s_token_and_only_where_there_is_a_key() -> None:
    result = js(
        """
        const posts = [];
        globalThis.fetch = async (url, { body, headers }) => {
          posts.push([String(url), headers.authorization ?? null, JSON.parse(body).ancestor ?? null]);
          if (url.endsWith("/token")) return Response.json({ token: "t1", expires_in: 300 });
          const type = { "content-type": "text/event-stream" };
          return new Response('data: {"text":"a"}\\n\\ndata: [DONE]\\n\\n', { headers: type });
        };
        const all = [];
        for (const options of [{}, { site: "pk_rosa_1" }, { site: "pk_rosa_1", ancestor: "https://rosa.example" }]) {
          const client = await opening(options);
          worker.answer = () => worker.onerror({ message: "gone", preventDefault() {} });
          await collect(client.generate({ prompt: "Hi" }));
          all.push(posts.splice(0));
        }
        return [all, posted.filter(({ op }) => op === "open").map(({ options }) => options)];
        """
    )
    stream, token = "http://shop.example/api/ai/cloud-stream", "http://shop.example/api/ai/token"
    assert result[0] == [
        [[stream, None, None]],
        [[token, None, "http://shop.example"], [stream, "Bearer t1", None]],
        [[token, None, "https://rosa.example"], [stream, "Bearer t1", None]],
    ]
    assert result[1] == [
        {},
        {"site": "pk_rosa_1", "ancestor": "http://shop.example"},
        {"site": "pk_rosa_1", "ancestor": "https://rosa.example"},
    ]


@pytest.mark.parametrize(("come", "most", "reason"), [(3, 20, "stop"), (2, 20, "stop"), (2, 5, "length")])
def test_worker_that_dies_after_the_last_token_leaves_a_whole_text(come: int, most: int, reason: str) -> None:
    """With the usage, or the end as well, the text is whole: the cloud is not asked to go on."""
    events, asked = js(
        f"""
        cloud({{ text: " again" }}, {{ usage: {{ prompt_tokens: 3, completion_tokens: 1, finish_reason: "stop" }} }});
        const client = await opening();
        worker.answer = ({{ op, id }}) => {{
          if (op !== "generate") return;
          const usage = {{ type: "usage", promptTokens: 2, completionTokens: 5, deviceTokens: 5, cloudTokens: 0 }};
          const all = [{{ type: "text", text: "Hello", tokens: 5, source: "device" }}, usage,
            {{ type: "done", reason: "stop", source: "device" }}];
          for (const event of all.slice(0, {come})) worker.say({{ re: id, event }});
          worker.onerror({{ message: "out of memory", preventDefault() {{}} }});
        }};
        return [await collect(client.generate({{ prompt: "x", maxTokens: {most} }})), asked];
        """
    )
    assert [event["type"] for event in events] == ["text", "usage", "done"]
    assert (events[-1]["reason"], events[-1]["source"], asked) == (reason, "device", None)


def test_a_call_that_is_aborted_already_asks_no_cloud_and_names_no_side() -> None:
    events, wrong, asked = js(
        """
        cloud({ text: "never" });
        const client = await opening();
        worker.answer = () => worker.onerror({ message: "gone", preventDefault() {} });
        const ask = (request) => collect(client.generate({ ...request, signal: AbortSignal.abort() }));
        return [await ask({ prompt: "Hi" }), await failure(() => ask({ prompt: "" })), asked];
        """
    )
    assert [event["type"] for event in events] == ["usage", "done"]
    assert events[-1] == {"type": "done", "reason": "abort", "source": None}
    assert (wrong["code"], asked) == ("bad_argument", None)


def test_worker_that_dies_after_the_usage_of_an_aborted_text_names_who_wrote() -> None:
    ends = js(
        """
        const ends = [];
        for (const text of ["", "He"]) {
          const client = await opening();
          const controller = new AbortController();
          const usage = { type: "usage", promptTokens: 0, completionTokens: 0, deviceTokens: 0, cloudTokens: 0 };
          worker.answer = ({ op, id }) => {
            if (op !== "generate") return;
            if (text) worker.say({ re: id, event: { type: "text", text, tokens: 1, source: "device" } });
            controller.abort();
            worker.say({ re: id, event: usage });
            worker.onerror({ message: "gone", preventDefault() {} });
          };
          const { signal } = controller;
          ends.push((await collect(client.generate({ prompt: "x", signal }))).at(-1));
        }
        return ends;
        """
    )
    assert [(end["reason"], end["source"]) for end in ends] == [("abort", None), ("abort", "device")]


@pytest.mark.parametrize("options", ['{ mode: "only_on_device", site: "pk_rosa_1" }', "{ cloud: null }"])
def test_worker_that_dies_at_work_sends_nothing_out_where_it_may_not(options: str) -> None:
    result = js(
        f"""
        cloud({{ text: "never" }});
        const client = await opening({options});
        worker.answer = () => worker.onerror({{ message: "gone", preventDefault() {{}} }});
        return [await failure(() => collect(client.generate({{ prompt: "Hi" }}))), asked];
        """
    )
    assert result[0]["code"] == "no_device"
    assert result[0]["ours"]
    assert result[1] is None


def test_start_without_a_sign_of_life_ends_at_the_deadline() -> None:
    result = js(
        """
        cloud({ text: "a" });
        const client = createClient({});
        worker.say({ progress: { stage: "runtime", loaded: 1, total: null } });
        const { work, ms } = timers.at(-1);
        work();
        const opened = await client;
        return { ms, status: opened.status, last: (await collect(opened.generate({ prompt: "Hi" }))).at(-1) };
        """
    )
    assert result["ms"] == 120_000
    assert "120 seconds" in result["status"]["reason"]
    assert result["last"] == {"type": "done", "reason": "stop", "source": "cloud"}


def test_once_python_runs_there_is_no_deadline() -> None:
    result = js(
        """
        createClient({});
        worker.say({ booted: true });
        const before = timers.length;
        worker.say({ progress: { stage: "weights", loaded: 1, total: 2 } });
        return timers.length - before;
        """
    )
    assert result == 0


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


def test_only_on_device_rejects_where_python_cannot_run() -> None:
    result = js(
        """
        const device = createClient({ mode: "only_on_device" });
        worker.say({ dead: "blocked" });
        return failure(() => device);
        """
    )
    assert result["code"] == "no_device"
    assert "blocked" in result["message"]


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
