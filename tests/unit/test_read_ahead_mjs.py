"""``ReadAhead`` of ``opfs.mjs`` on a stand-in for its worker: who waits for what, and that nobody waits for ever."""

from __future__ import annotations

from typing import Any

from tests.unit.node_runner import run_node

STAGE = """
  const timers = new Map();
  let count = 0;
  globalThis.setTimeout = (run, ms) => { timers.set(++count, { run, ms }); return count; };
  globalThis.clearTimeout = (id) => timers.delete(id);
  const pass = (ms) => { for (const [id, timer] of [...timers]) if (timer.ms === ms) { timers.delete(id); timer.run(); } };
  class FakeWorker {
    static last;
    said = [];
    terminated = false;
    constructor(url, options) { FakeWorker.last = this; this.url = url.href; this.type = options.type; }
    postMessage(message) { this.said.push(message); }
    terminate() { this.terminated = true; }
    give(at, size = 4) { this.onmessage({ data: { at, bytes: new Uint8Array(size), hashes: `hash of ${at}` } }); }
    end() { this.onmessage({ data: { end: true } }); }
  }
  globalThis.Worker = FakeWorker;
  const { readAhead } = await import(new URL("../pyapp/weights/opfs.mjs", web).href);
  const ahead = readAhead("folder", "file", 4, 1, 8);
  const worker = FakeWorker.last;
  const state = async (promise) => Promise.race([promise, new Promise((r) => setImmediate(() => r("waits")))]);
  const hashes = async (promise) => { const got = await state(promise); return got?.hashes ?? got; };
"""


def on_stage(script: str) -> Any:
    return run_node(STAGE + script, None)


def test_a_piece_is_taken_once_whether_it_comes_before_or_after() -> None:
    assert on_stage("""
      worker.give(0);
      const first = await hashes(ahead.take(0, 4));
      const second = ahead.take(4, 4);
      const before = await state(second);
      worker.give(4);
      const after = await hashes(second);
      return { first, before, after, again: await state(ahead.take(4, 4)), said: worker.said };
    """) == {
        "first": "hash of 0",
        "before": "waits",
        "after": "hash of 4",
        "again": None,
        "said": [
            {"folder": "folder", "name": "file", "piece": 4, "segment": 1, "hold": 8},
            {"taken": 4},
            {"taken": 4},
            {"close": True},
        ],
    }


def test_pieces_may_come_in_any_order() -> None:
    assert on_stage("""
      const both = [ahead.take(0, 4), ahead.take(4, 4)];
      worker.give(4);
      worker.give(0);
      return await Promise.all(both.map(hashes));
    """) == ["hash of 0", "hash of 4"]


def test_what_is_asked_for_otherwise_is_not_to_be_had_and_nothing_is_then() -> None:
    assert on_stage("""
      worker.give(0);
      const odd = await state(ahead.take(2, 4));
      return [odd, worker.said.at(-1), await state(ahead.take(0, 4))];
    """) == [None, {"close": True}, None]


def test_a_piece_of_another_length_is_not_given() -> None:
    assert on_stage("""
      worker.give(0, 3);
      return { got: await state(ahead.take(0, 4)), said: worker.said.at(-1) };
    """) == {"got": None, "said": {"close": True}}


def test_who_waits_gets_nothing_when_the_worker_ends_or_dies() -> None:
    for how in ("worker.end()", "worker.onerror({ preventDefault() {} })"):
        assert on_stage(f"""
          const waiting = ahead.take(0, 4);
          {how};
          return [await state(waiting), await state(ahead.take(4, 4)), worker.terminated];
        """) == [None, None, True]


def test_what_came_before_the_end_is_still_there() -> None:
    assert on_stage("""
      worker.give(0);
      worker.end();
      return [await hashes(ahead.take(0, 4)), await state(ahead.take(4, 4))];
    """) == ["hash of 0", None]


def test_nobody_waits_for_room_that_only_he_could_make() -> None:
    """The worker holds two pieces that nobody takes, and waits; the third one is asked for."""
    assert on_stage("""
      worker.give(0);
      worker.give(4);
      const third = ahead.take(8, 4);
      const closing = worker.said.at(-1);
      worker.end();
      return [closing, await state(third)];
    """) == [{"close": True}, None]
    assert on_stage("""
      const third = ahead.take(8, 4);
      worker.give(0);
      const waits = await state(third);
      worker.give(4);
      worker.end();
      return [waits, await state(third)];
    """) == ["waits", None]


def test_closing_waits_for_the_file_to_be_let_go_of() -> None:
    assert on_stage("""
      const closing = ahead.close();
      const before = await state(closing);
      worker.end();
      return [before, await state(closing), await state(ahead.close()), worker.terminated];
    """) == ["waits", None, None, True]


def test_a_worker_that_does_not_answer_is_ended() -> None:
    assert on_stage("""
      const closing = ahead.close();
      pass(1000);
      return [await state(closing), worker.terminated];
    """) == [None, True]


def test_what_nobody_takes_is_forgotten() -> None:
    assert on_stage("""
      worker.give(0);
      pass(20000);
      const said = worker.said.at(-1);
      worker.end();
      return [said, await state(ahead.take(0, 4)), timers.size];
    """) == [{"close": True}, None, 0]


def test_where_there_are_no_workers_within_workers_there_is_none() -> None:
    assert (
        on_stage("""
      globalThis.Worker = undefined;
      return readAhead("folder", "file", 4, 1, 8);
    """)
        is None
    )
