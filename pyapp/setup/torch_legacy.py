"""Reads a state dict from PyTorch's legacy file format (before 1.6) without PyTorch and without running its code.

The format, as ``torch.serialization._legacy_load`` reads it: five pickles one after the other (a magic number, the
protocol, system facts, the object, the list of storage keys), then for each key, in that order, an int64 count
and the raw elements, little-endian. Tensors in the object refer to storages by persistent id.

A pickle can call anything it names, so the names are limited to the three kinds that a state dict needs.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyapp.errors import BadModel

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
STORAGES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}
MOST_DIMENSIONS = 8
LARGEST = 1 << 40  # elements; more than any file has, and far from overflowing an int64 when multiplied by 8

Array = NDArray[Any]


# What the pickles may build besides plain containers. Named tuples, since a pickle can also set attributes on whatever
# it has got hold of (BUILD), and these have none to set.
class _Kind(NamedTuple):
    name: str


class _Storage(NamedTuple):
    key: str
    kind: str
    elements: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
        raise BadModel(f"The PyTorch file gives {value!r:.40} where a count must stand.")
    return value


def _rebuild_tensor_v2(storage: object, offset: object, shape: Any, strides: Any, *_rest: object) -> _Tensor:
    """Stands in for the function of this name in ``torch._utils``: keeps the description, builds nothing."""
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise BadModel("The PyTorch file describes a tensor without a storage or a shape.")
    if len(shape) != len(strides) or len(shape) > MOST_DIMENSIONS:
        raise BadModel(f"The PyTorch file describes a tensor of {len(shape)} dimensions with {len(strides)} strides.")
    return _Tensor(storage, _whole(offset), tuple(map(_whole, shape)), tuple(map(_whole, strides)))


# The unpickler written in Python, since the one in C reserves memory for whatever memo index a file names.
class _Unpickler(pickle._Unpickler):
    """Knows OrderedDict, ``_rebuild_tensor_v2`` and the storage types; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            # A fresh function each time: what a file does to one has no effect on the next.
            return lambda *arguments: _rebuild_tensor_v2(*arguments)
        if module == "torch" and name in STORAGES:
            return _Kind(name)
        raise BadModel(f"The PyTorch file asks for {module}.{name}; a file of plain weights has no need of it.")

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) == 6 and pid[0] == "storage" and isinstance(pid[1], _Kind)):
            raise BadModel("The PyTorch file refers to something that is not a storage.")
        _, kind, key, _location, count, view = pid
        if view is not None:
            raise BadModel("The PyTorch file holds views of storages, which Tandem does not read.")
        return _Storage(str(key), kind.name, _whole(count))


def _load(stream: BinaryIO) -> Any:
    try:
        return _Unpickler(stream).load()
    except BadModel:
        raise
    # A malformed pickle raises almost anything, from UnpicklingError to MemoryError.
    except Exception as error:
        raise BadModel(f"The PyTorch file is damaged at byte {stream.tell()}: {error}.") from error


def read_state_dict(data: bytes) -> dict[str, Array]:
    """Tensors by name, in the file's order, each with its own memory. Raises BadModel for anything else."""
    stream = io.BytesIO(data)
    if not data.startswith(pickle.PROTO) or _load(stream) != MAGIC or _load(stream) != PROTOCOL:
        raise BadModel("This is not a file of PyTorch's legacy format.")
    facts = _load(stream)
    if not isinstance(facts, dict) or facts.get("little_endian") is not True:
        raise BadModel("The PyTorch file is not little-endian.")
    described, keys = _load(stream), _load(stream)
    if not isinstance(described, dict) or not isinstance(keys, list) or not all(isinstance(k, str) for k in keys):
        raise BadModel("The PyTorch file holds no state dict.")
    if not all(isinstance(name, str) and isinstance(value, _Tensor) for name, value in described.items()):
        raise BadModel("The PyTorch file's state dict holds something besides tensors.")
    needed = {tensor.storage.key: tensor.storage for tensor in described.values()}
    storages = _read_storages(data, stream.tell(), keys, needed)
    return {name: _view(name, tensor, storages) for name, tensor in described.items()}


def _read_storages(data: bytes, position: int, keys: list[str], needed: dict[str, _Storage]) -> dict[str, Array]:
    if len(set(keys)) != len(keys) or set(keys) != set(needed):
        raise BadModel("The PyTorch file lists other storages than its tensors use.")
    storages: dict[str, Array] = {}
    for key in keys:
        wanted = needed[key]
        dtype = STORAGES[wanted.kind]
        start, nbytes = position + 8, wanted.elements * dtype.itemsize
        count = int.from_bytes(data[position:start], "little", signed=True)
        if count != wanted.elements or start + nbytes > len(data):
            raise BadModel(
                f"The PyTorch file is cut or damaged: storage {key} should hold {wanted.elements} elements at byte "
                f"{start}, and says {count}; the file has {len(data)} bytes."
            )
        storages[key] = np.frombuffer(data, dtype, wanted.elements, start)
        position = start + nbytes
    return storages


def _view(name: str, tensor: _Tensor, storages: dict[str, Array]) -> Array:
    storage = storages[tensor.storage.key]
    size = math.prod(tensor.shape)
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    # The first comparison alone would let strides of 0 describe an array far larger than the file.
    if size > storage.size or (size and last >= storage.size) or (not size and max(tensor.shape) > storage.size):
        raise BadModel(
            f"Tensor {name} of shape {tensor.shape} reaches to element {last} of a storage of {storage.size} elements."
        )
    strides = tuple(s * storage.dtype.itemsize for s in tensor.strides)
    return np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, strides).copy()
