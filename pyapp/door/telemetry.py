"""One record a text for the operator (``pyapp.routing.telemetry``): made of what the client sees pass, told at its end.

It goes to a callback, and where the client has a ``telemetry`` address also there, a few records at a time. Nothing of
this can fail or hold up a text.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyapp.door.options import ClientOptions
from pyapp.door.services import Reporter
from pyapp.errors import Closed, TandemError
from pyapp.routing.router import End, Note, Part, Piece, Source, Tally
from pyapp.routing.telemetry import INTERNAL, Fallback, Record

log = logging.getLogger(__name__)

BATCH = 20
"""Records sent together at most; a browser takes 64 KiB of requests that may outlive their page."""
BATCH_SECONDS = 2.0
"""The longest that a record waits for others: a page that is left takes those that still wait with it."""
CLOSE_SECONDS = 0.5
"""How long ``close`` waits for the last records to be on their way."""


class TextWatch:
    """What is measured of one text. ``clock`` in seconds."""

    def __init__(self, tally: Tally, clock: Callable[[], float]) -> None:
        self._tally = tally
        self._clock = clock
        self._began = clock()
        self._first: float | None = None
        self._sides: list[str] = []
        self._fallbacks: list[Fallback] = []
        self._waiting: tuple[Fallback, float] | None = None
        """The last fallback while its follower has no text yet, and when the fault was found."""
        self._outcome: str | None = None

    def heard(self, source: Source, part: Part) -> None:
        """One part of the stream as the router gives it, in its order."""
        if isinstance(part, Piece) and part.text:
            self._wrote(source)
        elif isinstance(part, Note) and source != self._tally.source:  # the side that follows is named, the other runs
            fallback: Fallback = {
                "reason": part.reason,
                "from": self._tally.source,
                "to": source,
                "takeover_ms": None,
                "mid_text": self._first is not None,
            }
            self._fallbacks.append(fallback)
            self._waiting = fallback, self._clock()
        elif isinstance(part, End):
            self._outcome = part.reason

    def failed(self, error: BaseException) -> None:
        """The text ended with ``error``; anything that is no ``Exception`` means that nobody wanted the rest of it."""
        if self._outcome is not None:
            return  # whole already, only not yet taken
        if isinstance(error, TandemError):
            self._outcome = error.code
        else:
            self._outcome = INTERNAL if isinstance(error, Exception) else "abort"

    def record(self, mode: str, tier: str | None) -> Record:
        return {
            "mode": mode,
            "tier": tier,
            "outcome": self._outcome or "abort",
            "sides": self._sides,
            "device_tokens": self._tally.tokens["device"],
            "cloud_tokens": self._tally.tokens["cloud"],
            "prompt_tokens": self._tally.prompt_tokens or 0,
            "fallbacks": self._fallbacks,
            "first_ms": None if self._first is None else _ms(self._first - self._began),
            "total_ms": _ms(self._clock() - self._began),
        }

    def _wrote(self, source: Source) -> None:
        if self._first is None:
            self._first = self._clock()
        if source not in self._sides:
            self._sides.append(source)
        if self._waiting is not None:
            fallback, found = self._waiting
            fallback["takeover_ms"] = _ms(self._clock() - found)
            self._waiting = None


class Telemetry:
    """Of one client. ``tier`` tells what is known of the GPU at that moment; ``reporter`` takes records away, if any
    are to go. ``clock`` in seconds."""

    def __init__(
        self,
        options: ClientOptions,
        clock: Callable[[], float],
        reporter: Reporter | None,
        tier: Callable[[], str | None],
    ) -> None:
        self.on_record: Callable[[Record], None] = lambda record: None
        self._mode = options.mode
        self._clock = clock
        self._tier = tier
        self._outbox = None if reporter is None else Outbox(reporter)

    @contextmanager
    def text(self, tally: Tally, closed: Callable[[], bool]) -> Iterator[TextWatch]:
        """Watches one text; its record is told when the block is left. ``closed``: whether the client was."""
        watch = TextWatch(tally, self._clock)
        try:
            yield watch
        except BaseException as error:
            watch.failed(Closed("") if closed() else error)
            raise
        finally:
            self._tell(watch.record(self._mode, self._tier()))

    def _tell(self, record: Record) -> None:
        try:
            self.on_record(record)
        except Exception:
            log.exception("on_telemetry failed")
        if self._outbox is not None:
            self._outbox.put(record)

    async def close(self) -> None:
        """Sends what waits. Takes ``CLOSE_SECONDS`` at most: the requests go on without the client."""
        if self._outbox is not None:
            await self._outbox.close()


class Outbox:
    """Records on their way with ``reporter``: together where they come together, and not again where that fails."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._waiting: list[Record] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def put(self, record: Record) -> None:
        self._waiting.append(record)
        if len(self._waiting) >= BATCH:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._flush)

    async def close(self) -> None:
        self._reporter.close()
        self._flush()
        if self._sending:
            await asyncio.wait(self._sending, timeout=CLOSE_SECONDS)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            records, self._waiting = self._waiting, []
            task = asyncio.ensure_future(self._send(records))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, records: list[Record]) -> None:
        try:
            await self._reporter.post(json.dumps({"records": records}))
        except Exception as error:  # the operator's loss, nobody else's
            log.debug("telemetry was not taken: %s", error)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
