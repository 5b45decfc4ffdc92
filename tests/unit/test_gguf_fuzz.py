"""Whatever happens to a file, the readers give a result or one of our errors: quickly, and without taking memory."""

import asyncio
import json
import tracemalloc
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyapp.errors import BadModel
from pyapp.weights.formats import kernel_format
from pyapp.weights.gguf import GGUFFile, NeedMoreBytes, parse_gguf, read_gguf
from pyapp.weights.packing import PackedTensor, SourceRows, pack, plan_layout
from pyapp.weights.quants import QUANT_TYPES
from pyapp.weights.safetensors import SafetensorsFile, read_safetensors
from pyapp.weights.source import BytesSource

DATA = Path(__file__).parents[1] / "data" / "tiny"
WHOLE = (DATA / "tiny-qwen2-IQ4_NL-tied.gguf").read_bytes()
HEAD = parse_gguf(WHOLE, len(WHOLE)).data_offset
NUMBERS = st.sampled_from([0, 1, 2, 7, 8, 9, 31, 255, 2**31, 2**32 - 1, 2**32, 2**61, 2**63, 2**64 - 1])
MORE = settings(max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(WHOLE)
    for _ in range(draw(st.integers(1, 4))):
        # Half of the blows fall into the first bytes and the tensor list, where the numbers are.
        at = draw(st.one_of(st.integers(0, 200), st.integers(0, HEAD - 8), st.integers(HEAD - 2000, HEAD - 8)))
        if draw(st.booleans()):
            data[at : at + 8] = draw(NUMBERS).to_bytes(8, "little")
        else:
            data[at] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


async def sink_write(offset: int, data: np.ndarray) -> None:
    pass


class Nowhere:
    write = staticmethod(sink_write)


def check(data: bytes) -> GGUFFile | None:
    tracemalloc.start()
    try:
        file = asyncio.run(read_gguf(BytesSource(data)))
    except BadModel:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20
    return file


@MORE
@given(mutated())
def test_a_mutated_gguf_parses_or_is_a_bad_model(data: bytes) -> None:
    file = check(data)
    if file is None:
        return
    for tensor in file.tensors.values():
        assert file.data_offset <= tensor.offset
        assert tensor.offset + tensor.nbytes <= len(data)
    # What parses can be packed, whatever the numbers in it: infinite scales and all.
    usable = [each for each in file.tensors.values() if each.type in QUANT_TYPES and each.values < 1 << 20]
    recipes = [
        PackedTensor(each.name, (SourceRows(each.name),), kernel_format(each.type), each.values // k, k)
        for each in usable
        if (k := each.shape[-1]) % 32 == 0
    ]
    asyncio.run(pack(file, BytesSource(data), plan_layout({"all": recipes}), Nowhere()))


@settings(max_examples=200, deadline=2000)
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_after_a_sound_start(data: bytes, counts: bool) -> None:
    check(WHOLE[: 24 if counts else 8] + data)


@settings(max_examples=200, deadline=2000)
@given(st.integers(0, HEAD), st.integers(0, 1 << 50))
def test_a_cut_head_asks_for_bytes_that_exist(known: int, size: int) -> None:
    needed = known + 1
    try:
        parse_gguf(WHOLE[: min(known, size)], size)
    except NeedMoreBytes as more:
        needed = more.needed
    except BadModel:
        return
    assert known < needed <= max(size, known + 1)


def safetensors_bytes(header: str, data: int) -> bytes:
    return len(header.encode()).to_bytes(8, "little") + header.encode() + bytes(data)


SOUND = json.dumps(
    {
        "__metadata__": {"a": "b"},
        "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "y": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]},
    }
)


def check_safetensors(data: bytes) -> SafetensorsFile | None:
    try:
        file = asyncio.run(read_safetensors(BytesSource(data)))
    except BadModel:
        return None
    for tensor in file.tensors.values():
        assert tensor.offset + tensor.nbytes <= len(data)
    return file


def test_the_sound_safetensors_is_sound() -> None:
    file = check_safetensors(safetensors_bytes(SOUND, 32))
    assert file is not None
    assert file.tensors["x"].shape == (2, 3)


@settings(max_examples=300, deadline=2000)
@given(st.integers(0, 8 + len(SOUND)), st.binary(min_size=1, max_size=8), st.integers(0, 40))
def test_a_mutated_safetensors_parses_or_is_a_bad_model(at: int, blow: bytes, size: int) -> None:
    data = bytearray(safetensors_bytes(SOUND, size))
    data[at : at + len(blow)] = blow
    check_safetensors(bytes(data))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=300, deadline=2000)
@given(
    st.dictionaries(
        st.sampled_from(["__metadata__", "a", "b"]),
        st.one_of(JSON, st.fixed_dictionaries({"dtype": JSON | st.just("F32"), "shape": JSON, "data_offsets": JSON})),
    ),
    st.integers(0, 16),
)
def test_any_json_header_parses_or_is_a_bad_model(header: dict, size: int) -> None:
    check_safetensors(safetensors_bytes(json.dumps(header), size))
