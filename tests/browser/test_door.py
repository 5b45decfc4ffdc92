"""``tandem.js`` in a real browser: worker, Pyodide and gateway are real; only what a test is about is broken."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, Request, Route

from tests.browser.conftest import Open

DOOR = """
  const { createClient, TandemError } = await import("/tandem.js");
  const collect = async (iterator) => {
    const all = [];
    for await (const event of iterator) all.push(event);
    return all;
  };
  const text = (events) => events.filter(({ type }) => type === "text").map(({ text }) => text).join("");
  const failure = async (work) => {
    try { return { value: await work() }; }
    catch (error) {
      const { code, message, details } = error;
      return { ours: error instanceof TandemError && error instanceof Error, code, message, details };
    }
  };
  const picture = async () => {
    const canvas = new OffscreenCanvas(300, 200);
    canvas.getContext("2d").fillRect(0, 0, 150, 200);
    return canvas.convertToBlob();
  };
"""


@pytest_asyncio.fixture(loop_scope="session")
async def plain(open_page: Open, site: str) -> Open:
    """``await plain(**options)`` -> a page of the site's origin with nothing on it (any file of the site will do)."""

    async def make(**options: Any) -> Page:
        page = await open_page("", **options)
        await page.context.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        await page.goto(f"{site}/style.css")
        return page

    return make


async def js(page: Page, body: str) -> Any:
    """Runs the body of an async function that has the door and a few helpers."""
    return await page.evaluate(f"async () => {{ {DOOR} {body} }}")


def posts(page: Page) -> list[str]:
    """Addresses of all POSTs that the page and its workers make from now on."""
    made: list[str] = []

    def note(request: Request) -> None:
        if request.method == "POST":
            made.append(request.url)

    page.context.on("request", note)
    return made


async def test_without_adapter_the_cloud_writes_and_the_cpu_looks(plain: Open) -> None:
    page = await plain()
    result = await js(
        page,
        """
        const progress = [];
        const client = await createClient({ adapter: "none", onProgress: (report) => progress.push(report) });
        const opened = client.status;
        const events = await collect(client.generate({ prompt: "Say hello.", maxTokens: 5 }));
        const found = await client.describe(await picture());
        const inside = await failure(() => client.inspect.memory());
        const looked = await failure(() => client.inspect.tokenize("a"));
        await client.close();
        return { progress, opened, events, found, inside, looked };
        """,
    )
    assert result["opened"] == {
        "tier": "unsupported",
        "adapter": None,
        "software": False,
        "loading": False,
        "source": "cloud",
        "reason": "The device is not used: the adapter asked for is none.",
        "pool": None,
        "decisions": [],
    }
    events = result["events"]
    assert events[0]["type"] == "status"
    assert events[0]["code"] == "no_device"
    assert [event["type"] for event in events[1:]] == ["text"] * (len(events) - 3) + ["usage", "done"]
    usage = events[-2]
    assert usage["promptTokens"] > 5
    assert (usage["deviceTokens"], usage["cloudTokens"], usage["completionTokens"]) == (0, 5, 5)
    assert events[-1] == {"type": "done", "reason": "length", "source": "cloud"}
    found = result["found"]
    assert (found["source"], found["width"], found["height"]) == ("cpu", 300, 200)
    chances = [label["p"] for label in found["labels"]]
    assert len(chances) == 5
    assert chances == sorted(chances, reverse=True)
    assert all(label["name"] and 0 <= label["index"] < 1000 for label in found["labels"])
    assert {result["inside"]["code"], result["looked"]["code"]} == {"no_device"}
    runtime = [report for report in result["progress"] if report["stage"] == "runtime"]
    assert runtime[-1]["loaded"] > 10_000_000


