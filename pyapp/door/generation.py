"""One call of ``generate`` as an async iterator that can be left at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from pyapp.door import events
from pyapp.door.events import Event
from pyapp.errors import TandemError
from pyapp.routing.router import Tally


class Queue(asyncio.Queue[Event | BaseException | None]):
    """Events, then None at the end, or the error. ``whole``: the event that ends every text is among them."""

    whole = False

    def put_nowait(self, item: Event | BaseException | None) -> None:
        self.whole = self.whole or (isinstance(item, dict) and item["type"] == "done")
        super().put_nowait(item)


class Signal(Protocol):
    """What can abort a call: an ``asyncio.Event``, or anything with its two methods."""

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


class Generation:
    """The events of one call. It begins at the first ``anext``; leaving the loop, or dropping the object, aborts it.
    ``stream`` is called then and raises what is wrong with the call, of one that is aborted already too.

    The work runs in a task of its own and never waits for the reader, so a reader who stops half-way holds nobody up.
    """

    def __init__(
        self,
        stream: Callable[[Tally], AsyncGenerator[Event]],
        signal: Signal | None,
        started: Callable[[Generation], None] = lambda generation: None,
    ) -> None:
        self._stream = stream
        self._signal = signal
        self._started = started
        self._queue = Queue()
        self._held: list[Event | BaseException | None] = []
        """What was taken from the queue behind the event that was handed out, one at most."""
        self._task: asyncio.Task[None] | None = None
        self._over = False

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        if self._task is None:
            tally = Tally()
            try:
                stream = self._stream(tally)
            except BaseException:
                self._over = True
                raise
            self._task = asyncio.ensure_future(_work(stream, tally, self._signal, self._queue))
            self._started(self)
        item = await self._next()
        if item is None or isinstance(item, BaseException):
            self._over = True
            raise item or StopAsyncIteration
        return self._joined(item)

    async def _next(self) -> Event | BaseException | None:
        if self._held:
            return self._held.pop()
        return await self._queue.get()

    def _joined(self, event: Event) -> Event:
        """With the texts behind it that are there already: many while the reader was busy, or of one chunk of the
        cloud's answer. Each event that is not sent is a message less for the page."""
        while event["type"] == "text" and not self._queue.empty():
            item = self._queue.get_nowait()
            if not isinstance(item, dict) or item["type"] != "text" or item["source"] != event["source"]:
                self._held.append(item)
                break
            event = events.text(event["text"] + item["text"], event["tokens"] + item["tokens"], event["source"])
        return event

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The running work, None before the first ``anext``."""
        return self._task

    def fail(self, error: TandemError) -> None:
        """Ends the call from outside: the reader meets ``error`` after the events already made, unless they are all."""
        if self._task is not None and not self._task.done() and not self._queue.whole:
            self._queue.put_nowait(error)
            self._task.cancel()

    async def aclose(self) -> None:
        """Aborts the call and waits until it has let go of the device or the connection. Who waits for an event of it
        in another task is at the end."""
        self._over = True
        self._queue.put_nowait(None)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def __del__(self) -> None:
        if self._task is not None and not self._task.done() and not self._task.get_loop().is_closed():
            self._task.cancel()


async def _work(stream: AsyncGenerator[Event], tally: Tally, signal: Signal | None, queue: Queue) -> None:
    """Fills the queue from ``stream`` until it ends, fails, or ``signal`` is set."""

    async def pump() -> None:
        async with aclosing(stream):
            async for event in stream:
                queue.put_nowait(event)

    if signal is not None and signal.is_set():
        await stream.aclose()
        _abort(tally, queue)
        return
    pumping = asyncio.ensure_future(pump())
    watching = asyncio.ensure_future(signal.wait()) if signal is not None else None
    try:
        await asyncio.wait({pumping, watching} if watching else {pumping}, return_when=asyncio.FIRST_COMPLETED)
        if pumping.done() and not pumping.cancelled():
            queue.put_nowait(pumping.exception())
            return
        pumping.cancel()
        await asyncio.wait([pumping])
        if pumping.cancelled() or pumping.exception() is not None:
            _abort(tally, queue)
        else:
            queue.put_nowait(None)
    except asyncio.CancelledError:
        pumping.cancel()
        await asyncio.wait([pumping])
        raise
    finally:
        if watching is not None:
            watching.cancel()


def _abort(tally: Tally, queue: Queue) -> None:
    for item in (events.usage(tally), events.done("abort", tally.writer), None):
        queue.put_nowait(item)
