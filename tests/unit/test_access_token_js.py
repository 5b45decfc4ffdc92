"""``web/access-token.js``: the shop's token where Python cannot run, by the rules of ``pyapp.routing.access_token``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node_runner import run_node
from tests.unit.tandem_js import SETUP as TANDEM
from tests.unit.test_access_token import NO_TOKENS, NOT_THE_SHOPS, SHOP, STREAM, TELEMETRY, TOKEN

SETUP = """
  const { ShopFetch } = await import(web + "access-token.js");
  const { readCloud } = await import(web + "cloud-reader.js");
  let now = 1000;
  performance.now = () => now;
  const posts = [];
  let good = () => true;
  let seconds = 300;
  let given = 0;
  let tokenReply = null;
  let gate = Promise.resolve();
  const events = 'data: {"text":"abc"}\\n\\ndata: [DONE]\\n\\n';
  globalThis.fetch = async (url, { body, headers }) => {
    posts.push([url, JSON.parse(body), headers.authorization ?? null]);
    if (url.endsWith("/telemetry")) {
      return new Response(null, { status: good(headers.authorization?.replace("Bearer ", "")) ? 204 : 401 });
    }
    if (url.endsWith("/token")) {
      await gate;
      if (tokenReply) return tokenReply();
      return Response.json({ token: `t${++given}`, expires_in: seconds });
    }
    const token = headers.authorization?.replace("Bearer ", "");
    const error = { code: "cloud_unavailable", message: "Not valid." };
    if (!good(token)) return Response.json({ error }, { status: 401 });
    return new Response(events, { headers: { "content-type": "text/event-stream" } });
  };
  const request = { messages: [{ role: "user", content: "Hi" }], maxTokens: 4 };
  const shop = new ShopFetch(input.site, input.ancestor);
  const ask = shop.to(input.stream);
  const write = async (signal) => {
    const got = [];
    try {
      for await (const event of readCloud(input.stream, request, signal, undefined, ask)) got.push(event);
      return got;
    } catch (error) {
      return { code: error.code, message: error.message, details: error.details };
    }
  };
"""


def js(body: str, **more: Any) -> Any:
    return run_node(SETUP + body, {"stream": STREAM, "site": SHOP.key, "ancestor": SHOP.ancestor, **more})


def test_a_token_is_asked_for_once_and_goes_with_each_request() -> None:
    posts = js("await Promise.all([write(), write()]); await write(); return posts;")
    assert posts[0] == [TOKEN, {"site": SHOP.key, "ancestor": SHOP.ancestor}, None]
    assert [(url, token) for url, _, token in posts[1:]] == [(STREAM, "Bearer t1")] * 3


def test_a_token_is_kept_until_shortly_before_its_end() -> None:
    tokens = js(
        """
        await write();
        for (const pause of [284_990, 20]) { now += pause; await write(); }
        seconds = 1;
        now += 285_000;
        await write();
        for (const pause of [790, 20]) { now += pause; await write(); }
        return posts.map((post) => post[2]).filter(Boolean);
        """
    )
    assert tokens == [f"Bearer t{number}" for number in (1, 1, 2, 3, 3, 4)]


def test_a_refused_token_is_replaced_once() -> None:
    one, two = js(
        """
        good = (token) => token !== "t1";
        const first = await write();
        const asked = posts.splice(0).map(([url]) => url);
        good = () => false;
        return [[first.at(-1), asked], [await write(), posts.map(([url]) => url)]];
        """
    )
    assert one == [{"type": "done", "reason": "stop", "source": "cloud"}, [TOKEN, STREAM, TOKEN, STREAM]]
    assert two[0] == {"code": "cloud_unavailable", "message": "Not valid.", "details": {"status": 401}}
    assert two[1] == [STREAM, TOKEN, STREAM]


@pytest.mark.parametrize(
    ("status", "payload", "says"),
    [
        (403, {"error": {"code": "bad_argument", "message": NOT_THE_SHOPS}}, NOT_THE_SHOPS),
        (429, {"error": {"code": "busy", "message": "Too often."}}, "Too often."),
        (404, {}, f"no access tokens at {TOKEN}: leave the site key out"),
        (502, {}, "HTTP 502"),
    ],
)
def test_what_is_told_where_no_token_is_given(status: int, payload: Any, says: str) -> None:
    told, posts = js(
        "tokenReply = () => Response.json(input.payload, { status: input.status }); return [await write(), posts];",
        status=status,
        payload=payload,
    )
    assert told["code"] == "cloud_unavailable"
    assert says in told["message"]
    assert [url for url, _, _ in posts] == [TOKEN]


def test_what_is_no_token_is_sent_nowhere() -> None:
    told = js(
        """
        const told = [];
        for (const body of input.bodies) {
          tokenReply = () => new Response(body);
          told.push((await write()).message);
        }
        return [told, posts.map(([url]) => url)];
        """,
        bodies=[body.decode() for body in NO_TOKENS],
    )
    assert all("answered with something that is no access token" in message for message in told[0])
    assert set(told[1]) == {TOKEN}


def test_an_abort_does_not_wait_for_the_token_and_takes_nobody_along() -> None:
    aborted, other = js(
        """
        let open;
        gate = new Promise((resolve) => { open = resolve; });
        const controller = new AbortController();
        const [leaving, staying] = [write(controller.signal), write()];
        await new Promise((resolve) => setTimeout(resolve, 5));
        controller.abort();
        const aborted = await leaving;
        open();
        return [aborted, await staying];
        """
    )
    assert aborted[-1] == {"type": "done", "reason": "abort", "source": None}
    assert other[-1]["reason"] == "stop"


TELL = """
  const { Telemetry } = await import(web + "telemetry.js");
  const records = [];
  const telemetry = new Telemetry({ telemetry: input.stream.replace("cloud-stream", "telemetry") }, (record) => {
    records.push(record);
  }, shop);
  const shown = { text: "", deviceTokens: 0, cloudTokens: 0, source: "cloud", began: 0, first: null };
  const turn = () => new Promise((resolve) => setTimeout(resolve, 5));
  const tell = async () => { await telemetry.text(shown, "no_device", async () => {}); await turn(); };
