"""The worker's front door: messages from ``tandem.js`` in, answers and events out.

A message is a line of JSON and, where there is one, an attachment that JSON cannot hold (a Blob or a typed array).

In, and what comes of each:

    {op: "open", id, options, base, page}        {re: id, value: status} or {re: id, error: {code, message, details}}
    {op: "call", id, method, args} + attachment  {re: id, value} + attachment, or {re: id, error}
    {op: "generate", id, request, aborted}       {re: id, event} ..., then {re: id, end: true} or {re: id, error}
    {op: "cancel", id}                           ends that generate as an abort
    {op: "close", id}                            {re: id, value: null}

At any time: {progress: {stage, loaded, total}}, {status: {...}} and {telemetry: {...}}, one a text.

One worker serves one client. Arguments carry the JavaScript names here and the Python names in ``Client``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any

from pyapp import timeline
from pyapp.client import Client
from pyapp.door import ready_queue
from pyapp.door.options import OPTION_NAMES, PROMPT_NAMES, SAMPLING_NAMES, camel, known, snake
from pyapp.door.services import Services, browser_services
from pyapp.errors import BadArgument, Closed, TandemError

log = logging.getLogger(__name__)

Post = Callable[..., Any]
PROGRESS_SECONDS = 0.05
"""Progress within one stage is told at most this often: a page need not redraw for every chunk."""


def start(
    post: Post, stages: str = "[]", now_ms: float | None = None, ahead: Callable[[str], Any] | None = None
) -> Callable[..., None]:
    """Serves a client: ``post(line[, typed array])`` sends; the result is to be called with each message that comes.
    ``stages``, JSON, are those of the start so far, by a clock that stands at ``now_ms`` (``pyapp.timeline``);
    ``ahead``: as ``browser_services`` takes it."""
    if now_ms is not None:
        timeline.take_over(json.loads(stages), now_ms)
    ready_queue.install()
    return Door(post, attach=_to_js, services=browser_services(ahead)).receive


class Door:
    """Reads messages, makes the calls, sends what comes of them.

    ``attach`` turns a NumPy array into what ``post`` takes as an attachment.
    """

    def __init__(self, post: Post, attach: Callable[[Any], Any], services: Services | None) -> None:
        self._post = post
        self._attach = attach
        self._services = services
        self._client: Client | None = None
        self._signals: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stage = ""
        self._told = 0.0

    def receive(self, line: str, attachment: Any = None) -> None:
        """Takes one message. Never raises: what goes wrong is sent back."""
        message = json.loads(line)
        ident = message["id"]
        match message["op"]:
            case "open":
                self._run(ident, self._create(message["options"], message["base"], message.get("page", "")))
            case "call":
                self._run(ident, self._call(message["method"], message["args"], attachment))
            case "generate":
                self._signals[ident] = signal = asyncio.Event()
                if message.get("aborted"):
                    signal.set()
                self._keep(self._generate(ident, message["request"], signal))
            case "cancel":
                if ident in self._signals:
                    self._signals[ident].set()
            case "close":
                self._run(ident, self._close())

    def _send(self, attachment: Any = None, **message: Any) -> None:
        line = _ENCODER.encode(message)
        if attachment is None:
            self._post(line)
        else:
            self._post(line, self._attach(attachment))

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self, ident: int, work: Awaitable[Any]) -> None:
        self._keep(self._answer(ident, work))

    async def _answer(self, ident: int, work: Awaitable[Any]) -> None:
        try:
            value = await work
            if hasattr(value, "dtype"):
                self._send(value, re=ident, value=None)
            else:
                self._send(re=ident, value=value)
        except Exception as error:
            self._send(re=ident, error=_error(error))

    async def _create(self, options: Mapping[str, Any], base: str, page: str) -> dict[str, Any]:
        self._client = await Client.create(
            on_progress=self._progress,
            base=base,
            page=page,
            services=self._services,
            spell=camel,
            **_python_names(options, OPTION_NAMES, "createClient"),
        )
        self._client.on_status = lambda status: self._send(status=status)
        self._client.on_telemetry = lambda record: self._send(telemetry=record)
        return self._client.status

    async def _call(self, method: str, args: Mapping[str, Any], attachment: Any) -> Any:
        client = self._open_client()
        match method:
            case "describe":
                return await client.describe(attachment)
            case "vision":
                return await client.inspect.vision(_bytes(attachment))
            case "visionTimes":
                return await client.inspect.vision_times(_bytes(attachment), args.get("n"))  # type: ignore[arg-type]
            case "tokenize":
                return await client.inspect.tokenize(args.get("text"), args.get("special", True))  # type: ignore[arg-type]
            case "detokenize":
                return await client.inspect.detokenize(args.get("ids"))
            case "render":
                return await client.inspect.render(args.get("messages"), args.get("generationPrompt", True))
            case "logits":
                return await client.inspect.logits(args.get("ids"))
            case "nll":
                return await client.inspect.nll(args.get("ids"))
            case "greedy":
                return await client.inspect.greedy(args.get("ids"), args.get("n"))  # type: ignore[arg-type]
            case "memory":
                return await client.inspect.memory()
            case "profile":
                return await client.inspect.profile(args.get("which"))  # type: ignore[arg-type]
            case "selfcheck":
                return await client.inspect.selfcheck()
            case "timeline":
                return client.inspect.timeline()
            case "plan":
                return await client.inspect.plan(args.get("which"))  # type: ignore[arg-type]
        raise BadArgument(f"There is no call named {method}.")

    async def _generate(self, ident: int, request: Mapping[str, Any], signal: asyncio.Event) -> None:
        try:
            names = _python_names(request, (*PROMPT_NAMES, *SAMPLING_NAMES), "generate")
            async for event in self._open_client().generate(signal=signal, **names):
                self._send(re=ident, event=event)
            self._send(re=ident, end=True)
        except Exception as error:
            self._send(re=ident, error=_error(error))
        finally:
            del self._signals[ident]

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _open_client(self) -> Client:
        if self._client is None:
            raise Closed("This client did not open; create a new one.")
        return self._client

    def _progress(self, report: dict[str, Any]) -> None:
        now = time.monotonic()
        whole = report["total"] is not None and report["loaded"] >= report["total"]
        if report["stage"] == self._stage and not whole and now - self._told < PROGRESS_SECONDS:
            return
        self._stage, self._told = report["stage"], now
        self._send(progress=report)


def _python_names(given: Mapping[str, Any], names: tuple[str, ...], what: str) -> dict[str, Any]:
    """JavaScript's names to Python's. Raises: BadArgument for a name that is not known."""
    table = {camel(name): name for name in names}
    known(given, tuple(table), what, snake)
    return {table[name]: value for name, value in given.items()}


def _error(error: Exception) -> dict[str, Any]:
    """The error as it crosses. One that is not ours is a fault of this program, and is told as what it is."""
    if isinstance(error, TandemError):
        return error.as_dict()
    log.exception("a call failed in a way nobody foresaw", exc_info=error)
    said = f"{type(error).__name__}: {error}"
    return {
        # No public code means a fault of our own. The caller did nothing wrong (bad_argument); this side broke down at
        # work, and what helps is what helps against a lost device: to try again, or to go without it.
        "code": "device_lost",
        "message": f"The call failed inside Tandem ({said}).",
        "details": {"internal": said},
    }


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's; anything else in ``details`` as its text."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else str(value)


_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain)  # json.dumps would make one for every token


def _bytes(attachment: Any) -> Any:
    return attachment.to_bytes() if hasattr(attachment, "to_bytes") else attachment


@cache
def _new_floats() -> Any:
    import js

    return js.Float32Array.new  # looking it up makes two objects each time


def _to_js(array: Any) -> Any:
    """A JavaScript Float32Array with the values of a float32 array."""
    copy = _new_floats()(array.size)
    copy.assign(array.reshape(-1).data)
    return copy
