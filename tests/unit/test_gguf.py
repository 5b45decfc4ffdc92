"""The GGUF reader on sound files: against gguf-py, and against what a head says that is cut anywhere."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.errors import BadModel
from pyapp.weights.gguf import NeedMoreBytes, _Cursor, parse_gguf, read_gguf
from pyapp.weights.source import BytesSource

TINY = sorted((Path(__file__).parents[1] / "data" / "tiny").glob("*.gguf"))


@pytest.mark.parametrize("path", TINY, ids=lambda path: path.stem)
async def test_agrees_with_gguf_py(path: Path) -> None:
    file = await read_gguf(BytesSource(path.read_bytes()))
    other = gguf.GGUFReader(path)
    assert list(file.tensors) == [tensor.name for tensor in other.tensors]
    for tensor in other.tensors:
        mine = file.tensors[tensor.name]
        assert mine.shape == tuple(int(dimension) for dimension in tensor.shape[::-1])
        assert (mine.type, mine.offset, mine.nbytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
        assert mine.values == tensor.n_elements
    theirs = {key: field.contents() for key, field in other.fields.items() if not key.startswith("GGUF.")}
    assert file.metadata == theirs
    assert file.data_offset == other.data_offset


def test_a_short_head_asks_for_more_until_it_is_enough() -> None:
    data, known, file = TINY[0].read_bytes(), [0], None
    while file is None:
        try:
            file = parse_gguf(data[: known[-1]], len(data))
        except NeedMoreBytes as more:
            known.append(more.needed)
    assert known == sorted(set(known))
    assert file.tensors
    # The last byte asked for is the last byte of the tensor list: nothing of the data is needed.
    assert file.data_offset - 32 < known[-1] <= file.data_offset


def test_every_cut_of_a_file_says_what_is_there_and_what_is_needed() -> None:
    data = TINY[0].read_bytes()
    whole = parse_gguf(data, len(data))
    for size in [*range(1, 400), 1000, whole.data_offset - 1, whole.data_offset, len(data) - 1]:
        with pytest.raises(BadModel, match="cut short") as caught:
            parse_gguf(data[:size], size)
        assert caught.value.details["bytes"] == size
        assert size < caught.value.details["needed"] <= len(data)
        assert str(size) in caught.value.message


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def head(entries: list[bytes] = [], tensors: list[bytes] = [], version: int = 3) -> bytes:  # noqa: B006
    counts = struct.pack("<IQQ", version, len(tensors), len(entries))
    made = b"GGUF" + counts + b"".join(entries) + b"".join(tensors)
    return made + bytes(-len(made) % 32)


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dimensions: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def parse(data: bytes) -> Any:
    return parse_gguf(data, len(data))


def test_all_value_types_and_version_2() -> None:
    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    entries = [entry(f"k{kind}", kind, struct.pack("<" + form, 1)) for kind, form in forms.items()]
    for kind, form in forms.items():
        entries.append(entry(f"a{kind}", 9, struct.pack("<IQ3" + form, kind, 3, 1, 0, 1)))
    entries += [entry("s", 8, text("größe")), entry("as", 9, struct.pack("<IQ", 8, 2) + text("") + text("é"))]
    for version in (2, 3):
        file = parse(head(entries, version=version))
        for kind in forms:
            assert file.metadata[f"k{kind}"] == 1
            assert file.metadata[f"a{kind}"] == [1, 0, 1]
        assert file.metadata["k7"] is True
        assert file.metadata["a7"] == [True, False, True]
        assert type(file.metadata["a4"]) is list
        assert (file.metadata["s"], file.metadata["as"]) == ("größe", ["", "é"])


def test_alignment_moves_the_data() -> None:
    data = head([entry("general.alignment", 4, struct.pack("<I", 256))], [tensor("t", (4,))])
    data += bytes(256)
    file = parse(data)
    assert file.data_offset == 256 == file.tensors["t"].offset


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


HUGE = 1 << 62
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "html": (b"<!doctype html><html></html>", "begins with"),
    "version 1": (head(version=1), "version 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big endian"),
    "43 bytes, endless tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0) + bytes(19), "claims 4611"),
    "43 bytes, endless entries": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE) + bytes(19), "claims 4611"),
    "43 bytes, many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 60000, 0) + bytes(19), "cut short"),
    "endless key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(64), "at most 65535"),
    "wrapping key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**64 - 1) + bytes(64), "at most 65535"),
    "endless text": (head([entry("k", 8, struct.pack("<Q", HUGE))]) + bytes(64), "a text"),
    "endless array": (head([entry("k", 9, struct.pack("<IQ", 4, HUGE))]) + bytes(64), "items"),
    "endless texts": (head([entry("k", 9, struct.pack("<IQ", 8, HUGE))]) + bytes(64), "items"),
    "wrapping array": (head([entry("k", 9, struct.pack("<IQ", 12, 2**61))]) + bytes(64), "items"),
    "array past the end": (head([entry("k", 9, struct.pack("<IQ", 4, 1 << 20))]) + bytes(64), "cut short"),
    "texts past the end": (head([entry("k", 9, struct.pack("<IQ", 8, 1 << 20))]) + bytes(64), "cut short"),
    "long text in an array": (
        head([entry("k", 9, struct.pack("<IQQ", 8, 1, HUGE))]) + bytes(64),
        "cut short",
    ),
    "nested array": (head([entry("k", 9, struct.pack("<IQIQ", 9, 1, 4, 1))]), "array of arrays"),
    "unknown type": (head([entry("k", 13, bytes(8))]), "unknown type 13"),
    "unknown item type": (head([entry("k", 9, struct.pack("<IQ", 99, 1))]) + bytes(64), "unknown type 99"),
    "odd truth": (head([entry("k", 7, b"\2")]), "truth"),
    "not UTF-8": (head([entry("k", 8, struct.pack("<Q", 2) + b"\xff\xfe")]), "UTF-8"),
    "array not UTF-8": (head([entry("k", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff")]), "UTF-8"),
    "key twice": (head([entry("k", 4, u32(1)), entry("k", 4, u32(1))]), "twice"),
    "tensor twice": (head([], [tensor("t", (8,)), tensor("t", (8,), offset=32)]) + bytes(64), "twice"),
    "alignment 0": (head([entry("general.alignment", 4, u32(0))]), "power of two"),
    "alignment 48": (head([entry("general.alignment", 4, u32(48))]), "power of two"),
    "alignment huge": (head([entry("general.alignment", 4, u32(1 << 31))]), "power of two"),
    "alignment text": (head([entry("general.alignment", 8, text("32"))]), "power of two"),
    "alignment true": (head([entry("general.alignment", 7, b"\1")]), "power of two"),
    "no dimension": (head([], [tensor("t", ())]), "dimensions"),
    "many dimensions": (head([], [text("t") + u32(1 << 30)]) + bytes(64), "dimensions"),
    "zero dimension": (head([], [tensor("t", (8, 0))]), "impossible"),
    "enormous dimensions": (head([], [tensor("t", (HUGE, HUGE))]), "impossible"),
    "wrapping dimensions": (head([], [tensor("t", (1 << 32, 1 << 32))]), "impossible"),
    "half a block": (head([], [tensor("t", (40, 2), 3)]), "no multiple of Q4_1"),
    "unknown element": (head([], [tensor("t", (8,), 77)]), "element type 77"),
    "crooked offset": (head([], [tensor("t", (8,), offset=8)]) + bytes(64), "alignment"),
    "offset past the end": (head([], [tensor("t", (8,), offset=1 << 40)]) + bytes(64), "cut short"),
    "wrapping offset": (head([], [tensor("t", (8,), offset=2**64 - 32)]) + bytes(64), "cut short"),
    "overlap": (head([], [tensor("a", (16,)), tensor("b", (8,), offset=32)]) + bytes(64), "overlap"),
    "same place": (head([], [tensor("a", (8,)), tensor("b", (8,))]) + bytes(64), "overlap"),
    "a part of a split": (head([entry("split.count", 2, struct.pack("<H", 3))]), "llama-gguf-split"),
    "long tensor name": (head([], [tensor("t" * 300, (8,))]) + bytes(64), "at most 255"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_files_are_one_clear_error(name: str) -> None:
    data, why = HOSTILE[name]
    with pytest.raises(BadModel, match=why) as caught:
        parse(data)
    assert len(caught.value.message) < 400


def test_a_huge_file_cannot_make_the_reader_take_a_huge_head() -> None:
    """A file of 1 TB whose first text claims most of it: refused before anything is read for it."""
    data = head([entry("k", 8, struct.pack("<Q", 1 << 36))])
    with pytest.raises(BadModel, match="at most"):
        parse_gguf(data, 1 << 40)
    data = head([entry("k", 9, struct.pack("<IQQ", 8, 1 << 20, 1 << 30))])
    with pytest.raises(BadModel, match="at most"):
        parse_gguf(data, 1 << 40)


async def test_vocabulary_across_several_reads() -> None:
    """More than the first read of 2 MiB, so that the text array is met half and read again."""
    words = [f"word{number}" * 3 for number in range(120_000)]
    packed = struct.pack("<IQ", 8, len(words)) + b"".join(map(text, words))
    data = head([entry("tokens", 9, packed)], [tensor("t", (8,))]) + np.arange(8, dtype="<f4").tobytes()
    assert len(data) > 2 << 20
    file = await read_gguf(BytesSource(data))
    assert file.metadata["tokens"] == words
    assert file.tensors["t"].offset == len(data) - 32


def test_a_length_with_one_zero_in_it_is_not_taken_for_a_short_one() -> None:
    """The quick way looks for seven zeros in a row, but not at each of them first."""
    for count in (1, 2):
        packed = struct.pack("<IQ", 8, count) + (b"\x03\0abc" * count).ljust(8 * count + 6, b"\0")
        data = head([entry("tokens", 9, packed)], [tensor("t", (8,))]) + bytes(200)
        with pytest.raises((BadModel, NeedMoreBytes)):
            parse_gguf(data, len(data))


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(["", "\n", "a\nb", "\0", "x\0y", "\0" * 8, "a" * 255, "a" * 256, "é" * 200, "\x07" + "\0" * 7]),
    ),
    max_size=12,
)


@given(TEXTS, TEXTS, st.integers(0, 3))
def test_any_lists_of_texts_come_back(first: list[str], second: list[str], cut: int) -> None:
    """The quick way to find short texts must never find others than the lengths say."""
    arrays = [
        text(name) + struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(map(text, texts))
        for name, texts in (("a", first), ("b", second))
    ]
    data = head(arrays)
    assert parse_gguf(data, len(data)).metadata == {"a": first, "b": second}
    # A head that ends inside of them asks for more.
    short = len(b"GGUF") + 20 + len(arrays[0]) + len(arrays[1]) - cut
    if cut:
        with pytest.raises(NeedMoreBytes) as caught:
            parse_gguf(data[:short], len(data))
        assert short < caught.value.needed <= len(data)


def test_short_texts_are_found_without_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Cursor, "_pieces", None)  # the loop
    texts = ["a" * length for length in range(1, 256)]
    array = text("a") + struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(map(text, texts))
    data = head([array])
    assert parse_gguf(data, len(data)).metadata == {"a": texts}


class Watched(bytes):
    """Counts the bytes that slices of it copy."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        piece = super().__getitem__(at)
        if isinstance(at, slice):
            Watched.copied += len(piece)
        return piece


def test_many_arrays_of_texts_do_not_search_the_rest_of_the_head_each() -> None:
    arrays = [text(f"a{i}") + struct.pack("<IIQ", 9, 8, 1) + text("x") for i in range(300)]
    data = head([*arrays, text("long") + struct.pack("<I", 8) + text("y" * (1 << 20))])
    Watched.copied = 0
    assert len(parse_gguf(Watched(data), len(data)).metadata) == 301
    assert Watched.copied < 3 * len(data)