"""


def test_telemetry_goes_with_the_token_of_the_stream() -> None:
    posts = js(TELL + "await tell(); await write(); await tell(); return posts;")
    assert [(url, token) for url, _, token in posts] == [
        (TOKEN, None),
        (TELEMETRY, "Bearer t1"),
        (STREAM, "Bearer t1"),
        (TELEMETRY, "Bearer t1"),
    ]


def test_telemetry_replaces_a_refused_token_once() -> None:
    urls = js(TELL + "good = () => false; await tell(); return posts.map(([url]) => url);")
    assert urls == [TOKEN, TELEMETRY, TOKEN, TELEMETRY]


def test_telemetry_without_a_token_is_lost_in_silence_and_holds_up_nothing() -> None:
    posts, records, ended = js(
        TELL
        + """
        tokenReply = () => new Response("", { status: 403 });
        await tell();
        gate = new Promise(() => {});
        await tell();
        return [posts.map(([url]) => url), records.length, "ended"];
        """
    )
    assert (posts, records, ended) == ([TOKEN, TOKEN], 2, "ended")


def test_at_the_close_telemetry_goes_with_the_token_at_hand_and_asks_for_none() -> None:
    with_one, without = js(
        TELL
        + """
        await write();
        shop.close();
        await tell();
        const urls = posts.splice(0).map(([url]) => url);
        now += 300_000;
        await tell();
        return [urls, posts];
        """
    )
    assert with_one == [TOKEN, STREAM, TELEMETRY]
    assert without == []


def test_a_closed_client_tells_of_its_last_text_with_the_token_at_hand() -> None:
    """Through ``tandem.js``, whose worker died: the close ends a text, and what is told of that still goes out."""
    posts = run_node(
        TANDEM
        + """
        const posts = [];
        globalThis.fetch = async (url, { headers, signal }) => {
          posts.push([new URL(url).pathname, headers.authorization ?? null]);
          if (url.endsWith("/token")) return Response.json({ token: "t1", expires_in: 300 });
          if (url.endsWith("/report")) return new Response(null, { status: 204 });
          return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
        };
        const created = createClient({ cloud: "/api/stream", telemetry: "/api/report", site: "pk_rosa_1" });
        worker.say({ dead: "blocked" });
        const client = await created;
        const writing = failure(() => collect(client.generate({ prompt: "Hi" })));
        while (posts.length < 2) await turn();
        await client.close();
        await writing;
        await turn();
        return posts;
        """,
        None,
    )
    assert posts == [["/api/token", None], ["/api/stream", "Bearer t1"], ["/api/report", "Bearer t1"]]


def test_a_silent_gateway_is_given_up() -> None:
    told = js(
        """
        AbortSignal.timeout = (ms) => ({ ms });
        const real = globalThis.fetch;
        globalThis.fetch = async (url, init) => {
          if (init.signal.ms === 10_000) throw new DOMException("late", "TimeoutError");
          return real(url, init);
        };
        return write();
        """
    )
    assert told["message"] == "The cloud gateway gave no access token within 10 seconds; try again."


def test_the_page_takes_the_key_from_its_address_and_the_ancestor_from_nobody() -> None:
    query = "?site=pk_rosa_1&ancestor=https://x.example&parent=https://x.example&lang=de"
    options = run_node(
        'const { readParameters } = await import(web + "app/params.js"); return readParameters(input).options;', query
    )
    assert options == {"site": "pk_rosa_1"}
