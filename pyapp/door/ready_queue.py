"""What is ready to run in Python runs at once, not each in a turn of the browser's event loop.

Pyodide gives every callback of asyncio two such turns, a proxy and a switch of the wasm stack, and an answer from the
GPU passes through ten to twenty callbacks before the page has it. Here they wait in a queue, and one call runs all of
them, those that they make ready as well: at the end of the very turn that made them ready (a microtask). The browser
gets its turn when the queue is empty, and after twice ``MOST_SECONDS`` in any case: messages, timers and JavaScript's
own promises wait that long at most. That holds too for callbacks which wait for promises that are kept already, and so
are ready again and again in one turn: once it has lasted ``MOST_SECONDS`` they wait for a message to ourselves.

For a worker of our own only: callbacks that run like this cannot wait for JavaScript synchronously (``run_sync``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

MOST_SECONDS = 0.004


class ReadyQueue:
    """``soon`` must see to it that ``flush`` is called at the end of the browser's present turn, ``later`` to it that
    ``flush_in_turn`` is called in one of the next; ``clock`` gives seconds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        soon: Callable[[], Any],
        later: Callable[[], Any],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self._soon = soon
        self._later = later
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._called = False
        self._turn_asked = False
        self._turn_ends = 0.0
        """Until when the browser's turn may last, as far as is known: it began no later than the next one was asked."""

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """As that of an event loop, in whose place it is put."""
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._ready.append(handle)
        if not self._called:
            self._call()
        return handle

    def flush_in_turn(self, *event: Any) -> None:
        """``flush`` in a turn of the browser's that is a new one."""
        self._turn_asked = False
        if self._ready:
            self.flush()

    def flush(self, *event: Any) -> None:
        """Runs what is ready, and what becomes ready meanwhile, in order."""
        self._called = True
        ends = self._clock() + MOST_SECONDS
        try:
            while self._ready:
                for _ in range(len(self._ready)):
                    handle = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
                if self._clock() >= ends:
                    break
        finally:  # also after a callback that asks for the end of the program
            self._called = False
            if self._ready:
                self._call()

    def _call(self) -> None:
        now = self._clock()
        if not self._turn_asked:
            self._turn_asked = True
            self._turn_ends = now + MOST_SECONDS
            self._later()
        if now < self._turn_ends:
            self._called = True
            self._soon()


def install() -> None:
    """Puts a queue into the running event loop, which must be Pyodide's."""
    from js import MessageChannel, queueMicrotask
    from pyodide.ffi import create_proxy

    loop: Any = asyncio.get_running_loop()
    channel = MessageChannel.new()
    post = channel.port2.postMessage
    queue = ReadyQueue(loop, lambda: queueMicrotask(flush), lambda: post(None))
    flush = create_proxy(queue.flush)
    channel.port1.onmessage = create_proxy(queue.flush_in_turn)
    loop._install_asyncgen_hooks()  # else done at each callback
    loop.call_soon = queue.call_soon
