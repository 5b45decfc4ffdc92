"""``web/access-token.js``: the shop's token where Python cannot run, by the rules of ``pyapp.routing.access_token``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node_runner import run_node
from tests.unit.test_access_token import NO_TOKENS, NOT_THE_SHOPS, SHOP, STREAM, TOKEN

SETUP = """
  const { fetchForShop } = await import(web + "access-token.js");
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
  const ask = fetchForShop(input.stream, input.site, input.ancestor);
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
    assert aborted[-1] == {"type": "done", "reason": "abort", "source": "cloud"}
    assert other[-1]["reason"] == "stop"


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
