"""Incremental reader of ``text/event-stream`` bytes.

Follows the HTML standard, section "Parsing an event stream"
(https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream): UTF-8 with replacement, one
leading BOM dropped, lines ended by CR, LF or CRLF and by nothing else (U+2028 and its kin are text), comments, and the
fields ``event``, ``data``, ``id`` and ``retry``. How the bytes are cut into chunks never changes the events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import CloudUnavailable

MAX_EVENT_BYTES = 1 << 20
MAX_EVENTS = 1 << 20

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_LF = 0x0A


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event: ``data`` (lines joined by LF), ``type``, and the last event id known at that moment."""

    data: str
    type: str = "message"
    id: str = ""


class SSEDecoder:
    """Bytes in, events out: call ``decode`` with each chunk and ``flush`` at the end of the stream.

    ``max_event_bytes`` bounds one line as well as the data of one event, ``max_events`` the whole stream; past either,
    ``CloudUnavailable`` is raised. Events that precede the excess are handed out first, so the error may come from the
    call after: ``check`` raises it at once. With ``final_event``, ``flush`` also hands out an event whose closing blank
    line never came, which the standard drops; use it where a payload shows by itself whether it is whole.
    """

    def __init__(
        self, max_event_bytes: int = MAX_EVENT_BYTES, max_events: int = MAX_EVENTS, final_event: bool = False
    ) -> None:
        self.retry: int | None = None
        """Reconnection time in milliseconds, where the stream named one."""
        self._max_event_bytes = max_event_bytes
        self._max_events = max_events
        self._final_event = final_event
        self._line = bytearray()
        self._first_line = True
        self._skip_lf = False
        self._data: list[str] = []
        self._data_bytes = 0
        self._type = ""
        self._id = ""
        self._count = 0
        self._failure: CloudUnavailable | None = None

    @property
    def pending(self) -> bool:
        """Whether bytes of an unfinished line or event are held: at the end of a stream, that it was cut."""
        return bool(self._line or self._data)

    def decode(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes. Raises ``CloudUnavailable`` past a bound (see the class)."""
        self.check()
        events: list[Event] = []
        if not chunk:
            return events
        # A CR ends its line at once; the LF that may open the next chunk belongs to it.
        start = 1 if self._skip_lf and chunk[0] == _LF else 0
        self._skip_lf = False
        for end in _LINE_END.finditer(chunk, start):
            piece = chunk[start : end.start()]
            if not self._fits(piece):
                return self._hand_out(events)
            start = end.end()
            event = self._end_line(piece)
            if self._failure:
                return self._hand_out(events)
            if event is not None:
                events.append(event)
        self._skip_lf = chunk.endswith(b"\r")
        rest = chunk[start:]
        if rest and self._fits(rest):
            self._line += rest
        return self._hand_out(events)

    def flush(self) -> list[Event]:
        """Ends the stream. The standard drops an unfinished event, so this is empty unless ``final_event`` is set."""
        self.check()
        events: list[Event] = []
        if self._final_event:
            for _ in range(2):  # the end of the line, then the blank line
                event = self._end_line(b"")
                self.check()
                if event is not None:
                    events.append(event)
        self._line.clear()
        self._data.clear()
        self._data_bytes = 0
        self._type = ""
        return events

    def check(self) -> None:
        """Raises the ``CloudUnavailable`` of a bound that was passed, if one was."""
        if self._failure:
            raise self._failure

    def _hand_out(self, events: list[Event]) -> list[Event]:
        if not events:
            self.check()
        return events

    def _fail(self, what: str, limit: int) -> None:
        self._failure = CloudUnavailable(
            f"The event stream sent {what}, more than this reader takes; try again.", kind="endless", limit=limit
        )

    def _fits(self, piece: bytes) -> bool:
        if len(self._line) + len(piece) > self._max_event_bytes:
            self._line.clear()
            self._fail(f"a line of over {self._max_event_bytes} bytes", self._max_event_bytes)
            return False
        return True

    def _end_line(self, piece: bytes) -> Event | None:
        """The line that is what is held, mostly nothing, and ``piece``."""
        line = piece
        if self._line:
            line = bytes(self._line) + piece
            self._line.clear()
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            return None
        name, _, value = line.partition(b":")
        self._field(name, value.removeprefix(b" "))
        return None

    def _field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._max_event_bytes + 1:
                self._fail(f"an event of over {self._max_event_bytes} bytes", self._max_event_bytes)
            else:
                self._data.append(value.decode("utf-8", "replace"))
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():  # bytes.isdigit knows ASCII digits only, as the standard asks
            self.retry = int(value) if len(value) < 16 else self.retry

    def _dispatch(self) -> Event | None:
        data, kind = self._data, self._type
        self._data, self._data_bytes, self._type = [], 0, ""
        if not data:
            return None
        self._count += 1
        if self._count > self._max_events:
            self._fail(f"over {self._max_events} events", self._max_events)
            return None
        return Event("\n".join(data), kind or "message", self._id)
