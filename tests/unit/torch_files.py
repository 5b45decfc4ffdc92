"""Writes files in PyTorch's legacy format without PyTorch, well-formed and otherwise."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyapp.setup.torch_legacy import MAGIC, PROTOCOL

KINDS = {"float32": "FloatStorage", "float64": "DoubleStorage", "int64": "LongStorage", "uint8": "ByteStorage"}


class Name:
    """Pickles as a reference to ``module.name``, which need not exist."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Call:
    """Pickles as a call of ``function`` with ``arguments``; ``state`` is then set on the result (BUILD)."""

    def __init__(self, function: object, arguments: tuple[Any, ...], state: object = None) -> None:
        self.function, self.arguments, self.state = function, arguments, state


class Build:
    """Pickles as setting ``state`` on ``target``."""

    def __init__(self, target: object, state: object) -> None:
        self.target, self.state = target, state


class Storage:
    """Pickles as the persistent id of a storage."""

    def __init__(self, kind: str, key: str, count: int) -> None:
        self.pid: tuple[Any, ...] = ("storage", Name("torch", kind), key, "cpu", count, None)

    @classmethod
    def of_pid(cls, *pid: Any) -> Storage:
        """One with any persistent id."""
        storage = cls("", "", 0)
        storage.pid = pid
        return storage


# The pickler written in Python; typeshed does not know its inner methods.
_Pickler: Any = pickle._Pickler


class Pickler(_Pickler):  # type: ignore[misc]
    """Writes what the classes above ask for, beside everything ordinary."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Name):
            self.write(f"c{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Storage):
            self.save(obj.pid)
            self.write(b"Q")
        elif isinstance(obj, Call):
            self.save(obj.function)
            self.save(obj.arguments)
            self.write(b"R")
            if obj.state is not None:
                self.save(obj.state)
                self.write(b"b")
        elif isinstance(obj, Build):
            self.save(obj.target)
            self.save(obj.state)
            self.write(b"b")
        else:
            super().save(obj, save_persistent_id)


def dumps(value: object) -> bytes:
    """One pickle, protocol 2, as PyTorch writes it."""
    stream = io.BytesIO()
    Pickler(stream, 2).dump(value)
    return stream.getvalue()


def tensor(key: str, array: NDArray[Any]) -> Call:
    """A tensor that is the whole of its storage, row-major."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return tensor_of(Storage(KINDS[array.dtype.name], key, array.size), 0, array.shape, strides)


def tensor_of(storage: object, offset: Any, shape: Any, strides: Any) -> Call:
    rebuild = Name("torch._utils", "_rebuild_tensor_v2")
    return Call(rebuild, (storage, offset, shape, strides, False, Call(Name("collections", "OrderedDict"), ())))


def legacy_file(described: object, storages: Mapping[str, NDArray[Any]], little_endian: bool = True) -> bytes:
    """The five pickles, then the storages."""
    facts = {"protocol_version": PROTOCOL, "little_endian": little_endian, "type_sizes": {"int": 4}}
    parts = [dumps(MAGIC), dumps(PROTOCOL), dumps(facts), dumps(described), dumps(list(storages))]
    for array in storages.values():
        parts += [array.size.to_bytes(8, "little"), array.tobytes()]
    return b"".join(parts)


def state_dict(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A well-formed file of these tensors."""
    keys = {name: str(number) for number, name in enumerate(arrays)}
    described = OrderedDict((name, tensor(keys[name], array)) for name, array in arrays.items())
    return legacy_file(described, {keys[name]: np.ascontiguousarray(array) for name, array in arrays.items()})
