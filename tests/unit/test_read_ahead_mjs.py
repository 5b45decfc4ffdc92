"""``ReadAhead`` of ``opfs.mjs`` on a stand-in for its worker: who waits for what, and that nobody waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node_runner import run_node

STORAGE = """
  const entry = { createSyncAccessHandle: async (options) => (input === "older" || options.mode, file) };
  const folder = { getFileHandle: async () => entry };
  const storage = { getDirectory: async () => ({ getDirectoryHandle: async () => folder }) };
  Object.defineProperty(globalThis, "navigator", { value: { storage } });
  globalThis.FileSystemFileHandle = class { createSyncAccessHandle() {} };
"""
"""OPFS with one file in one folder: ``file``."""

STAGE = (
    """
  const timers = new Map();
  let count = 0;
  globalThis.setTimeout = (run, ms) => { timers.set(++count, { run, ms }); return count; };
  globalThis.clearTimeout = (id) => timers.delete(id);
  const pass = (ms) => {
    for (const [id, timer] of [...timers].filter(([, timer]) => timer.ms === ms)) { timers.delete(id); timer.run(); }
  };
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
  const file = { close() {} };
"""
    + STORAGE
    + """
  const { openFolder, readAhead } = await import(new URL("../pyapp/weights/opfs.mjs", web).href);
  const unknown = readAhead("folder", "file", 4, 1, 8);
  (await (await openFolder("folder")).open("file", false)).close();
  const ahead = readAhead("folder", "file", 4, 1, 8);
  const worker = FakeWorker.last;
  const state = async (promise) => Promise.race([promise, new Promise((r) => setImmediate(() => r("waits")))]);
  const hashes = async (promise) => { const got = await state(promise); return got?.hashes ?? got; };
"""
)


def on_stage(script: str, browser: str = "of today") -> Any:
    return run_node(STAGE + script, browser)


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


def test_a_piece_that_somebody_waits_for_already_is_not_promised_twice() -> None:
    assert on_stage("""
      const both = [ahead.take(0, 4), ahead.take(0, 4)];
      await state(both[1]);
      worker.end();
      return await Promise.all(both.map(state));
    """) == [None, None]


def test_room_is_counted_by_what_waits_to_be_taken() -> None:
    """Far more than fits into the room passes through it, taken before and after it comes."""
    assert on_stage("""
      const got = [];
      for (let at = 0; at < 40; at += 4) {
        const asked = at % 8 ? null : ahead.take(at, 4);
        worker.give(at);
        got.push(await hashes(asked ?? ahead.take(at, 4)));
      }
      worker.give(40);
      const last = ahead.take(44, 4);
      const right = got.every((each, i) => each === `hash of ${4 * i}`);
      return [right, await state(last), worker.said.some((each) => each.close)];
    """) == [True, "waits", False]


def test_what_comes_after_closing_is_not_kept() -> None:
    assert (
        on_stage("""
      ahead.close();
      worker.give(0);
      const asked = ahead.take(0, 4);
      worker.end();
      return await state(asked);
    """)
        is None
    )


def test_who_takes_is_not_forgotten() -> None:
    """The 20 seconds are counted from the last piece that was asked for."""
    assert on_stage("""
      const first = [...timers].find(([, timer]) => timer.ms === 20000)[0];
      worker.give(0);
      await hashes(ahead.take(0, 4));
      return [timers.has(first), [...timers.values()].filter((timer) => timer.ms === 20000).length];
    """) == [False, 1]


@pytest.mark.parametrize("opened", [True, False])
def test_a_worker_that_does_not_start_is_not_waited_for(opened: bool) -> None:
    assert on_stage(f"""
      if ({str(opened).lower()}) worker.onmessage({{ data: {{ opened: true }} }});
      const asked = ahead.take(0, 4);
      pass(300);
      return await state(asked);
    """) == ("waits" if opened else None)


def test_a_message_that_cannot_be_read_ends_it() -> None:
    assert (
        on_stage("""
      const asked = ahead.take(0, 4);
      worker.onmessageerror();
      return await state(asked);
    """)
        is None
    )


@pytest.mark.parametrize("browser", ["of today", "older"])
def test_a_browser_in_which_readers_shut_each_other_out_has_none(browser: str) -> None:
    """One whose ``createSyncAccessHandle`` knows no ``mode``, which shows when a first file is opened."""
    assert on_stage("return [unknown, ahead === null];", browser) == [None, browser == "older"]


READER = (
    """
  const said = [];
  let closed = 0;
  const file = {
    getSize: () => input.size,
    read: (bytes, { at }) => { bytes.fill(at / input.piece); return input.short ? 0 : bytes.length; },
    close: () => { closed += 1; },
  };
"""
    + STORAGE
    + """
  if (!input.hashes) Object.defineProperty(globalThis, "crypto", { value: {} });
  globalThis.self = { postMessage: (message) => said.push(message) };
  await import(new URL("../pyapp/weights/read_ahead.mjs", web).href);
  const tell = (data) => self.onmessage({ data });
  const settled = async () => { for (let i = 0; i < 50; i++) await new Promise((resolve) => setTimeout(resolve, 2)); };
  const { piece, hold } = input;
  tell({ folder: "folder", name: "file", piece, segment: 1, hold });
  await settled();
  const row = ({ at, bytes, hashes }) => [at, bytes.length, hashes.split(" ").length];
  const pieces = () => said.filter((each) => each.bytes).map(row);
  const before = pieces();
  for (const each of input.then) tell(each);
  await settled();
  return { before, after: pieces(), opened: said[0]?.opened ?? false, ended: Boolean(said.at(-1)?.end), closed };
"""
)


def reader(**script: Any) -> Any:
    """What the worker does; the pieces by their places, since two are hashed at a time and the later may be sooner."""
    values = {"size": 10, "piece": 4, "hold": 8, "hashes": True, "short": False, "then": [], **script}
    found = run_node(READER, values)
    return {**found, "before": sorted(found["before"]), "after": sorted(found["after"])}


def test_the_worker_reads_as_far_as_there_is_room() -> None:
    two = [[0, 4, 4], [4, 4, 4]]
    whole = [*two, [8, 2, 2]]
    waits = {"before": two, "after": two, "opened": True, "ended": False, "closed": 0}
    assert reader() == waits
    assert reader(then=[{"taken": 4}]) == {**waits, "after": whole, "ended": True, "closed": 1}
    assert reader(hold=9) == {**waits, "before": whole, "after": whole, "ended": True, "closed": 1}


def test_the_worker_lets_go_of_the_file_when_it_is_told_to() -> None:
    found = reader(then=[{"close": True}])
    assert (len(found["after"]), found["ended"], found["closed"]) == (2, True, 1)


@pytest.mark.parametrize("script", [{"short": True}, {"hashes": False}])
def test_what_the_worker_cannot_do_ends_it(script: dict[str, Any]) -> None:
    """A file that became shorter, a page that cannot hash."""
    assert reader(**script) == {"before": [], "after": [], "opened": True, "ended": True, "closed": 1}


def test_where_there_are_no_workers_within_workers_there_is_none() -> None:
    assert (
        on_stage("""
      globalThis.Worker = undefined;
      return readAhead("folder", "file", 4, 1, 8);
    """)
        is None
    )
