"""Reader for GGUF files, versions 2 and 3, little endian.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Nothing in the file is trusted: each count is
checked against the bytes that are left before anything is allocated, so a small file costs little however large
the numbers in it are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadModel
from .quants import GGML_TYPES
from .source import Bytes, Source

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 64 << 20
"""The largest vocabularies in use (262,144 tokens with merges) take about 16 MB."""
MAX_ARRAY_ITEMS = 4 << 20
MAX_ENTRIES = 1 << 16
MAX_VALUES = 1 << 40
MAX_ALIGNMENT = 1 << 20
_FIRST_READ = 2 << 20

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip


class NeedMoreBytes(Exception):
    """The head ends too early: give at least ``needed`` bytes from the start of the file."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"at least {needed} bytes of the file's head are needed")
        self.needed = needed


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file.

    Attributes:
        shape: row-major, ``(rows, columns)`` for a matrix: the reverse of the order in a GGUF file.
        type: name of the element type, ``"Q4_1"``, ``"F32"``…
        offset: of its first byte, from the start of the file.
        nbytes: bytes it takes there.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int

    @property
    def values(self) -> int:
        """How many numbers it holds."""
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count


@dataclass(frozen=True)
class GGUFFile:
    """What the head of a GGUF file says. Arrays in ``metadata`` are plain lists."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_offset: int


async def read_gguf(source: Source) -> GGUFFile:
    """Reads as much of ``source`` as the head needs, and parses it.

    Raises:
        BadModel: no GGUF file, or a damaged or hostile one.
    """
    # Reading ahead saves rounds, but never for bytes that would have to be downloaded for it.
    near: int = getattr(source, "near", source.size)
    ahead, needed = _FIRST_READ, 24
    while True:
        head = await source.read(0, min(source.size, max(needed, min(ahead, near))))
        try:
            return parse_gguf(head, source.size)
        except NeedMoreBytes as more:
            ahead, needed = 4 * ahead, more.needed


def parse_gguf(source_head: bytes | Bytes, file_size: int) -> GGUFFile:
    """Parses the head of a file of ``file_size`` bytes.

    Raises:
        NeedMoreBytes: the head given is too short, though the file may be sound.
        BadModel: no GGUF file, or a damaged or hostile one; says how many bytes are missing where it is cut.
    """
    cursor = _Cursor(source_head if isinstance(source_head, bytes) else source_head.tobytes(), file_size)
    tensor_count, entry_count = _read_counts(cursor)
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key = cursor.text("a metadata key", 65535)
        if key in metadata:
            raise BadModel(f"The GGUF file has the metadata key {key!r} twice.", key=key)
        metadata[key] = cursor.value(cursor.number("<I"), key)
    alignment = _alignment(metadata)
    if metadata.get("split.count", 0) not in (0, 1):
        parts = f"{metadata['split.count']!s:.20}"
        raise BadModel(f"This is one part of a GGUF file cut into {parts}; join them with llama-gguf-split first.")
    raw = [_read_tensor(cursor) for _ in range(tensor_count)]
    data_offset = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset, nbytes in raw:
        if name in tensors:
            raise BadModel(f"The GGUF file has the tensor {name!r} twice.", tensor=name)
        if offset % alignment:
            raise BadModel(f"Tensor {name!r} starts at {offset}, which is no multiple of the alignment {alignment}.")
        tensors[name] = TensorInfo(name, shape, kind, data_offset + offset, nbytes)
    _check_places(tensors, file_size)
    return GGUFFile(metadata, tensors, data_offset)


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    if cursor.size == 0:
        raise BadModel("The model file is empty (0 bytes).", bytes=0)
    start = cursor.data[:4]
    if start != MAGIC[: len(start)]:
        raise BadModel(f"This is no GGUF file: it begins with {start!r} instead of {MAGIC!r}.")
    cursor.take(4)
    version = cursor.number("<I")
    if version not in (2, 3):
        if version in (2 << 24, 3 << 24):
            raise BadModel("This GGUF file is big endian; only little endian files can be read. Convert it first.")
        raise BadModel(f"This GGUF file has version {version}; versions 2 and 3 can be read. Convert it again.")
    tensor_count, entry_count = cursor.number("<Q"), cursor.number("<Q")
    for count, what, least in ((tensor_count, "tensors", 33), (entry_count, "metadata entries", 14)):
        if count > MAX_ENTRIES:
            raise BadModel(f"The GGUF file claims {count} {what}; at most {MAX_ENTRIES} are allowed.", count=count)
        cursor.require(cursor.at + count * least, what)
    return tensor_count, entry_count


def _alignment(metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise BadModel(
            f"The GGUF file's general.alignment is {alignment!r:.40}; it must be a power of two up to {MAX_ALIGNMENT}."
        )
    return alignment


def _read_tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], str, int, int]:
    name = cursor.text("a tensor name", 255)
    rank = cursor.number("<I")
    if not 1 <= rank <= 4:
        raise BadModel(f"Tensor {name!r} has {rank} dimensions; 1 to 4 are allowed.", tensor=name)
    dimensions = struct.unpack(f"<{rank}Q", cursor.take(8 * rank))
    values = 1
    for dimension in dimensions:
        values *= dimension
    if not 1 <= values <= MAX_VALUES:
        raise BadModel(f"Tensor {name!r} has impossible dimensions {dimensions}.", tensor=name)
    kind = GGML_TYPES.get(type_id := cursor.number("<I"))
    if kind is None:
        raise BadModel(f"Tensor {name!r} has the unknown element type {type_id}.", tensor=name)
    if dimensions[0] % kind.values:
        raise BadModel(
            f"Tensor {name!r} has rows of {dimensions[0]}, no multiple of {kind.name}'s {kind.values} values."
        )
    return name, dimensions[::-1], kind.name, cursor.number("<Q"), values // kind.values * kind.nbytes


def _check_places(tensors: dict[str, TensorInfo], file_size: int) -> None:
    end, last = 0, ""
    for tensor in sorted(tensors.values(), key=lambda each: each.offset):
        if tensor.offset < end:
            raise BadModel(f"The tensors {last!r} and {tensor.name!r} overlap in the GGUF file.")
        end, last = tensor.offset + tensor.nbytes, tensor.name
    if end > file_size:
        raise _too_short(file_size, end)


def _too_short(have: int, need: int) -> BadModel:
    return BadModel(
        f"The GGUF file is cut short: it has {have} bytes and needs at least {need}. Download it again.",
        bytes=have,
        needed=need,
    )


class _Cursor:
    """Reads forward through the head; tells a head that is too short from a file that is too short."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size, self.at = data, size, 0
        self.items = 0

    def require(self, end: int, what: str) -> None:
        """The file must have at least ``end`` bytes, the head among them no more than the limit."""
        if end > self.size:
            raise _too_short(self.size, end)
        if end > MAX_HEADER_BYTES:
            raise BadModel(
                f"The GGUF file's head claims {end} bytes ({what!r:.80}); at most {MAX_HEADER_BYTES} are allowed."
            )

    def take(self, count: int, what: str = "its head") -> bytes:
        end = self.at + count
        self.require(end, what)
        if end > len(self.data):
            raise NeedMoreBytes(end)
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def text(self, what: str, longest: int) -> str:
        length = self.number("<Q")
        if length > longest:
            raise BadModel(f"The GGUF file has {what} of {length} bytes; at most {longest} are allowed.", length=length)
        return _decode(self.take(length, what), what)

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.text(f"a text ({key!r:.80})", MAX_HEADER_BYTES)
        if kind == _ARRAY:
            return self.array(self.number("<I"), self.number("<Q"), key)
        return self.numbers(kind, 1, key)[0]

    def array(self, kind: int, count: int, key: str) -> list[Any]:
        if kind == _ARRAY:
            raise BadModel(f"The GGUF file's {key!r:.80} is an array of arrays, which no model needs.", key=key)
        self.items += count
        if self.items > MAX_ARRAY_ITEMS:
            raise BadModel(f"The GGUF file's {key!r:.80} has {count} items; {MAX_ARRAY_ITEMS} in all are allowed.")
        return self.strings(count, key) if kind == _STRING else self.numbers(kind, count, key)

    def numbers(self, kind: int, count: int, key: str) -> list[Any]:
        if kind not in _NUMBERS:
            raise BadModel(f"The GGUF file's {key!r:.80} has values of the unknown type {kind}.", key=key)
        dtype = np.dtype(_NUMBERS[kind])
        values = np.frombuffer(self.take(count * dtype.itemsize, key), dtype)
        if kind == _BOOL:
            if (values > 1).any():
                raise BadModel(f"The GGUF file's {key!r:.80} holds a truth value that is neither 0 nor 1.", key=key)
            values = values.astype(np.bool_)
        listed: list[Any] = values.tolist()
        return listed

    def strings(self, count: int, key: str) -> list[str]:
        self.require(self.at + 8 * count, key)
        joined = self._short_texts(count, key)
        if joined is not None:
            try:
                return joined.decode().split("\n")
            except UnicodeDecodeError as error:
                raise _not_text(key, error) from None
        pieces = self._pieces(count, key)
        try:
            # Together, which is faster; a line end in one of them shows in their number.
            texts = b"\n".join(pieces).decode().split("\n")
        except UnicodeDecodeError as error:
            raise _not_text(key, error) from None
        return texts if len(texts) == count else [piece.decode() for piece in pieces]

    def _short_texts(self, count: int, key: str) -> bytes | None:
        """The next ``count`` texts with line ends between, found without a loop where all have 1 to 255 bytes, no NUL
        and no line end: then the seven zeros of a length's upper bytes stand before each of them and nowhere else.
        None where that is not so.
        """
        if not count:
            return None
        # Most texts are of a few bytes; no more is looked through than such texts can take, for each of many arrays.
        for widest in (24, 8 + 255):
            data = np.frombuffer(self.data, np.uint8)[self.at : self.at + widest * count]
            zeros = np.flatnonzero(data == 0)[: 7 * count]
            if len(zeros) == 7 * count:
                break
        else:
            return None
        upper = zeros.reshape(count, 7)
        starts, marks = upper[:, 0], upper[:, 6]
        lengths = data[starts - 1].astype(np.int64)
        end = int(marks[-1] + 1 + lengths[-1])
        sound = starts[0] == 1 and (marks - starts == 6).all() and (starts[1:] == marks[:-1] + lengths[:-1] + 2).all()
        if not sound or not lengths.all() or end > len(data) or not data[marks[-1] + 1 : end].all():
            return None
        texts, kept = data[:end].copy(), data[:end] != 0
        if (texts == 0x0A).sum() != (lengths == 0x0A).sum():
            return None
        texts[marks] = 0x0A
        kept[starts - 1] = False
        kept[marks[1:]] = True
        self.require(self.at + end, key)
        self.at += end
        return texts[kept].tobytes()

    def _pieces(self, count: int, key: str) -> list[bytes]:
        """The next ``count`` texts, whatever they are."""
        data, at, length_of = self.data, self.at, struct.Struct("<Q").unpack_from
        known = len(data)
        pieces: list[bytes] = []
        append = pieces.append
        for index in range(count):
            start = at + 8
            at = start + length_of(data, at)[0] if start <= known else start
            if at > known:
                rest = at + 8 * (count - index - 1)
                self.require(rest, key)
                raise NeedMoreBytes(rest)
            append(data[start:at])
        self.at = at
        return pieces


def _decode(piece: bytes, what: str) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        raise _not_text(what, error) from None


def _not_text(what: str, error: UnicodeDecodeError) -> BadModel:
    return BadModel(f"The GGUF file has text that is not UTF-8 in {what!r:.80} ({error.reason}).")
