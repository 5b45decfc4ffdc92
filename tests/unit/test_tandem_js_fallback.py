"""``web/tandem.js`` where Python cannot start, or dies at work: who goes on, and what is told of it."""

from __future__ import annotations

import pytest

from tests.unit.tandem_js import js


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
