"""The pool on a counting device: what is asked for, what is given back, and what is refused before any GPU call."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from pyapp.errors import DeviceLost, OutOfMemory, OutOfPool
from pyapp.gpu.pool import RING_SLOTS, Pool, Region

from .gpu_fakes import FakeDevice, fake_device

MIB = 1 << 20


def figures_agree(pool: Pool, device: FakeDevice) -> None:
    """The pool's own figures are those that counting at ``createBuffer`` and ``destroy`` gives."""
    live = [buffer for buffer in device.created if not buffer.destroyed]
    memory = pool.memory()
    assert memory["live"] == device.live == sum(buffer.size for buffer in live)
    assert memory["asked"] == sum(buffer.size for buffer in device.created)
    assert sum(memory["objects"].values()) == len(live)
    assert memory["objects"]["slab"] == len(memory["slabs"])
    assert memory["live"] <= memory["peak"] <= memory["asked"]
    assert sum(memory["tenants"].values()) == sum(slab["used"] for slab in memory["slabs"])


async def test_as_few_slabs_as_the_device_allows() -> None:
    device = fake_device(max_buffer=16 * MIB + 100)
    pool = Pool(device, 64 * MIB)
    await pool.add_slabs("weights", 40 * MIB + 1, MIB)
    await pool.add_slabs("workspace", 3 * MIB, MIB)
    sizes = [(slab["role"], slab["size"]) for slab in pool.memory()["slabs"]]
    assert sizes == [("weights", 16 * MIB)] * 2 + [("weights", 8 * MIB + 256), ("workspace", 3 * MIB)]
    figures_agree(pool, device)
    pool.close()
    figures_agree(pool, device)
    assert device.live == 0


async def test_over_the_budget_nothing_is_taken() -> None:
    device = fake_device()
    pool = Pool(device, 10 * MIB)
    await pool.add_slabs("weights", 6 * MIB, MIB)
    with pytest.raises(OutOfMemory, match=f"{5 * MIB} bytes of workspace do not fit the pool: {6 * MIB} of {10 * MIB}"):
        await pool.add_slabs("workspace", 5 * MIB, MIB)
    await pool.add_slabs("workspace", 4 * MIB, MIB)
    assert len(device.created) == 2
    figures_agree(pool, device)


async def test_a_piece_that_no_buffer_can_hold_is_refused() -> None:
    device = fake_device(max_buffer=16 * MIB)
    pool = Pool(device, 100 * MIB)
    with pytest.raises(OutOfMemory, match=f"{16 * MIB + 256} bytes is larger than the largest buffer"):
        await pool.add_slabs("weights", 40 * MIB, 16 * MIB + 256)
    assert device.created == []


async def test_when_the_third_of_four_slabs_fails_all_are_given_back() -> None:
    device = fake_device(max_buffer=4 * MIB, memory=13 * MIB)
    pool = Pool(device, 100 * MIB)
    await pool.add_slabs("weights", 4 * MIB, MIB)
    with pytest.raises(OutOfMemory, match=f"taking a slab of {4 * MIB} bytes for workspace"):
        await pool.add_slabs("workspace", 16 * MIB, MIB)
    assert (device.live, len(device.created)) == (4 * MIB, 4)
    figures_agree(pool, device)
    await pool.add_slabs("workspace", 8 * MIB, MIB)  # smaller goes
    figures_agree(pool, device)


async def test_cancelled_while_the_device_answers_all_is_given_back() -> None:
    device = fake_device(max_buffer=4 * MIB)
    pool = Pool(device, 100 * MIB)

    async def never() -> None:
        await asyncio.Event().wait()

    async def second_hangs() -> None:
        if len(device.created) == 2:
            await never()

    device.before_scope_closes = second_hangs
    task = asyncio.create_task(pool.add_slabs("weights", 12 * MIB, MIB))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(device.created) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert device.live == 0
    figures_agree(pool, device)


async def test_a_creation_that_throws_counts_for_nothing() -> None:
    device = fake_device(max_buffer=4 * MIB)
    pool = Pool(device, 100 * MIB)
    create = device.handle.createBuffer

    def refuse(**descriptor: Any) -> Any:
        if len(device.created) == 2:
            raise RuntimeError("RangeError: size")
        return create(**descriptor)

    device.handle.createBuffer = refuse
    with pytest.raises(RuntimeError):
        await pool.add_slabs("weights", 12 * MIB, MIB)
    assert device.live == 0
    figures_agree(pool, device)


async def test_a_lost_device_is_asked_for_nothing() -> None:
    device = fake_device()
    pool = Pool(device, 100 * MIB)
    device.lost = True
    for call in (pool.state_buffer, lambda: pool.readback_ring(256), lambda: pool.constants_buffer(256)):
        with pytest.raises(DeviceLost):
            await call()
    with pytest.raises(DeviceLost):
        await pool.add_slabs("weights", MIB, MIB)
    assert device.created == []
    figures_agree(pool, device)


