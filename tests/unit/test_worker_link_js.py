"""``web/worker-link.js``: what the caller keeps of an attachment, and what it gives away."""

from __future__ import annotations

from typing import Any

from tests.unit.node_runner import run_node

# A worker that gets a message as a real one does: cloned, and with what is transferred taken from the sender.
SETUP = """
  globalThis.location = { href: "http://shop.example/" };
  globalThis.Worker = class {
    postMessage(message, transferred) {
      const [line, attachment] = structuredClone(message, { transfer: transferred });
      const value = attachment && [...attachment];
      queueMicrotask(() => this.onmessage({ data: [JSON.stringify({ re: JSON.parse(line).id, value })] }));
    }
    terminate() {}
  };
"""


def js(body: str) -> Any:
    return run_node(SETUP + body + "\n", None)


def test_only_what_is_given_away_leaves_the_caller() -> None:
    kept, given = js("""
      const { WorkerLink } = await import(web + "worker-link.js");
      const link = new WorkerLink(() => {});
      const kept = new Uint8Array([1, 2, 3]), given = new Uint8Array([4, 5]);
      const got = [await link.call("call", {}, kept), await link.call("call", {}, given, [given.buffer])];
      link.end();
      return [{ got: got[0], left: kept.length }, { got: got[1], left: given.length }];
    """)
    assert kept == {"got": [1, 2, 3], "left": 3}
    assert given == {"got": [4, 5], "left": 0}


def test_a_picture_stays_the_caller_s() -> None:
    """A copy of it is given away, of no more than its own bytes."""
    seen = js("""
      const { createClient } = await import(web + "tandem.js");
      const size = 224 * 224 * 3;
      const client = await createClient();
      const whole = new Uint8Array(size + 9).fill(7);
      whole[9] = 5;
      const got = await client.inspect.vision(whole.subarray(9));
      return [got.length, got[0], got[1], whole.length, await client.inspect.vision(whole).catch(({ code }) => code)];
    """)
    size = 224 * 224 * 3
    assert seen == [size, 5, 7, size + 9, "bad_argument"]
