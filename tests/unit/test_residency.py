"""Residency on a device without a GPU: what moves when models take turns, and which bytes lie where."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyapp.errors import DeviceLost, OutOfMemory
from pyapp.gpu.pool import Pool
from pyapp.gpu.residency import UPLOAD_BYTES, Residency
from pyapp.models.decoder import expected_shapes
from pyapp.models.decoder_weights import recipes_by_block
from pyapp.models.efficientnet import build_graph, pack_layout
from pyapp.weights.packing import Entry, plan_layout

from .decoder_configs import SMOLLM2
from .gpu_fakes import FakeDevice, fake_device

UNIT = 256
GAP = 3 << 20
"""What may be left free between blocks of unequal sizes: not more than one of a layer."""
Array = NDArray[Any]


@dataclass(frozen=True)
class FakeBlock:
    name: str
    offset: int
    nbytes: int
    entries: dict[str, Entry]


def blocks_of(model: str, units: list[int]) -> list[FakeBlock]:
    """Blocks of so many 256 bytes, each of one tensor whose last 256 bytes are its scales."""
    blocks, at = [], 0
    for index, size in enumerate(units):
        nbytes = size * UNIT
        entry = Entry(at, nbytes - UNIT, at + nbytes - UNIT, UNIT - 6)
        blocks.append(FakeBlock(f"{index}", at, nbytes, {f"{model}.{index}": entry}))
        at += nbytes
    return blocks


@dataclass
class FakeReader:
    """A blob of random bytes. ``fail_at``: the number of the read that raises ``error``."""

    size: int
    seed: int = 0
    fail_at: int = -1
    error: BaseException = field(default_factory=lambda: OSError("the disk is gone"))
    reads: int = 0
    bytes: Array = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = np.random.default_rng(self.seed).integers(0, 256, self.size, np.uint8)

    async def read_js(self, offset: int, length: int) -> Array:
        await asyncio.sleep(0)
        self.reads += 1
        if self.reads == self.fail_at:
            raise self.error
        assert length <= UPLOAD_BYTES
        return self.bytes[offset : offset + length]

    async def close(self) -> None: ...


class Turns:
    """Models of given block sizes (in 256 bytes) in weights slabs of given sizes."""

    def __init__(self, slabs: list[int], **models: list[int]) -> None:
        self.device: FakeDevice = fake_device(keep_bytes=True)
        device: Any = self.device
        self.pool = Pool(device, sum(slabs) * UNIT)
        for slab in slabs:
            asyncio.run(self.pool.add_slabs("weights", slab * UNIT, 0))
        self.residency = Residency(device, self.pool)
        self.readers = {name: FakeReader(sum(units) * UNIT, seed=i) for i, (name, units) in enumerate(models.items())}
        for name, units in models.items():
            self.residency.register(name, blocks_of(name, units), self.readers[name])

    def ensure(self, name: str, progress: Any = None) -> set[str]:
        return asyncio.run(self.residency.ensure(name, progress))

    def resident(self, name: str) -> list[int]:
        return sorted(self.residency.sets[name].regions)

    def moved_by(self, name: str) -> int:
        """Units uploaded by a turn."""
        before = self.device.written
        self.ensure(name)
        return (self.device.written - before) // UNIT

    def check(self) -> None:
        """What must hold at any time: nothing lies over anything else, and no region is lost."""
        regions = [region for weights in self.residency.sets.values() for region in weights.regions.values()]
        spans = sorted((self.pool.slabs.index(r.slab), r.offset, r.offset + r.size) for r in regions)
        assert all(a[0] < b[0] or a[2] <= b[1] for a, b in pairwise(spans))
        assert sum(slab.free.used for slab in self.pool.slabs) == sum(region.size for region in regions)
        for tenant in self.residency.tenants():
            assert tenant["resident"] == sum(r.size for r in regions if r.tenant == tenant["name"])

    def holds_its_bytes(self, name: str) -> None:
        """What ``locate`` names is what the blob has there."""
        for block in self.residency.sets[name].blocks:
            for tensor, entry in block.entries.items():
                for section, begin, size in (
                    ("quants", entry.quants_offset, entry.quants_bytes),
                    ("scales", entry.scales_offset, entry.scales_bytes),
                ):
                    buffer, offset, nbytes = self.residency.locate(name, tensor, section, 0, None)
                    assert size <= nbytes < size + 4
                    wanted = self.readers[name].bytes[begin : begin + nbytes]
                    assert np.array_equal(buffer.bytes[offset : offset + nbytes], wanted), (tensor, section)


def test_models_that_fit_together_move_once() -> None:
    turns = Turns([20], a=[3, 4, 5], b=[6, 2])
    assert turns.ensure("a") == {"a.0", "a.1", "a.2"}
    assert turns.ensure("b") == {"b.0", "b.1"}
    for name in "abab":
        assert turns.ensure(name) == set()
    assert turns.device.written == 20 * UNIT
    turns.holds_its_bytes("a")
    turns.holds_its_bytes("b")


def test_only_as_much_goes_as_the_newcomer_needs_and_the_last_blocks_first() -> None:
    turns = Turns([12], a=[2, 2, 2, 2, 2], b=[2, 2, 2])
    turns.ensure("a")
    assert turns.ensure("b") == {"b.0", "b.1", "b.2"}  # 2 units were free, 4 more are needed
    assert turns.resident("a") == [0, 1, 2]
    assert turns.ensure("a") == {"a.3", "a.4"}  # and only these come back
    assert turns.resident("b") == [0]
    for name in "baba":
        assert turns.moved_by(name) == 4  # what the two overlap by, each time
    turns.holds_its_bytes("a")


def test_a_part_of_a_section_is_found() -> None:
    turns = Turns([20], a=[3, 8])
    turns.ensure("a")
    buffer, offset, nbytes = turns.residency.locate("a", "a.1", "quants", 2 * UNIT, 102)
    assert nbytes == 104  # whole words
    begin = 3 * UNIT + 2 * UNIT
    assert np.array_equal(buffer.bytes[offset : offset + nbytes], turns.readers["a"].bytes[begin : begin + nbytes])


def test_a_model_larger_than_the_slabs_is_refused_and_leaves_nothing_odd() -> None:
    turns = Turns([10], a=[4, 4], b=[5, 6])
    turns.ensure("a")
    with pytest.raises(OutOfMemory, match=f"b needs {11 * UNIT} bytes of weights; .* hold {10 * UNIT}"):
        turns.ensure("b")
    turns.check()
    turns.ensure("a")
    turns.check()
    turns.holds_its_bytes("a")


@pytest.mark.parametrize("fail_at", [1, 2, 3])
@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError()], ids=["error", "cancelled"])
def test_an_upload_that_is_cut_leaves_no_half_block(fail_at: int, error: BaseException) -> None:
    turns = Turns([12], a=[2, 3, 4], b=[3, 3, 3])
    turns.ensure("b")
    turns.readers["a"].fail_at, turns.readers["a"].error = fail_at, error
    with pytest.raises(type(error)):
        turns.ensure("a")
    turns.check()
    assert turns.resident("a") == list(range(fail_at - 1))
    before = turns.device.written
    assert turns.ensure("a") == {"a.0", "a.1", "a.2"}  # nobody was told of those that had come before the cut
    assert turns.device.written - before == sum([2, 3, 4][fail_at - 1 :]) * UNIT
    turns.holds_its_bytes("a")


def test_a_device_that_goes_while_reading_gets_no_more_bytes() -> None:
    turns = Turns([12], a=[2, 3])
    read = turns.readers["a"].read_js

    async def lost_meanwhile(offset: int, length: int) -> Array:
        data = await read(offset, length)
        turns.device.lost = True
        return data

    turns.readers["a"].read_js = lost_meanwhile  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        turns.ensure("a")
    assert turns.device.written == 0
    turns.check()


def test_large_blocks_are_read_in_pieces() -> None:
    units = 2 * UPLOAD_BYTES // UNIT + 3
    turns = Turns([units + 9], a=[9, units])
    seen: list[tuple[int, int]] = []
    turns.ensure("a", lambda done, total: seen.append((done, total)))
    assert turns.readers["a"].reads == 1 + 3
    assert seen == [(9 * UNIT, (9 + units) * UNIT), ((9 + units) * UNIT, (9 + units) * UNIT)]
    turns.holds_its_bytes("a")


def test_gaps_between_a_models_own_blocks_are_no_end() -> None:
    """a's first two blocks go where they find room, above and between b's; when b is gone no gap holds the third."""
    turns = Turns([14], b=[2, 3, 2], a=[4, 5, 5])
    turns.ensure("b")
    assert turns.moved_by("a") == 4 + 5 + 14  # laid out anew
    for name in "aba":
        turns.ensure(name)
        turns.check()
        turns.holds_its_bytes(name)


SIZES = st.lists(st.integers(2, 9), min_size=1, max_size=7)


@given(
    st.lists(SIZES, min_size=1, max_size=3),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 4)), max_size=14),
)
def test_any_turns_of_any_models_in_one_slab(models: list[list[int]], more: int, steps: list[tuple[int, int]]) -> None:
    """A slab that holds the largest model alone holds any of them at any time; cut uploads are made good."""
    names = "abc"[: len(models)]
    turns = Turns([max(map(sum, models)) + more], **dict(zip(names, models, strict=True)))
    for number, fail_at in steps:
        name = names[number % len(names)]
        others = {other: turns.resident(other) for other in names if other != name}
        mine = turns.resident(name)
        reader = turns.readers[name]
        reader.fail_at = reader.reads + fail_at if fail_at > 0 else -1
        before = turns.device.written
        try:
            turns.ensure(name)
        except OSError:
            turns.check()
            continue
        turns.check()
        turns.holds_its_bytes(name)
        assert turns.resident(name) == list(range(len(turns.residency.sets[name].blocks)))
        if len(mine) == len(turns.residency.sets[name].blocks):
            assert turns.device.written == before
        for other, was in others.items():
            assert turns.resident(other) == was[: len(turns.resident(other))]  # the last ones went


@given(st.lists(st.integers(1, 8), min_size=2, max_size=2), st.integers(1, 12), st.integers(0, 20))
def test_equal_blocks_move_exactly_what_the_models_overlap_by(counts: list[int], size: int, room: int) -> None:
    """With blocks of one size the least that can move is known."""
    slab = max(counts) + room % (min(counts) + 1)
    turns = Turns([slab * (size + 1)], a=[size + 1] * counts[0], b=[size + 1] * counts[1])
    turns.ensure("a")
    turns.ensure("b")
    for name in "abab":
        assert turns.moved_by(name) == max(0, sum(counts) - slab) * (size + 1)


async def test_the_real_models_take_turns_at_any_overlap() -> None:
    """SmolLM2's blocks and EfficientNet's, in slabs from both side by side down to the larger one alone."""
    tensors = {
        name: SimpleNamespace(shape=shape, type="F32" if len(shape) == 1 else "Q4_1")
        for name, shape in expected_shapes(SMOLLM2).items()
    }
    language, vision = plan_layout(recipes_by_block(SMOLLM2, tensors)), pack_layout(build_graph())

    class Zeros:
        async def read_js(self, offset: int, length: int) -> bytes:
            return bytes(length)

        async def close(self) -> None: ...

    for part in range(0, 11):
        overlap = vision.total * part // 10 // UNIT * UNIT
        device = fake_device()
        pool = Pool(device, 1 << 30)
        await pool.add_slabs("weights", language.total + vision.total - overlap, 0)
        residency = Residency(device, pool)
        residency.register("vision", vision.blocks, Zeros())
        residency.register("language", language.blocks, Zeros())
        for turn, name in enumerate(("vision", "language") * 3):
            before = device.written
            await residency.ensure(name)
            # The very first uploads aside, blocks of up to 5 MB bound how near to the overlap it gets.
            if turn > 1:
                assert device.written - before <= overlap + max(block.nbytes for block in vision.blocks) + GAP
            if turn > 1 and not overlap:
                assert device.written == before
