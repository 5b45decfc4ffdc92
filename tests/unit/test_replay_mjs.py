"""``replay.mjs`` on a stand-in for a device: how the pace of its submits is measured."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.unit.node_runner import run_node

# A queue that finishes submits one after the other, when the test says so.
SETUP = """
  let clock = 0;
  performance.now = () => clock;
  const waiting = [];
  const promise = () => new Promise((resolve) => waiting.push(resolve));
  const pass = { setPipeline() {}, setBindGroup() {}, dispatchWorkgroups() {}, end() {} };
  const encoder = { beginComputePass: () => pass, copyBufferToBuffer() {}, finish() {} };
  const device = { createCommandEncoder: () => encoder, queue: { submit() {}, onSubmittedWorkDone: promise } };
  const staging = { mapAsync: promise, getMappedRange: () => new ArrayBuffer(4), unmap() {} };
  const finish = async (at) => {
    clock = at;
    waiting.shift()();
    for (let i = 0; i < 9; i++) await null;
  };
  const { record, submit } = await import(new URL("../pyapp/gpu/replay.mjs", web).href);
  const plan = () => record(device, [{}], [{}], Int32Array.from([0, 0, 1, 1, 1, 0]));
  const run = (recorded, work, to) => submit(recorded, Int32Array.from([0, 1]), 1, 1, null, 0, 4, to, work);
"""


# An encoder that notes what is asked of it, and a queue whose end comes at once.
NOTING = """
  const said = [];
  const note = (name) => (...args) => said.push([name, ...args]);
  const noting = {
    setPipeline: note("pipeline"), setBindGroup: note("group"), dispatchWorkgroups: note("dispatch"), end: note("end"),
  };
  device.createCommandEncoder = () => ({
    beginComputePass: (how) => { said.push(["begin", how]); return noting; },
    resolveQuerySet: note("resolve"), copyBufferToBuffer: note("copy"), finish() {},
  });
  device.queue.submit = note("submit");
  const mapped = { mapAsync: async () => {}, getMappedRange: (from, size) => new ArrayBuffer(size) };
  const to = { ...staging, ...mapped, name: "to" };
  const steps = () => record(device, ["one", "two"], ["a", "b"], Int32Array.from([0, 0, 3, 1, 1, 0, 1, 1, 5, 0, 1, 2]));
"""


def node(script: str) -> Any:
    return run_node(SETUP + script, None)


def test_a_submit_is_measured_from_its_own_begin_on_an_idle_device() -> None:
    paces = node("""
      const recorded = plan();
      const before = recorded.pace;
      clock = 5000;
      run(recorded, 50);
      await finish(5100);
      return [before, recorded.pace];
    """)
    assert paces == [0, 0.1 / 50]


def test_a_queued_submit_is_measured_from_the_end_of_the_one_before_whatever_plan_that_was() -> None:
    paces = node("""
      const one = plan();
      const other = plan();
      run(one, 10);
      run(other, 10, staging);
      await finish(300);
      await finish(320);
      return [one.pace, other.pace];
    """)
    assert paces == [0.3 / 10, 0.02 / 10]


def test_ends_that_are_heard_together_do_not_look_like_no_time_at_all() -> None:
    paces = node("""
      const recorded = plan();
      const paces = [];
      for (let i = 0; i < 3; i++) run(recorded, 10);
      await finish(300);
      paces.push(recorded.pace);
      await finish(300);
      paces.push(recorded.pace);
      await finish(300);
      paces.push(recorded.pace);
      run(plan(), 10);
      const fast = plan();
      run(fast, 10);
      await finish(400);
      await finish(400);
      return [...paces, fast.pace];
    """)
    assert paces == [0.03, 0.015, 0.0075, 0.0001 / 10]


def test_what_is_not_to_be_measured_waits_for_nothing() -> None:
    assert node("""
      const recorded = plan();
      run(recorded, 0);
      return [recorded.pace, waiting.length];
    """) == [0, 0]


def test_a_copy_that_fails_tells_nothing_of_the_pace() -> None:
    assert node("""
      const recorded = plan();
      const lost = { mapAsync: async () => { throw new DOMException("gone", "AbortError"); } };
      const copied = run(recorded, 10, lost);
      const said = await copied.catch((error) => error.message);
      return [recorded.pace, said];
    """) == [0, "AbortError: gone"]


def test_a_timed_submit_runs_what_the_other_does_between_two_timestamps_that_it_reads() -> None:
    plain, timed, size = node(
        NOTING
        + """
      const { timed } = await import(new URL("../pyapp/gpu/replay.mjs", web).href);
      const spans = Int32Array.from([0, 2, 1, 2]);
      submit(steps(), spans, 3, 2, null, 0, 0, null, 0);
      const plain = said.splice(0);
      const bytes = await timed(steps(), spans, 3, 2, "queries", "resolved", to);
      return [plain, said.map((each) => each.map((arg) => arg?.name ?? arg ?? null)), bytes.length];
    """
    )
    begin, *run, submitted = plain
    assert run[:3] == [["pipeline", "one"], ["group", 0, "a"], ["dispatch", 3, 1, 1]]
    assert run.count(["dispatch", 5, 6, 1]) == 4
    assert begin[0] == "begin"
    assert not any(begin[1:])
    writes = {"querySet": "queries", "beginningOfPassWriteIndex": 0, "endOfPassWriteIndex": 1}
    assert timed[0] == ["begin", {"timestampWrites": writes}]
    assert timed[1:-3] == run
    assert timed[-3:-1] == [["resolve", "queries", 0, 2, "resolved", 0], ["copy", "resolved", 0, "to", 0, 16]]
    assert (timed[-1][0], submitted[0], size) == ("submit", "submit", 16)


def test_what_a_promise_brings_is_told_by_its_number() -> None:
    assert node("""
      const { tell } = await import(new URL("../pyapp/gpu/replay.mjs", web).href);
      const told = [];
      tell(Promise.resolve("bytes"), (...all) => told.push(all), 7);
      tell(Promise.reject(new Error("gone")), (...all) => told.push(all), 8);
      for (let i = 0; i < 9; i++) await null;
      return told;
    """) == [[7, "bytes", ""], [8, None, "Error: gone"]]


HASTEN = """
  const { hasten } = await import(new URL("../pyapp/gpu/replay.mjs", web).href);
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  const submits = [];
  device.queue.submit = (buffers) => submits.push([clock, buffers.length]);
