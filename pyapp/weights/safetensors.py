"""Reader for safetensors files, with all the rules of the format enforced.

Format: https://github.com/huggingface/safetensors#format. A header of at most 100 MB; each tensor's bytes are those of
its shape and type; the tensors fill the data section without overlap and without holes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import BadModel
from .gguf import TensorInfo
from .source import Source

MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 1 << 16
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class SafetensorsFile:
    """What the header says: free text in ``metadata``, and where each tensor lies in the file."""

    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]
    data_offset: int


async def read_safetensors(source: Source) -> SafetensorsFile:
    """Reads the header of ``source``.

    Raises:
        BadModel: no safetensors file, or a damaged or hostile one.
    """
    if source.size < 8:
        raise BadModel(f"This is no safetensors file: it has {source.size} bytes, fewer than its first field.")
    length = int.from_bytes((await source.read(0, 8)).tobytes(), "little")
    if length > MAX_HEADER_BYTES:
        raise BadModel(
            f"This is no safetensors file: its header would have {length} bytes, more than {MAX_HEADER_BYTES}."
        )
    if 8 + length > source.size:
        raise _too_short(source.size, 8 + length)
    return parse_header((await source.read(8, length)).tobytes(), source.size)


def parse_header(header: bytes, file_size: int) -> SafetensorsFile:
    """Parses the JSON header of a file of ``file_size`` bytes. Raises BadModel."""
    try:
        if not header.startswith(b"{"):
            raise ValueError("it does not begin with a brace")
        entries = json.loads(header.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise BadModel(f"The safetensors file's header cannot be read: {error!s:.120}.") from None
    if not isinstance(entries, dict) or len(entries) > MAX_TENSORS + 1:
        raise BadModel("The safetensors file's header is no list of at most 65536 tensors.")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in metadata.values()):
        raise BadModel("The safetensors file's metadata is not made of texts.")
    data_offset = 8 + len(header)
    tensors = {name: _tensor(name, entry, data_offset) for name, entry in entries.items()}
    _check_places(tensors, data_offset, file_size)
    return SafetensorsFile(metadata, tensors, data_offset)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name appears twice")
    return made


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _tensor(name: str, entry: Any, data_offset: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadModel(f"Tensor {name!r:.80} is not described by dtype, shape and data_offsets.")
    dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise BadModel(f"Tensor {name!r:.80} has the unknown type {dtype!r:.40}.")
    if not isinstance(shape, list) or len(shape) > 8 or not all(map(_is_size, shape)):
        raise BadModel(f"Tensor {name!r:.80} has an impossible shape {shape!r:.120}.")
    if not isinstance(place, list) or len(place) != 2 or not all(map(_is_size, place)) or place[0] > place[1]:
        raise BadModel(f"Tensor {name!r:.80} has impossible data_offsets {place!r:.120}.")
    nbytes = _ITEM_BYTES[dtype]
    for dimension in shape:
        nbytes *= dimension
    if nbytes != place[1] - place[0]:
        raise BadModel(f"Tensor {name!r:.80} has {place[1] - place[0]} bytes; {dtype} {shape} takes {nbytes}.")
    return TensorInfo(name, tuple(shape), dtype, data_offset + place[0], nbytes)


def _check_places(tensors: dict[str, TensorInfo], data_offset: int, file_size: int) -> None:
    end = data_offset
    for tensor in sorted(tensors.values(), key=lambda each: (each.offset, each.nbytes)):
        if tensor.offset != end:
            what = "overlaps another tensor" if tensor.offset < end else "leaves a hole before it"
            raise BadModel(f"Tensor {tensor.name!r:.80} {what}, which the safetensors format forbids.")
        end += tensor.nbytes
    if end > file_size:
        raise _too_short(file_size, end)
    if end < file_size:
        raise BadModel(f"The safetensors file has {file_size - end} bytes after its last tensor; none are allowed.")


def _too_short(have: int, need: int) -> BadModel:
    return BadModel(
        f"The safetensors file is cut short: it has {have} bytes and needs {need}. Download it again.",
        bytes=have,
        needed=need,
    )
