"""Which side answers, and how the other one takes over in the middle of a sentence.

A ``Side`` streams pieces of an answer; the router knows nothing else about it (the client wires the engine and the
gateway in). When a side fails, the other goes on after the text already shown: it is handed that text and the number
of tokens left, so nothing is repeated and every token is counted once, for the side that made the text that is shown.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pyapp.errors import BadArgument, Closed, CloudUnavailable, ContextFull, DeviceLost, TandemError
from pyapp.routing.breaker import KINDS, Kind
from pyapp.text.sampling import SamplingParams

Source = Literal["device", "cloud"]
Reason = Literal["stop", "length", "abort"]
Mode = Literal["prefer_on_device", "only_on_device", "prefer_in_cloud", "only_in_cloud"]

log = logging.getLogger(__name__)

FINAL = (BadArgument, ContextFull, Closed)
"""Errors of the request itself: the other side would meet them too, so nobody takes over."""


@dataclass(frozen=True)
class Turn:
    """One request: the conversation, whose last message the user wrote, and how to draw tokens."""

    messages: list[dict[str, str]]
    sampling: SamplingParams


@dataclass(frozen=True)
class Begin:
    """The side has read the prompt: its length in tokens."""

    prompt_tokens: int


@dataclass(frozen=True)
class Piece:
    """Text to show, and the number of tokens it stands for."""

    text: str
    tokens: int


@dataclass(frozen=True)
class Note:
    """Something worth telling the user. ``kind``: the kind of failure that it is about, where ``code`` is wider."""

    code: str
    message: str
    kind: Kind | None = None

    @property
    def reason(self) -> str:
        """What those who count failures count it as."""
        return self.kind or self.code


@dataclass(frozen=True)
class End:
    """The answer is whole. ``tokens``: those of this side, where it counts better than the sum of its pieces."""

    reason: Reason
    prompt_tokens: int | None = None
    tokens: int | None = None


Part = Begin | Piece | Note | End


class Side(Protocol):
    """A way to answer."""

    def stream(self, turn: Turn, shown: str, left: int) -> AsyncGenerator[Part]:
        """Goes on after ``shown`` with at most ``left`` tokens; the last part is an ``End``."""
        ...


@dataclass
class Tally:
    """What has been shown so far and who made it; stays readable when the stream is cut."""

    prompt_tokens: int | None = None
    tokens: dict[Source, int] = field(default_factory=lambda: {"device": 0, "cloud": 0})
    shown: list[str] = field(default_factory=list)
    source: Source = "device"
    """Whose turn it is."""
    writer: Source | None = None
    """Who made the last of what is shown; None where nothing is."""

    def take(self, part: Part, source: Source) -> None:
        """Counts one part of ``source``'s share."""
        if isinstance(part, Piece):
            self.shown.append(part.text)
            self.tokens[source] += part.tokens
            self.writer = source if part.text else self.writer
        elif isinstance(part, Begin | End) and self.prompt_tokens is None:
            # Only the first side saw the prompt alone; whoever takes over reads the text shown as well.
            self.prompt_tokens = part.prompt_tokens
        if isinstance(part, End) and part.tokens is not None:
            self.tokens[source] = part.tokens


