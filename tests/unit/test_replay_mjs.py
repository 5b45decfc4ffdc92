"""``replay.mjs`` on a stand-in for a device: how the pace of its submits is measured."""

from __future__ import annotations

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
