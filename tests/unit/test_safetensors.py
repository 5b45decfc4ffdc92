"""The safetensors reader: against the reference library, and each rule of the format broken once."""

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from pyapp.errors import BadModel
from pyapp.weights.packing import PackedTensor, SourceRows, pack, plan_layout, unpack
from pyapp.weights.safetensors import read_safetensors
from pyapp.weights.source import BytesSource


async def test_agrees_with_the_reference_library() -> None:
    rng = np.random.default_rng(3)
    tensors: dict[str, np.ndarray] = {
        "conv": rng.normal(size=(8, 4, 3, 3)).astype(np.float32),
        "bias": rng.normal(size=8).astype(np.float16),
        "scalar": np.array(4, np.float32),
        "none": np.zeros((0, 3), np.int64),
        "mask": np.array([True, False]),
    }
    source = BytesSource(safetensors.numpy.save(tensors, metadata={"format": "np"}))
    file = await read_safetensors(source)
    assert file.metadata == {"format": "np"}
    assert set(file.tensors) == set(tensors)
    for name, wanted in tensors.items():
        info = file.tensors[name]
        assert info.shape == wanted.shape
        data = await source.read(info.offset, info.nbytes)
        np.testing.assert_array_equal(data.view(wanted.dtype).reshape(wanted.shape), wanted)


async def test_convolution_weights_pack_as_a_matrix_of_their_output_channels() -> None:
    weights = np.random.default_rng(4).normal(size=(8, 4, 3, 3)).astype(np.float32)
    source = BytesSource(safetensors.numpy.save({"conv": weights}))
    recipe = PackedTensor("conv", (SourceRows("conv"),), "f32", 8, 36)
    layout, blob = plan_layout({"a": [recipe]}), bytearray(2048)

    class Sink:
        async def write(self, offset: int, data: np.ndarray) -> None:
            blob[offset : offset + data.size] = data.tobytes()

    await pack(await read_safetensors(source), source, layout, Sink())
    values = unpack("f32", np.frombuffer(blob, np.uint8), np.zeros(0, np.uint8), 8, 36)
    np.testing.assert_array_equal(values, weights.reshape(8, 36))


def build(header: Any, data: int = 8, length: int | None = None) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


def entry(start: int = 0, end: int = 8, dtype: Any = "F32", shape: Any = (2,), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end], **more}


BROKEN = {
    "too small": (b"1234567", "7 bytes"),
    "enormous header": (build("{}", length=100_000_001), "100000001"),
    "wrapping header": (build("{}", length=2**64 - 1), "18446744073709551615"),
    "header past the end": (build("{}", 0, length=50_000), "cut short: it has 10 bytes and needs 50008"),
    "no JSON": (build("{]"), "cannot be read"),
    "no object": (build("[]"), "brace"),
    "spaces first": (build(" {}"), "brace"),
    "endless nesting": (build('{"a":' + "[" * 100_000), "cannot be read"),
    "a number of many digits": (build('{"a":' + "9" * 10_000 + "}"), "cannot be read"),
    "name twice": (build('{"a":1,"a":2}'), "twice"),
    "not UTF-8": (b"\3\0\0\0\0\0\0\0{\xff}", "cannot be read"),
    "metadata of numbers": (build({"__metadata__": {"a": 1}}, 0), "not made of texts"),
    "no entry": (build({"a": 5}), "not described"),
    "more in an entry": (build({"a": entry(more=1)}), "not described"),
    "unknown type": (build({"a": entry(dtype="F7")}), "unknown type 'F7'"),
    "type that is no text": (build({"a": entry(dtype=[])}), "unknown type"),
    "negative shape": (build({"a": entry(shape=[-2])}), "impossible shape"),
    "true as a size": (build({"a": entry(shape=[True])}), "impossible shape"),
    "float shape": (build({"a": entry(shape=[2.0])}), "impossible shape"),
    "wrapping shape": (build({"a": entry(shape=[2**63, 2])}), "impossible shape"),
    "endless shape": (build({"a": entry(shape=[1] * 9)}), "impossible shape"),
    "backward": (build({"a": entry(8, 0)}), "impossible data_offsets"),
    "wrong length": (build({"a": entry(shape=[3])}), "has 8 bytes; F32 \\[3\\] takes 12"),
    "overlap": (build({"a": entry(), "b": entry(4, 12)}, 12), "overlaps"),
    "hole": (build({"a": entry(), "b": entry(12, 20)}, 20), "hole"),
    "hole at the start": (build({"a": entry(4, 12)}, 12), "hole"),
    "cut data": (build({"a": entry()}, 7), "cut short"),
    "more data": (build({"a": entry()}, 9), "1 bytes after"),
}


@pytest.mark.parametrize("name", list(BROKEN))
async def test_each_broken_rule_is_one_clear_error(name: str) -> None:
    data, why = BROKEN[name]
    with pytest.raises(BadModel, match=why) as caught:
        await read_safetensors(BytesSource(data))
    assert len(caught.value.message) < 400
