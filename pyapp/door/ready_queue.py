"""What is ready to run in Python runs at once, not each in a turn of the browser's event loop.

Pyodide gives every callback of asyncio two such turns, a proxy and a switch of the wasm stack, and an answer from the
GPU passes through ten to twenty callbacks before the page has it. Here they wait in a queue, and one message to
ourselves runs all of them, those that they make ready as well. The browser gets its turn when the queue is empty, and
after ``MOST_SECONDS`` in any case: messages, timers and JavaScript's own promises wait that long at most.

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
    """``post`` must see to it that ``flush`` is called soon, from the browser's event loop; ``clock`` gives seconds."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, post: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop = loop
        self._post = post
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._posted = False

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """As that of an event loop, in whose place it is put."""
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._ready.append(handle)
        self._call()
        return handle

    def flush(self, *event: Any) -> None:
        """Runs what is ready, and what becomes ready meanwhile, in order."""
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
            self._posted = False
            if self._ready:
                self._call()

    def _call(self) -> None:
        if not self._posted:
            self._posted = True
            self._post()


def install() -> None:
    """Puts a queue into the running event loop, which must be Pyodide's."""
    from js import MessageChannel
    from pyodide.ffi import create_proxy

    loop: Any = asyncio.get_running_loop()
    channel = MessageChannel.new()
    queue = ReadyQueue(loop, lambda: channel.port2.postMessage(None))
    channel.port1.onmessage = create_proxy(queue.flush)
    loop._install_asyncgen_hooks()  # else done at each callback
    loop.call_soon = queue.call_soon
