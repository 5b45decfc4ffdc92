"""Residency on a device without a GPU: what moves when models take turns, and which bytes lie where."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyapp.errors import DeviceLost, OutOfMemory, OutOfPool
from pyapp.gpu import residency as residency_module
from pyapp.gpu.placement import Placement, place
from pyapp.gpu.pool import Pool
from pyapp.gpu.residency import MOVES_KEPT, READS_AHEAD, UPLOAD_BYTES, Residency
from pyapp.models.decoder import expected_shapes
from pyapp.models.decoder_weights import recipes_by_block
from pyapp.models.efficientnet import build_graph, pack_layout
from pyapp.weights.blocks import Block, blocks_of
from pyapp.weights.packed import READ_BYTES
from pyapp.weights.packing import Entry, plan_layout

from .decoder_configs import SMOLLM2
from .gpu_fakes import FakeDevice, fake_device

UNIT = 256
Array = NDArray[Any]


def model_of(name: str, units: list[int]) -> tuple[list[Block], dict[str, Entry]]:
    """Blocks of so many 256 bytes, each of one tensor whose last 256 bytes are its scales."""
    blocks, entries, at = [], {}, 0
    for index, size in enumerate(units):
        nbytes = size * UNIT
        entries[f"{name}.{index}"] = Entry(at, nbytes - UNIT, at + nbytes - UNIT, UNIT - 6)
        blocks.append(Block(f"{index}", ((at, nbytes),), {f"{name}.{index}": (0, 1)}))
        at += nbytes
    return blocks, entries


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
    """Models of given block sizes (in 256 bytes) in weights slabs of given sizes: the first grows up, the others down.

    Beside the residency runs a reference: for each 256 bytes of each slab, whose they must be.
    """

    def __init__(self, slabs: list[int], **models: list[int]) -> None:
        self.device: FakeDevice = fake_device(keep_bytes=True)
        device: Any = self.device
        self.pool = Pool(device, sum(slabs) * UNIT)
        for slab in slabs:
            asyncio.run(self.pool.add_slabs("weights", slab * UNIT, 0))
        self.residency = Residency(device, self.pool)
        self.readers = {name: FakeReader(sum(units) * UNIT, seed=i) for i, (name, units) in enumerate(models.items())}
        self.owners = [np.full(slab, "", object) for slab in slabs]
        for number, (name, units) in enumerate(models.items()):
            blocks, entries = model_of(name, units)
            placement = place(blocks, [slab * UNIT for slab in slabs], downward=number > 0)
            self.residency.register(name, blocks, placement, entries, self.readers[name])

    def placement(self, name: str) -> Placement:
        return self.residency.sets[name].placement

    def ensure(self, name: str, progress: Any = None) -> None:
        asyncio.run(self.residency.ensure(name, progress))

    def moved_by(self, name: str) -> int:
        """Units uploaded by a turn."""
        before = self.device.written
        self.ensure(name)
        return (self.device.written - before) // UNIT

    def expect(self, name: str, block: int, reads: int | None = None) -> int:
        """Brings a block in the reference, or what its first ``reads`` reads bring; how many units have to move."""
        label = f"{name}/{block}"
        runs: list[list[tuple[int, int]]] = []
        """Units that are missing, (slab, place), by what lies together in the blob and so is one read."""
        behind = -1
        for home in self.placement(name).homes[block]:
            first = home.offset // UNIT
            for unit in range(home.nbytes // UNIT):
                if self.owners[home.slab][first + unit] == label:
                    continue
                at = home.blob // UNIT + unit
                if at != behind:
                    runs.append([])
                runs[-1].append((home.slab, first + unit))
                behind = at + 1
        assert reads is None or reads < len(runs)
        brought = [each for run in runs[:reads] for each in run]
        for slab, at in brought:
            self.owners[slab][at] = label
        return len(brought)

    def check(self) -> None:
        """The map is the reference's, and every byte that it calls resident is the blob's."""
        for number, slab in enumerate(self.pool.weights):
            seen = np.full(slab.size // UNIT, "", object)
            for start, end, owner in slab.held.spans():
                assert start % UNIT == end % UNIT == 0
                seen[start // UNIT : end // UNIT] = f"{owner.tenant}/{owner.label}"
                block = int(owner.label)
                home = next(h for h in self.placement(owner.tenant).homes[block] if h.slab == number)
                blob = home.blob + start - home.offset
                wanted = self.readers[owner.tenant].bytes[blob : blob + end - start]
                assert np.array_equal(slab.buffer.bytes[start:end], wanted)
            assert (seen == self.owners[number]).all()
        for tenant in self.residency.tenants():
            held = sum(int(sum(str(o).startswith(f"{tenant['name']}/") for o in each)) for each in self.owners)
            assert tenant["resident"] == held * UNIT

    def holds_its_bytes(self, name: str) -> None:
        """What ``locate`` names is what the blob has there."""
        weights = self.residency.sets[name]
        for tensor in weights.entries:
            for section in ("quants", "scales"):
                begin, size = weights.section(tensor, section)
                buffer, offset, nbytes = self.residency.locate(name, tensor, section, 0, None)
                assert size <= nbytes < size + 4
                wanted = self.readers[name].bytes[begin : begin + nbytes]
                assert np.array_equal(buffer.bytes[offset : offset + nbytes], wanted), (tensor, section)


def test_models_that_fit_together_move_once() -> None:
    turns = Turns([20], a=[3, 4, 5], b=[6, 2])
    assert turns.moved_by("a") == 12
    assert turns.moved_by("b") == 8
    for name in "abab":
        assert turns.moved_by(name) == 0
    turns.holds_its_bytes("a")
    turns.holds_its_bytes("b")


def test_only_what_overlaps_moves_and_the_last_blocks_give_way() -> None:
    turns = Turns([13], a=[2, 2, 2, 2, 2], b=[2, 2, 2])
    turns.ensure("a")
    assert turns.moved_by("b") == 6
    held = turns.pool.weights[0].held
    assert [held.held_by(turns.residency.sets["a"].owner(block)) // UNIT for block in range(5)] == [2, 2, 2, 1, 0]
    for name in "abab":
        assert turns.moved_by(name) == 3  # 16 units in 13: to the byte
    turns.holds_its_bytes("b")


def test_a_part_of_a_section_is_found() -> None:
    turns = Turns([20], a=[3, 8])
    turns.ensure("a")
    buffer, offset, nbytes = turns.residency.locate("a", "a.1", "quants", 2 * UNIT, 102)
    assert nbytes == 104  # whole words
    begin = 3 * UNIT + 2 * UNIT
    assert np.array_equal(buffer.bytes[offset : offset + nbytes], turns.readers["a"].bytes[begin : begin + nbytes])


def test_a_part_that_does_not_lie_together_is_refused() -> None:
    turns = Turns([4, 20], a=[3, 8])
    with pytest.raises(OutOfPool, match="do not lie together"):
        turns.residency.locate("a", "a.0", "quants", 0, 4 * UNIT)


@pytest.mark.parametrize("fail_at", [1, 2, 3])
@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError()], ids=["error", "cancelled"])
def test_an_upload_that_is_cut_is_made_good(
    monkeypatch: pytest.MonkeyPatch, fail_at: int, error: BaseException
) -> None:
    monkeypatch.setattr(residency_module, "UPLOAD_BYTES", 4 * UNIT)
    turns = Turns([12], a=[2, 3, 4], b=[3, 3, 3])
    turns.ensure("b")
    turns.readers["a"].fail_at, turns.readers["a"].error = fail_at, error
    before = turns.device.written
    with pytest.raises(type(error)):
        turns.ensure("a")
    assert turns.device.written - before == 4 * (fail_at - 1) * UNIT
    assert turns.moved_by("a") == 9 - 4 * (fail_at - 1)
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
    assert turns.readers["a"].reads == 3
    total = (9 + units) * UNIT
    assert seen == [(UPLOAD_BYTES, total), (2 * UPLOAD_BYTES, total), (total, total)]
    turns.holds_its_bytes("a")


def test_small_blocks_are_read_together_but_written_each_to_its_place() -> None:
    turns = Turns([8, 9], a=[3, 4, 2, 5])
    turns.ensure("a")
    assert turns.readers["a"].reads == 1
    assert turns.residency.uploads == 4
    assert {home.slab for homes in turns.placement("a").homes for home in homes} == {0, 1}
    turns.holds_its_bytes("a")


async def test_the_next_parts_are_read_while_one_is_waited_for_and_no_more_than_those(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(residency_module, "UPLOAD_BYTES", UNIT)
    turns = await asyncio.to_thread(Turns, [20], a=[4, 4, 4])
    reader, gate, under_way, most = turns.readers["a"], asyncio.Event(), 0, 0
    read = reader.read_js

    async def slow(offset: int, length: int) -> Array:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await gate.wait()
        finally:
            under_way -= 1
        return await read(offset, length)

    reader.read_js = slow  # type: ignore[method-assign]
    ensuring = asyncio.ensure_future(turns.residency.ensure("a"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (under_way, turns.device.written) == (READS_AHEAD, 0)
    ensuring.cancel()
    await asyncio.wait([ensuring])
    assert turns.device.written == 0
    gate.set()
    await turns.residency.ensure("a")
    assert most == READS_AHEAD
    turns.holds_its_bytes("a")


def test_moves_are_told() -> None:
    turns = Turns([4], a=[4], b=[3])
    turns.ensure("a")
    turns.ensure("b")
    told = [
        (m["tenant"], m["label"], m["slab"], m["offset"], m["bytes"], m["direction"]) for m in turns.residency.moves
    ]
    assert told == [
        ("a", "0", 0, 0, 4 * UNIT, "in"),
        ("a", "0", 0, UNIT, 3 * UNIT, "out"),
        ("b", "0", 0, UNIT, 3 * UNIT, "in"),
    ]
    assert (turns.residency.moved_bytes, turns.residency.uploads) == (7 * UNIT, 2)
    for _ in range(MOVES_KEPT):
        turns.ensure("a")
        turns.ensure("b")
    assert len(turns.residency.moves) == MOVES_KEPT


def test_what_is_evicted_comes_back_whole() -> None:
    turns = Turns([20], a=[3, 4, 5], b=[6, 2])
    turns.ensure("a")
    turns.ensure("b")
    turns.residency.evict()
    assert [turns.residency.resident(name) for name in "ab"] == [0, 0]
    assert turns.residency.moves[-1]["direction"] == "out"
    assert turns.moved_by("a") == 12
    assert turns.moved_by("b") == 8
    turns.holds_its_bytes("a")


SIZES = st.lists(st.integers(2, 9), min_size=1, max_size=7)


@given(
    st.lists(SIZES, min_size=1, max_size=3),
    st.lists(st.integers(9, 30), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 4)), max_size=14),
)
@example([[2, 2, 3, 4], [2], [7]], [9], [(2, 0), (0, 0), (2, 2)])  # the second of two missing pieces of a block fails
def test_any_turns_of_any_models_in_any_slabs(
    models: list[list[int]], slabs: list[int], steps: list[tuple[int, int]]
) -> None:
    """Whatever is placed runs: pinned blocks at each turn, the others one after the other; cut uploads are made good.
    Each turn moves what the reference says, to the byte."""
    names = "abc"[: len(models)]
    try:
        turns = Turns(slabs, **dict(zip(names, models, strict=True)))
    except OutOfMemory:
        return
    for number, fail_at in steps:
        name = names[number % len(names)]
        reader = turns.readers[name]
        reader.fail_at = reader.reads + fail_at if fail_at > 0 else -1
        pinned = turns.residency.sets[name].pinned
        for block in [*pinned, *sorted(turns.placement(name).streamed)]:
            before, reads = turns.device.written, reader.reads
            try:
                asyncio.run(turns.residency.bring(name, block))
            except OSError:
                # A block of which several pieces are missing keeps those that came before the one that failed.
                assert reader.reads == reader.fail_at
                assert turns.device.written - before == turns.expect(name, block, reader.reads - reads - 1) * UNIT
                break
            assert turns.device.written - before == turns.expect(name, block) * UNIT
        turns.check()
        if reader.reads != reader.fail_at and not turns.placement(name).streamed:
            turns.holds_its_bytes(name)


@given(st.lists(st.integers(1, 8), min_size=2, max_size=2), st.integers(2, 12), st.integers(0, 20))
def test_a_switch_moves_exactly_what_the_models_overlap_by(counts: list[int], size: int, room: int) -> None:
    slab = max(counts) * size + room % (min(counts) * size + 1)
    turns = Turns([slab], a=[size] * counts[0], b=[size] * counts[1])
    turns.ensure("a")
    turns.ensure("b")
    for name in "abab":
        assert turns.moved_by(name) == max(0, sum(counts) * size - slab)


@settings(max_examples=1)
@given(st.integers(0, 1 << 30))
def test_ten_thousand_changes_at_95_percent_never_fail(seed: int) -> None:
    """Two models that fill the slabs to 95 % and more, and a third that is streamed through what is left of them."""
    rng = random.Random(seed)
    models = {name: [rng.randint(2, 9) for _ in range(12)] for name in "ab"}
    total = sum(map(sum, models.values()))
    turns = Turns([total * 100 // 96, 40], **models, c=[rng.randint(2, 9) for _ in range(16)])
    names = "abc"
    for _ in range(10_000):
        name = rng.choice(names)
        block = rng.randrange(len(turns.residency.sets[name].blocks))
        before = turns.device.written
        asyncio.run(turns.residency.bring(name, block))
        assert turns.device.written - before == turns.expect(name, block) * UNIT
    turns.check()


@pytest.mark.parametrize("part", range(11))
async def test_the_real_models_move_their_overlap_and_no_more(part: int) -> None:
    """SmolLM2's blocks and EfficientNet's, in slabs from both side by side down to the larger one alone."""
    tensors = {
        name: SimpleNamespace(shape=shape, type="F32" if len(shape) == 1 else "Q4_1")
        for name, shape in expected_shapes(SMOLLM2).items()
    }
    language, vision = plan_layout(recipes_by_block(SMOLLM2, tensors)), pack_layout(build_graph())

    class Zeros:
        def __init__(self) -> None:
            self.reads: list[tuple[int, int]] = []

        async def read_js(self, offset: int, length: int) -> bytes:
            self.reads.append((offset, length))
            return bytes(length)

        async def close(self) -> None: ...

    overlap = vision.total * part // 10 // UNIT * UNIT
    device = fake_device()
    pool = Pool(device, 1 << 30)
    slab = language.total + vision.total - overlap
    await pool.add_slabs("weights", slab, 0)
    residency = Residency(device, pool)
    readers = {"language": Zeros(), "vision": Zeros()}
    for name, layout, blocks in (
        ("language", language, blocks_of(language)),
        ("vision", vision, blocks_of(vision, by_rows=False)),
    ):
        placement = place(blocks, [slab], downward=name == "vision")
        assert not placement.streamed
        assert all(len(runs) == 1 for runs in placement.pieces(blocks).values())  # every weight is one binding
        residency.register(name, blocks, placement, layout.entries, readers[name])
    for turn, name in enumerate(("vision", "language") * 3):
        before = device.written
        await residency.ensure(name)
        if turn > 1:
            assert device.written - before == overlap
        else:  # the whole blob, as it is read ahead
            total = {"language": language, "vision": vision}[name].total
            assert readers[name].reads == [(at, min(READ_BYTES, total - at)) for at in range(0, total, READ_BYTES)]
