"""The restricted reader of PyTorch's legacy files: right on good files, and nothing but BadModel on bad ones."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyapp.errors import BadModel
from pyapp.setup.torch_legacy import MAGIC, PROTOCOL, read_state_dict
from tests.unit.torch_files import Build, Call, Name, Storage, dumps, legacy_file, state_dict, tensor, tensor_of

ARRAYS: dict[str, Any] = {
    "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2),
    "bn.running_var": np.linspace(0, 1, 5, dtype=np.float64),
    "bn.num_batches_tracked": np.array(7, dtype=np.int64),
    "mask": np.arange(256, dtype=np.uint8).reshape(16, 16),
}
TWELVE = np.arange(12, dtype=np.float32)


def file_of(*arguments: Any) -> bytes:
    """A file of one tensor "x" made by these arguments over a storage "0" of twelve floats."""
    return legacy_file(OrderedDict(x=tensor_of(*arguments)), {"0": TWELVE})


def test_reads_what_was_written() -> None:
    read = read_state_dict(state_dict(ARRAYS))
    assert list(read) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_strides_and_offsets() -> None:
    read = read_state_dict(file_of(Storage("FloatStorage", "0", 12), 1, (3, 2), (1, 4)))
    np.testing.assert_array_equal(read["x"], [[1, 5], [2, 6], [3, 7]])


def test_state_set_on_the_dict_is_harmless() -> None:
    # Real state dicts carry their versions this way.
    described = Build(Call(Name("collections", "OrderedDict"), ()), {"_metadata": {"": {"version": 1}}})
    assert read_state_dict(legacy_file(described, {})) == {}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("torch._utils", "_rebuild_parameter"),
        ("torch", "load"),
        ("collections", "namedtuple"),
        ("numpy", "dtype"),
    ],
)
def test_other_names_are_refused(module: str, name: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evil = Call(Name(module, name), (f"touch {mark}",))
    with pytest.raises(BadModel, match=rf"asks for {module}\.{name}"):
        read_state_dict(legacy_file(OrderedDict(x=evil), {}))
    assert not mark.exists()


@pytest.mark.parametrize("part", range(5))
def test_a_call_in_any_of_the_pickles_is_refused(part: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    values: list[Any] = [MAGIC, PROTOCOL, {"little_endian": True}, OrderedDict(), []]
    parts = [dumps(value) for value in values]
    parts[part] = dumps(Call(Name("os", "system"), (f"touch {mark}",)))
    with pytest.raises(BadModel, match=r"asks for os\.system"):
        read_state_dict(b"".join(parts))
    assert not mark.exists()


def test_what_one_file_sets_does_not_reach_the_next() -> None:
    poison = Build(Name("torch._utils", "_rebuild_tensor_v2"), (None, {"__defaults__": (1,)}))
    with pytest.raises(BadModel):
        read_state_dict(legacy_file(OrderedDict(x=poison), {}))
    for target in (Name("torch", "FloatStorage"), Storage("FloatStorage", "0", 12)):
        with pytest.raises(BadModel):
            read_state_dict(legacy_file(OrderedDict(x=Build(target, {"elements": 1 << 30})), {"0": TWELVE}))
    assert list(read_state_dict(state_dict(ARRAYS))) == list(ARRAYS)


@pytest.mark.parametrize(
    "arguments",
    [
        (Storage("FloatStorage", "0", 12), 0, (13,), (1,)),
        (Storage("FloatStorage", "0", 12), 12, (1,), (1,)),
        (Storage("FloatStorage", "0", 12), 0, (2, 6), (7, 1)),
        (Storage("FloatStorage", "0", 12), -1, (2,), (1,)),
        (Storage("FloatStorage", "0", 12), 0, (2,), (-1,)),
        (Storage("FloatStorage", "0", 12), 0, (1 << 62,), (0,)),
        (Storage("FloatStorage", "0", 12), 0, (1000, 1000), (0, 0)),
        (Storage("FloatStorage", "0", 12), 0, (0, 1 << 39), (1, 1)),
        (Storage("FloatStorage", "0", 12), 0, (2, 2), (1,)),
        (Storage("FloatStorage", "0", 12), 0, (1,) * 40, (1,) * 40),
        (Storage("FloatStorage", "0", 12), 0, [3], [1]),
        (Storage("FloatStorage", "0", 12), True, (3,), (1,)),
        (Storage("FloatStorage", "0", 12), 0.0, (3,), (1,)),
        (Storage("FloatStorage", "0", 13), 0, (3,), (1,)),
        (Storage("FloatStorage", "0", 1 << 39), 0, (3,), (1,)),
        (Storage("DoubleStorage", "0", 12), 0, (3,), (1,)),
        (Storage("FloatStorage", "1", 12), 0, (3,), (1,)),
        (Storage.of_pid("storage", "FloatStorage", "0", "cpu", 12, None), 0, (3,), (1,)),
        (Storage.of_pid("storage", Name("torch", "FloatStorage"), "0", "cpu", 12, ("0", 0, 3)), 0, (3,), (1,)),
        (Storage.of_pid("module", Name("torch", "FloatStorage"), "0", "cpu", 12, None), 0, (3,), (1,)),
        (Storage.of_pid("0"), 0, (3,), (1,)),
        (TWELVE.tolist(), 0, (3,), (1,)),
    ],
)
def test_descriptions_that_do_not_fit(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(BadModel):
        read_state_dict(file_of(*arguments))


def test_other_formats_are_named() -> None:
    for data in (b"", b"PK\x03\x04", dumps(1) + dumps(2)):
        with pytest.raises(BadModel, match=r"legacy format|damaged"):
            read_state_dict(data)
    with pytest.raises(BadModel, match="little-endian"):
        read_state_dict(legacy_file(OrderedDict(), {}, little_endian=False))
    with pytest.raises(BadModel, match="besides tensors"):
        read_state_dict(legacy_file(OrderedDict(x=3), {}))
    with pytest.raises(BadModel, match="other storages"):
        read_state_dict(legacy_file(OrderedDict(x=tensor("0", TWELVE)), {"0": TWELVE, "1": TWELVE}))


GOOD = state_dict(ARRAYS)


@given(st.integers(0, len(GOOD) - 1))
def test_every_cut_is_noticed(length: int) -> None:
    with pytest.raises(BadModel):
        read_state_dict(GOOD[:length])


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_raise_nothing_else(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for position, value in changes:
        data[position] = value
    try:
        read = read_state_dict(bytes(data))
    except BadModel:
        return
    assert sum(array.nbytes for array in read.values()) <= len(data)