@dataclass
class Router:
    """Streams a turn from the sides that the mode allows, in its order.

    ``device`` gives the device side, which answers at once or raises the reason why it cannot; ``cloud`` is None where
    no gateway is configured. ``patient_device`` is the device side that waits for the device where waiting makes sense,
    for when nobody else is left to answer.
    """

    mode: Mode
    device: Callable[[], Awaitable[Side]]
    cloud: Side | None
    patient_device: Side | None = None
    device_returns: Callable[[], bool] = lambda: False
    """Whether a device that failed may be waited for."""
    device_absent: Callable[[], TandemError | None] = lambda: None
    """Why the device cannot answer now; None where that is not known, or not so."""
    cloud_first: Callable[[], bool] = lambda: False
    """Whether ``prefer_on_device`` would rather have the cloud for now."""
    pressure: Callable[[Turn], Note | None] = lambda turn: None
    """Why ``prefer_on_device`` had better have the cloud for this turn, to be told; None where it need not."""

    def order(self) -> list[Source]:
        """The sides to try, first to last."""
        if self.mode == "prefer_on_device" and self.cloud is not None and self.cloud_first():
            return ["cloud", "device"]
        both: dict[Mode, list[Source]] = {
            "prefer_on_device": ["device", "cloud"],
            "prefer_in_cloud": ["cloud", "device"],
            "only_on_device": ["device"],
            "only_in_cloud": ["cloud"],
        }
        return [source for source in both[self.mode] if source == "device" or self.cloud is not None]

    async def stream(self, turn: Turn, tally: Tally) -> AsyncGenerator[tuple[Source, Part]]:
        """The parts of one turn and who made them; an ``End`` comes last. ``tally`` is up to date at every part.

        Raises: TandemError where no side could answer, or the request itself is wrong.
        """
        todo = deque(self.order())
        spared = self.pressure(turn) if [*todo] == ["device", "cloud"] else None
        if spared is not None:
            todo.reverse()
            yield todo[0], spared
        failures: dict[Source, TandemError] = {}
        while todo:
            source = tally.source = todo.popleft()
            try:
                side = await self._side(source, last="cloud" not in todo)
                left = turn.sampling.max_tokens - sum(tally.tokens.values())
                if left <= 0:
                    yield source, End("length")
                    return
                async with aclosing(side.stream(turn, "".join(tally.shown), left)) as parts:
                    async for part in parts:
                        tally.take(part, source)
                        yield source, part
                        if isinstance(part, End):
                            return
                raise (DeviceLost if source == "device" else CloudUnavailable)("The answer stopped before its end.")
            except Exception as error:
                returns = source == "cloud" and "device" in failures and self._device_may_return()
                # A cloud whose context is the shorter one leaves the turn to a device that was spared, or returns. What
                # a gateway takes for wrong is over one of its own caps, as the request was checked before.
                too_long = isinstance(error, ContextFull) and (returns or (spared is not None and bool(todo)))
                capped = isinstance(error, BadArgument) and source == "cloud" and (returns or bool(todo))
                if isinstance(error, FINAL) and not too_long and not capped:
                    raise
                failures.pop(source, None)
                failures[source] = failed = named(source, error)
            if source == "cloud" and "device" in failures:
                if returns:
                    todo.append("device")
                else:  # what was only late when the cloud was asked may have failed since
                    failures["device"] = self.device_absent() or failures["device"]
            if todo:
                yield todo[0], _takes_over(failed, todo[0], any(tally.shown))
        raise _explain(failures)

    def _device_may_return(self) -> bool:
        return self.patient_device is not None and self.device_returns()

    async def _side(self, source: Source, *, last: bool) -> Side:
        """Raises: TandemError where there is no device."""
        side = self.cloud if source == "cloud" else self.patient_device if last else None
        return side or await self.device()


def named(source: Source, error: Exception) -> TandemError:
    """The failure of a side as one of ours; an error nobody foresaw counts as the side's own, with its ``cause``."""
    if isinstance(error, TandemError):
        return error
    log.exception("the %s side failed in a way nobody foresaw", source, exc_info=error)
    cause = f"{type(error).__name__}: {error}"
    if source == "device":
        return DeviceLost(f"The device failed at work ({error}).", cause=cause)
    return CloudUnavailable(f"The cloud failed ({error}).", cause=cause)


def _takes_over(failed: TandemError, follower: Source, started: bool) -> Note:
    where = "from the cloud" if follower == "cloud" else "on this device"
    said = f"{failed.message.rstrip('.')}. The text {'goes on' if started else 'is written'} {where}."
    kind = failed.details.get("kind")
    return Note(failed.code, said, kind if kind in KINDS else None)


def _explain(failures: Mapping[Source, TandemError]) -> TandemError:
    """One error for the sides that failed, in their order: the only one, or the cloud's with the device's reason."""
    if len(failures) == 1:
        return next(iter(failures.values()))
    # Whoever was promised the cloud wants to hear about the cloud; that the device is missing is the second sentence.
    cloud, device = failures["cloud"], failures["device"]
    text = f"{cloud.message.rstrip('.')}. This device cannot answer either: {device.message}"
    merged = type(cloud)(text, **{**cloud.details, "device": device.as_dict()})
    merged.__cause__ = next(iter(failures.values()))
    return merged
