"""``tabs.mjs`` with a stand-in for the browser's locks: what a real browser does at moments that no test can choose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node_runner import run_node

# The Web Locks of the specification, one name, exclusive only.
SETUP = """
  const queue = [];
  let held = null;
  const grant = () => {
    if (held || !queue.length) return;
    held = queue.shift();
    const mine = held;
    Promise.resolve(mine.work({ name: "tandem-pool" })).then((value) => { held = null; mine.resolve(value); grant(); });
  };
  const locks = {
    request: (name, { signal, ifAvailable }, work) => new Promise((resolve, reject) => {
      if (ifAvailable && (held || queue.length)) return resolve(work(null));
      const entry = { work, resolve };
      signal?.addEventListener("abort", () => {
        const place = queue.indexOf(entry);
        if (place >= 0) { queue.splice(place, 1); reject(new DOMException("left", "AbortError")); }
      });
      queue.push(entry);
      queueMicrotask(grant);
    }),
    query: async () => ({ pending: queue.map(() => ({ name: "tandem-pool" })) }),
  };
  const browser = (value) => Object.defineProperty(globalThis, "navigator", { value, configurable: true });
  const denied = () => { throw new DOMException("denied", "SecurityError"); };
  browser({ locks });
  const { TabLock } = await import(new URL("../pyapp/door/tabs.mjs", web).href);
  const turn = () => new Promise((resolve) => setTimeout(resolve, 5));
"""


def js(body: str) -> Any:
    return run_node(SETUP + body + "\n", None)


def test_turns_are_served_in_order_and_asking_without_waiting_does_not_queue() -> None:
    result = js(
        """
        const order = [];
        const [a, b, c] = ["a", "b", "c"].map(() => new TabLock(() => {}));
        order.push(await a.acquire(false), await b.acquire(false), await a.wanted());
        const waiting = [b.acquire(true).then((how) => order.push("b " + how))];
        await turn();
        waiting.push(c.acquire(true).then((how) => order.push("c " + how)));
        await turn();
        order.push(await a.wanted());
        a.leave();
        await waiting[0];
        b.leave();
        await waiting[1];
        order.push(await c.wanted());
        c.leave();
        await turn();
        return [order, held];
        """
    )
    assert result == [["held", "taken", False, True, "b held", "c held", False], None]


def test_leaving_the_queue_and_the_moment_of_the_grant() -> None:
    result = js(
        """
        const [a, b] = ["a", "b"].map(() => new TabLock(() => {}));
        await a.acquire(true);
        const waiting = b.acquire(true);
        await turn();
        b.leave();
        const left = await waiting;
        a.leave();
        await turn();
        // The grant is on its way when the tab leaves.
        const late = b.acquire(true);
        b.leave();
        await turn();
        return [left, held, await Promise.race([late, turn()]), await a.acquire(false)];
        """
    )
    assert result == ["left", None, "left", "held"]


@pytest.mark.parametrize(
    "navigator",
    [
        "{}",
        "{ locks: { request: async () => denied(), query: async () => denied() } }",
        "{ locks: { request: denied, query: denied } }",
    ],
    ids=["none", "refused", "refused at once"],
)
@pytest.mark.parametrize("wait", ["true", "false"])
def test_where_there_are_no_locks(navigator: str, wait: str) -> None:
    result = js(
        f"""
        browser({navigator});
        globalThis.BroadcastChannel = class {{ constructor() {{ denied(); }} }};
        const lock = new TabLock(() => {{}});
        const how = await lock.acquire({wait});
        lock.say("nobody hears");
        const wanted = await lock.wanted();
        lock.leave();
        lock.close();
        return [how, wanted];
        """
    )
    assert result == ["refused", False]


def test_tabs_hear_each_other_until_they_are_closed() -> None:
    result = js(
        """
        const heard = [];
        const [a, b] = ["a", "b"].map((name) => new TabLock((line) => heard.push(name + " " + line)));
        a.say("one");
        await turn();
        b.close();
        a.say("two");
        await turn();
        a.close();
        a.say("three");
        return heard;
        """
    )
    assert result == ["b one"]