"""


def test_a_short_submit_is_looked_after_until_its_end() -> None:
    """By commands that do nothing, a tenth of a millisecond apart at least."""
    submits = node(
        HASTEN
        + """
      let keep;
      hasten(device, new Promise((resolve) => { keep = resolve; }));
      for (let i = 0; i < 20; i++) { clock += 0.05; await turn(); await turn(); }
      keep();
      await null;
      const seen = submits.length;
      for (let i = 0; i < 20; i++) { clock += 0.05; await turn(); }
      return [seen, ...submits];
    """
    )
    seen, *looks = submits
    assert 5 <= seen == len(looks) <= 10
    assert all(empty == 0 for _, empty in looks)
    assert all(after - before >= 0.1 - 1e-9 for (before, _), (after, _) in pairwise(looks))


def test_a_long_submit_is_left_alone_after_a_while() -> None:
    assert (
        node(
            HASTEN
            + """
      hasten(device, new Promise(() => {}));
      await turn();
      clock = 8;
      for (let i = 0; i < 20; i++) await turn();
      return submits;
    """
        )
        == []
    )


def test_zeros_go_behind_the_copy_and_over_each_range() -> None:
    assert node("""
      const log = [];
      encoder.copyBufferToBuffer = (from) => log.push(["copy", from]);
      encoder.clearBuffer = (...range) => log.push(["clear", ...range]);
      const { clear, ranges } = await import(new URL("../pyapp/gpu/replay.mjs", web).href);
      submit(plan(), Int32Array.from([0, 1]), 1, 1, "results", 0, 4, staging, 0, ranges(["slab"], [0, 256, 512]));
      const all = ranges(["a", "b", "slab"], [0, 0, undefined, 1, 1024, undefined, 2, 256, 512]);
      clear(device, all, 64);
      clear(device, all, 128);
      return log;
    """) == [
        ["copy", "results"], ["clear", "slab", 256, 512],
        ["clear", "a", 0, 64], ["clear", "b", 1024, 64], ["clear", "slab", 256, 512],
        ["clear", "a", 0, 128], ["clear", "b", 1024, 128], ["clear", "slab", 256, 512],
    ]  # fmt: skip


def test_bind_groups_are_made_of_a_flat_list() -> None:
    made = node("""
      const { bindGroups } = await import(new URL("../pyapp/gpu/replay.mjs", web).href);
      const maker = { createBindGroup: (descriptor) => descriptor };
      const far = 3 * 2 ** 31;
      return bindGroups(maker, ["L0", "L1"], ["a", "b"], [1, 2, 0, 1, far, 256, 3, 0, 0, 4, 0, 0, 0, 1, 7, 1, 512, 8]);
    """)

    def entry(binding: int, buffer: str, offset: int, size: int) -> dict[str, Any]:
        return {"binding": binding, "resource": {"buffer": buffer, "offset": offset, "size": size}}

    assert made == [
        {"layout": "L1", "entries": [entry(0, "b", 3 * 2**31, 256), entry(3, "a", 0, 4)]},
        {"layout": "L0", "entries": []},
        {"layout": "L0", "entries": [entry(7, "b", 512, 8)]},
    ]
