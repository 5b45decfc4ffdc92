"""The event stream reader: the HTML standard's own examples, its corner cases, and any cut of any bytes."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyapp.errors import CloudUnavailable
from pyapp.routing.sse import Event, SSEDecoder


def reference(stream: bytes) -> list[Event]:
    """The standard's algorithm on the whole stream at once, as plainly as it can be written."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    events: list[Event] = []
    data, kind, last_id = "", "", ""
    for line in re.split("\r\n|\n|\r", text)[:-1]:
        name, colon, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if not line:
            if data:
                events.append(Event(data[:-1], kind or "message", last_id))
            data, kind = "", ""
        elif colon and not name:
            continue
        elif name == "data":
            data += value + "\n"
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last_id = value
    return events


def decode_cut(stream: bytes, cuts: list[int]) -> list[Event]:
    decoder = SSEDecoder()
    borders = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    events = [event for start, end in pairwise(borders) for event in decoder.decode(stream[start:end])]
    return events + decoder.flush()


PIECES = [b"data", b"data:", b"data: ", b"event: ", b"id: ", b"retry: 12", b":", b" ", b"\r", b"\n", b"\r\n", b"\n\n"]
PIECES += [
    b"x",
    b"[DONE]",
    b"\0",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"\xc2\x85",
    b"\x0b",
    b"\x0c",
    b"\x1c",
    b"\xf0\x9f",
]
PIECES += ["é红🍵".encode(), b"\xff", b"\xe7\xba", b"{}"]
streams = st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=40).map(b"".join)


@given(streams, st.lists(st.integers(0, 10_000), max_size=8))
@example(b"\xef\xbb\xbfdata: a\r\n\r\ndata: b\n\n", [1, 2, 11, 12, 13])
def test_any_cut_gives_the_events_of_the_reference(stream: bytes, cuts: list[int]) -> None:
    assert decode_cut(stream, cuts) == reference(stream)


@given(streams)
def test_byte_by_byte_is_the_same_as_at_once(stream: bytes) -> None:
    assert decode_cut(stream, list(range(len(stream)))) == decode_cut(stream, [])


@given(streams, st.lists(st.integers(0, 10_000), max_size=8), st.integers(1, 12), st.integers(1, 3))
def test_bounds_trip_at_the_same_event_however_the_bytes_are_cut(
    stream: bytes, cuts: list[int], most_bytes: int, most_events: int
) -> None:
    def outcome(borders: list[int]) -> tuple[list[Event], bool]:
        decoder = SSEDecoder(max_event_bytes=most_bytes, max_events=most_events)
        events: list[Event] = []
        try:
            for start, end in pairwise(borders):
                events += decoder.decode(stream[start:end])
            events += decoder.flush()
        except CloudUnavailable:
            return events, True
        return events, False

    whole = outcome([0, len(stream)])
    assert outcome([0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]) == whole


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        # The four examples of the standard's section "Interpreting an event stream".
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [Event("YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [Event("first event", id="1"), Event("second event"), Event(" third event")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [Event(""), Event("\n")]),
        (b"data:test\n\ndata: test\n\n", [Event("test"), Event("test")]),
        # Line ends.
        (b"data: a\rdata: b\r\rdata: c\r\n\r\n", [Event("a\nb"), Event("c")]),
        (b"data: a\r\n\ndata: b\n\r\n", [Event("a"), Event("b")]),
        ("data: a\u2028b\u2029c\x85d\x0be\x1cf\n\n".encode(), [Event("a\u2028b\u2029c\x85d\x0be\x1cf")]),
        # Fields.
        (b"event: ping\n\ndata: x\n\n", [Event("x")]),
        (b"event: ping\ndata: x\n\ndata: y\n\n", [Event("x", type="ping"), Event("y")]),
        (b"id: 7\n\ndata: x\n\nid: bad\0\ndata: y\n\n", [Event("x", id="7"), Event("y", id="7")]),
        (b"Data: x\nfoo: y\n data: z\n\n", []),
        # Bytes.
        (b"\xef\xbb\xbfdata: x\n\n\xef\xbb\xbfdata: y\n\n", [Event("x")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", []),
        (b"data: \xff|\xe7\xba|\xf0\x9f\x8d\n\n", [Event("\ufffd|\ufffd|\ufffd")]),
        # The end.
        (b"data: x\n", []),
        (b"data: x\n\ndata: y", [Event("x")]),
        (b"", []),
    ],
)
def test_examples(stream: bytes, expected: list[Event]) -> None:
    assert decode_cut(stream, []) == expected
    assert decode_cut(stream, list(range(len(stream)))) == expected


def test_a_cr_dispatches_without_waiting_for_its_lf() -> None:
    decoder = SSEDecoder()
    assert decoder.decode(b"data: x\r\r") == [Event("x")]
    assert decoder.decode(b"\ndata: y\r\n\r") == [Event("y")]


@pytest.mark.parametrize(("line", "retry"), [(b"retry: 1500", 1500), (b"retry: -1", None), ("retry: ٣".encode(), None)])
def test_retry_takes_ascii_digits_only(line: bytes, retry: int | None) -> None:
    decoder = SSEDecoder()
    decoder.decode(line + b"\n\n")
    assert decoder.retry == retry


def test_an_endless_line_is_refused_with_bounded_memory() -> None:
    decoder = SSEDecoder(max_event_bytes=1000)
    for _ in range(10):
        assert decoder.decode(b"x" * 100) == []
    with pytest.raises(CloudUnavailable, match="a line of over 1000 bytes") as caught:
        decoder.decode(b"x")
    assert caught.value.details == {"kind": "endless", "limit": 1000}
    with pytest.raises(CloudUnavailable):
        decoder.decode(b"data: fine\n\n")


def test_an_endless_event_of_short_lines_is_refused() -> None:
    decoder = SSEDecoder(max_event_bytes=1000)
    for _ in range(10):
        assert decoder.decode(b"data: " + b"x" * 99 + b"\n") == []
    with pytest.raises(CloudUnavailable, match="an event of over 1000 bytes"):
        decoder.decode(b"data: x\n")


def test_events_before_an_excess_are_handed_out_first() -> None:
    decoder = SSEDecoder(max_event_bytes=10)
    assert decoder.decode(b"data: x\n\n" + b"y" * 11) == [Event("x")]
    with pytest.raises(CloudUnavailable):
        decoder.check()


def test_the_largest_allowed_line_and_event_pass() -> None:
    assert SSEDecoder(max_event_bytes=10).decode(b"data:12345\n\n") == [Event("12345")]
    with pytest.raises(CloudUnavailable):
        SSEDecoder(max_event_bytes=10).decode(b"data:123456\n\n")


def test_pending_tells_a_cut_and_final_event_saves_the_last_one() -> None:
    plain, lenient = SSEDecoder(), SSEDecoder(final_event=True)
    for decoder in (plain, lenient):
        assert decoder.decode(b"data: a\n\ndata: [DONE]") == [Event("a")]
        assert decoder.pending
    assert plain.flush() == []
    assert lenient.flush() == [Event("[DONE]")]
    assert not plain.pending
    assert not lenient.pending