async def test_queue_abort_leaving_and_closing(plain: Open) -> None:
    page = await plain()
    result = await js(
        page,
        """
        const client = await createClient({ adapter: "none" });
        const order = [];
        const one = async (name) => {
          const events = client.generate({ prompt: name, maxTokens: 3 });
          for await (const event of events) order.push(name + " " + event.type);
        };
        await Promise.all([one("a"), one("b"), one("c")]);

        const controller = new AbortController();
        const aborted = [];
        const long = { prompt: "Tell a long story about a cup.", maxTokens: 200 };
        for await (const event of client.generate({ ...long, signal: controller.signal })) {
          aborted.push(event);
          if (text(aborted).length > 10) controller.abort();
        }
        const before = await collect(client.generate({ ...long, signal: AbortSignal.abort() }));
        for await (const event of client.generate(long)) if (event.type === "text") break;
        const after = await collect(client.generate({ prompt: "Hi", maxTokens: 2 }));

        const running = failure(() => collect(client.generate(long)));
        const waiting = failure(() => collect(client.generate(long)));
        await new Promise((resolve) => setTimeout(resolve, 300));
        await client.close();
        await client.close();
        const closed = [await running, await waiting, await failure(() => collect(client.generate(long))),
          await failure(async () => client.describe(await picture())), await failure(() => client.inspect.memory())];
        return { order, aborted, before, after, closed };
        """,
    )
    order = result["order"]
    ends = [order.index(f"{name} done") for name in "abc"]
    assert ends == sorted(ends)
    assert order.index("b text") > ends[0]
    assert order.index("c text") > ends[1]
    assert [event["type"] for event in result["aborted"][-2:]] == ["usage", "done"]
    assert result["aborted"][-1]["reason"] == "abort"
    assert 0 < result["aborted"][-2]["cloudTokens"] < 200
    assert [event["type"] for event in result["before"]] == ["usage", "done"]
    assert result["before"][-1]["source"] is None
    assert result["after"][-1]["reason"] in ("stop", "length")
    assert [entry.get("code") for entry in result["closed"]] == ["closed"] * 5
    assert all(entry["ours"] for entry in result["closed"])


async def test_bad_arguments_get_one_sentence_and_harm_nothing(plain: Open) -> None:
    page = await plain()
    result = await js(
        page,
        """
        const options = [null, { poolMiB: NaN }, { model: "gpt-9" }];
        const opening = await Promise.all(options.map((each) => failure(() => createClient(each))));
        const client = await createClient({ adapter: "none" });
        const circle = {}; circle.circle = circle;
        const requests = [undefined, null, 5, {}, { prompt: "" }, { prompt: 5 }, { prompt: "a", messages: [] },
          { messages: [{ role: "tool", content: "x" }] }, { prompt: "a", maxTokens: 0 },
          { prompt: "a", maxTokens: 1.5 }, { prompt: "a", temperature: Infinity }, { prompt: "a", topP: 0 },
          { prompt: "a", seed: -1n }, { prompt: "a", signal: 5 }, { prompt: "a", max_tokens: 5 },
          { prompt: "a", facts: circle }, { prompt: "a", facts: 5 }, { prompt: "a", brief: { mood: "x" } }];
        const asking = [];
        for (const request of requests) asking.push(await failure(() => collect(client.generate(request))));
        const looking = [await failure(() => client.describe("cat.png")), await failure(() => client.describe())];
        const images = [await failure(() => client.describe(new Blob([]))),
          await failure(() => client.describe(new Blob(["not a picture"], { type: "image/png" })))];
        const well = await collect(client.generate({ prompt: "a\\ud800b", maxTokens: 2 }));
        await client.close();
        return { opening, asking, looking, images, last: well.at(-1) };
        """,
    )
    for entry in [*result["opening"], *result["asking"], *result["looking"]]:
        assert entry.get("code") == "bad_argument", entry
        assert entry["ours"]
        assert len(entry["message"]) > 15
    assert [entry["code"] for entry in result["images"]] == ["bad_image", "bad_image"]
    assert result["last"]["type"] == "done"


async def test_only_on_device_sends_nothing_out(plain: Open) -> None:
    page = await plain()
    sent = posts(page)
    refused = await js(page, 'return failure(() => createClient({ mode: "only_on_device", adapter: "none" }));')
    assert refused["code"] == "no_device"
    assert refused["ours"]
    assert sent == []


