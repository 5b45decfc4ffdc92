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


def test_zeros_go_behind_the_copy_and_over_each_place() -> None:
    assert node("""
      const log = [];
      encoder.copyBufferToBuffer = (from) => log.push(["copy", from]);
      encoder.clearBuffer = (...range) => log.push(["clear", ...range]);
      const { clearEach, places } = await import(new URL("../pyapp/gpu/replay.mjs", web).href);
      submit(plan(), Int32Array.from([0, 1]), 1, 1, "results", 0, 4, staging, 0, "slab", 256, 512);
      const rows = places(device, ["a", "b"], [0, 1024]);
      clearEach(rows, 64);
      clearEach(rows, 128, "slab", 256, 512);
      return log;
    """) == [
        ["copy", "results"], ["clear", "slab", 256, 512],
        ["clear", "a", 0, 64], ["clear", "b", 1024, 64],
        ["clear", "a", 0, 128], ["clear", "b", 1024, 128], ["clear", "slab", 256, 512],
    ]  # fmt: skip