async def test_what_lies_outside_the_slabs_is_counted_too() -> None:
    device = fake_device()
    pool = Pool(device, 0)
    await pool.state_buffer()
    assert (await pool.constants_buffer(512)).size == 512
    ring = await pool.readback_ring(1000)
    assert (len(ring), {buffer.size for buffer in ring}) == (RING_SLOTS, {1024})
    assert pool.memory()["objects"] == {"slab": 0, "state": 1, "constants": 1, "readback": RING_SLOTS, "queries": 0}
    figures_agree(pool, device)
    pool.close()
    assert device.live == 0
    assert not any(pool.memory()["objects"].values())


async def test_roles_do_not_mix() -> None:
    pool = Pool(fake_device(), 10 * MIB)
    await pool.add_slabs("weights", MIB, MIB)
    assert pool.take("workspace", 256, "a") is None
    region = pool.take("weights", 256, "a")
    assert region is not None
    assert region.slab.role == "weights"


async def test_a_slice_past_its_region_is_refused_before_any_gpu_call() -> None:
    pool = Pool(fake_device(), MIB)
    await pool.add_slabs("workspace", MIB, MIB)
    pool.take("workspace", 256, "before")
    region = pool.take("workspace", 1000, "cat", "paw")
    assert region is not None
    buffer = region.slab.buffer
    assert region.slice(0, 1024) == (buffer, 256, 1024)
    assert region.slice(512, 512) == (buffer, 768, 512)
    for offset, nbytes in ((0, 1025), (1024, 4), (-4, 8), (0, 0), (4, -4), (1 << 40, 4)):
        with pytest.raises(OutOfPool, match="lie outside the 1024 bytes of cat/paw"):
            region.slice(offset, nbytes)


async def test_nothing_is_given_back_twice() -> None:
    pool = Pool(fake_device(), MIB)
    await pool.add_slabs("workspace", MIB, MIB)
    region = pool.take("workspace", 1000, "a")
    assert region is not None
    pool.give_back(region)
    with pytest.raises(KeyError):
        pool.give_back(region)


class PoolMachine(RuleBasedStateMachine):
    """Regions of three tenants in slabs of two roles: never one over another, and the figures always agree."""

    regions: Bundle[Region] = Bundle("regions")

    def __init__(self) -> None:
        super().__init__()
        self.device = fake_device(max_buffer=16 * 256)
        self.pool = Pool(self.device, 100 * 256)
        self.held: list[Region] = []
        for role, blocks in (("weights", 40), ("workspace", 20)):
            asyncio.run(self.pool.add_slabs(role, blocks * 256, 256))  # type: ignore[arg-type]

    @rule(
        target=regions,
        role=st.sampled_from(["weights", "workspace"]),
        nbytes=st.integers(0, 17 * 256),
        tenant=st.sampled_from("abc"),
    )
    def take(self, role: Any, nbytes: int, tenant: str) -> Any:
        region = self.pool.take(role, nbytes, tenant)
        gaps = [slab.free.largest for slab in self.pool.slabs if slab.role == role]
        if region is None:
            assert max(gaps) < max(nbytes, 1)
            return multiple()
        assert (region.tenant, region.slab.role) == (tenant, role)
        assert nbytes <= region.size < nbytes + 257
        assert region.offset % 256 == 0
        assert region.offset + region.size <= region.slab.size
        self.held.append(region)
        return region

    @rule(region=consumes(regions))
    def give_back(self, region: Region) -> None:
        self.pool.give_back(region)
        self.held = [other for other in self.held if other is not region]

    @invariant()
    def none_lies_over_another(self) -> None:
        for slab in self.pool.slabs:
            mine = sorted((r.offset, r.offset + r.size) for r in self.held if r.slab is slab)
            assert all(before[1] <= after[0] for before, after in pairwise(mine))

    @invariant()
    def the_figures_agree(self) -> None:
        figures_agree(self.pool, self.device)
        tenants = {name: sum(r.size for r in self.held if r.tenant == name) for name in "abc"}
        assert self.pool.memory()["tenants"] == {name: size for name, size in tenants.items() if size}

    def teardown(self) -> None:
        self.pool.close()
        assert self.device.live == 0
        assert self.pool.memory()["slabs"] == []


TestPool = PoolMachine.TestCase


@given(st.integers(0, 1000), st.integers(4, 300), st.integers(0, 1000))
def test_slabs_never_pass_the_budget_nor_the_largest_buffer(nbytes: int, largest: int, budget: int) -> None:
    device = fake_device(max_buffer=largest * 64)
    pool = Pool(device, budget * 256)
    try:
        asyncio.run(pool.add_slabs("weights", nbytes * 100, 0))
    except OutOfMemory:
        assert nbytes * 100 > budget * 256
    assert device.live <= budget * 256
    assert all(slab.size <= largest * 64 for slab in pool.slabs)
    figures_agree(pool, device)