async def test_no_device_and_no_gateway_is_told_with_both_reasons(plain: Open) -> None:
    page = await plain()
    result = await js(
        page,
        """
        const down = await createClient({ adapter: "none", cloud: "http://127.0.0.1:9/stream" });
        const none = await createClient({ adapter: "none", cloud: null });
        const errors = [await failure(() => collect(down.generate({ prompt: "a" }))),
          await failure(() => collect(none.generate({ prompt: "a" })))];
        const found = await none.describe(await picture());
        await Promise.all([down.close(), none.close()]);
        return { errors, source: found.source };
        """,
    )
    down, none = result["errors"]
    assert down["code"] == "cloud_unavailable"
    assert "cannot be reached" in down["message"]
    assert "adapter asked for is none" in down["message"]
    assert none["code"] == "no_device"
    assert result["source"] == "cpu"


async def test_device_writes_looks_and_shows_its_inside(plain: Open) -> None:
    page = await plain()
    sent = posts(page)
    result = await js(
        page,
        """
        const client = await createClient({ mode: "only_on_device", adapter: "software" });
        const messages = [{ role: "user", content: "Say hello." }];
        const events = await collect(client.generate({ messages, maxTokens: 4 }));
        const ids = await client.inspect.tokenize(await client.inspect.render(messages));
        const greedy = await client.inspect.detokenize(await client.inspect.greedy(ids, 4));
        const logits = await client.inspect.logits(ids);
        const vision = await client.inspect.vision(new Uint8Array(224 * 224 * 3));
        const times = await client.inspect.visionTimes(new Uint8Array(224 * 224 * 3), 2);
        const found = await client.describe(await picture());
        const status = client.status;
        const short = await failure(() => client.inspect.vision(new Uint8Array(5)));
        const full = await failure(() => collect(client.generate({ prompt: "word ".repeat(9000) })));
        await client.close();
        return { events, ids, greedy, status, found, short, full, times,
          arrays: [logits, vision].map((each) => [each.constructor.name, each.length]) };
        """,
    )
    events = result["events"]
    assert "".join(event["text"] for event in events if event["type"] == "text") == result["greedy"]
    usage = {"promptTokens": len(result["ids"]), "completionTokens": 4, "deviceTokens": 4, "cloudTokens": 0}
    assert events[-2:] == [{"type": "usage", **usage}, {"type": "done", "reason": "length", "source": "device"}]
    assert result["arrays"] == [["Float32Array", 49152], ["Float32Array", 1000]]
    assert len(result["times"]) == 2
    assert min(result["times"]) > 0
    assert result["found"]["source"] == "device"
    status = result["status"]
    assert (status["source"], status["software"]) == ("device", True)
    assert status["pool"]["budget"] == 900 << 20
    assert 0 < status["pool"]["used"] <= status["pool"]["budget"]
    assert sum(tenant["resident"] for tenant in status["pool"]["tenants"]) <= status["pool"]["used"]
    assert result["short"]["code"] == "bad_argument"
    assert result["full"]["code"] == "context_full"
    assert sent == [], "only_on_device"


FALLBACK = """
  const client = await createClient({ onProgress: () => {} });
  const status = client.status;
  const events = await collect(client.generate({ brief: { keywords: "red cup", tone: "playful" }, maxTokens: 6 }));
  const bad = await failure(() => collect(client.generate({ prompt: "" })));
  const order = [];
  const one = async (name) => {
    for await (const event of client.generate({ prompt: name, maxTokens: 2 })) order.push(name + " " + event.type);
  };
  await Promise.all([one("a"), one("b")]);
  const controller = new AbortController();
  const aborted = [];
  for await (const event of client.generate({ prompt: "A long story.", maxTokens: 200, signal: controller.signal })) {
    aborted.push(event);
    if (event.type === "text") controller.abort();
  }
  const left = client.generate({ prompt: "A long story.", maxTokens: 200 });
  for await (const event of left) if (event.type === "text") break;
  const look = await failure(async () => client.describe(await picture()));
  const inside = await failure(() => client.inspect.plan("language"));
  const only = await failure(() => createClient({ mode: "only_on_device" }));
  await client.close();
  const closed = await failure(() => collect(client.generate({ prompt: "a" })));
  return { status, events, bad, order, aborted, look, inside, only, closed };
"""


def check_fallback(result: dict[str, Any], why: str) -> None:
    assert result["status"]["source"] == "cloud"
    assert result["status"]["tier"] == "unsupported"
    assert why in result["status"]["reason"]
    events = result["events"]
    assert events[0]["type"] == "status"
    assert events[0]["code"] == "no_device"
    assert {event["source"] for event in events if event["type"] != "usage"} == {"cloud"}
    assert any(event["type"] == "text" for event in events)
    assert events[-2]["type"] == "usage"
    assert 0 < events[-2]["cloudTokens"] <= 6
    assert events[-1]["type"] == "done"
    assert result["bad"]["code"] == "bad_argument"
    assert result["order"].index("b text") > result["order"].index("a done")
    assert result["aborted"][-1]["reason"] == "abort"
    assert [result[name]["code"] for name in ("look", "inside", "only")] == ["no_device"] * 3
    assert "WebAssembly" in result["look"]["message"]
    assert result["closed"]["code"] == "closed"


async def test_browser_without_wasm_gets_its_text_from_the_small_reader(plain: Open) -> None:
    page = await plain(init="delete globalThis.WebAssembly;")
    check_fallback(await js(page, FALLBACK), "no WebAssembly")


async def test_wasm_forbidden_by_policy(plain: Open) -> None:
    page = await plain()

    async def forbid(route: Route) -> None:
        response = await route.fetch()
        policy = {"content-security-policy": "default-src 'self'; script-src 'self'"}
        await route.fulfill(response=response, headers={**response.headers, **policy})

    await page.context.route("**/worker.js", forbid)
    check_fallback(await js(page, FALLBACK), "WebAssembly")


async def test_worker_script_that_is_missing(plain: Open) -> None:
    page = await plain()
    await page.context.route("**/worker.js", lambda route: route.fulfill(status=404, body="gone"))
    check_fallback(await js(page, FALLBACK), "cannot be loaded")


async def test_python_that_is_not_all_there(plain: Open) -> None:
    page = await plain()
    await page.context.route("**/wheels/*.image", lambda route: route.fulfill(status=404, body="gone"))
    result = await js(
        page,
        """
        const client = await createClient();
        const events = await collect(client.generate({ prompt: "Hi", maxTokens: 2 }));
        await client.close();
        return { status: client.status, last: events.at(-1) };
        """,
    )
    assert result["status"]["source"] == "cloud"
    assert "wheels/" in result["status"]["reason"]
    assert result["last"]["source"] == "cloud"


@pytest.mark.parametrize("answer", [{"body": "x" * 1000}, {"status": 404, "body": ""}], ids=["rubbish", "missing"])
async def test_python_starts_without_its_snapshot(plain: Open, answer: dict[str, Any]) -> None:
    page = await plain()
    warned: list[str] = []
    page.on("console", lambda message: warned.append(message.text) if message.type == "warning" else None)
    look = """
        const client = await createClient({ adapter: "none" });
        const found = await client.describe(await picture());
        await client.close();
        return found.source;
        """
    assert await js(page, look) == "cpu"
    assert warned == []
    await page.context.route("**/snapshot-*.image", lambda route: route.fulfill(**answer))
    assert await js(page, look) == "cpu"
    assert [text.split(":")[0] for text in warned] == ["Python starts without its snapshot"]


async def test_clients_on_one_page_do_not_know_each_other(plain: Open) -> None:
    page = await plain()
    result = await js(
        page,
        """
        const [a, b] = await Promise.all([createClient({ adapter: "none" }), createClient({ mode: "only_in_cloud" })]);
        const both = await Promise.all([a, b].map((each) => collect(each.generate({ prompt: "Hi", maxTokens: 3 }))));
        await a.close();
        both.push(await collect(b.generate({ prompt: "Hi", maxTokens: 3 })));
        await b.close();
        return both.map((events) => events.at(-1).source);
        """,
    )
    assert result == ["cloud"] * 3
