"""The one retry loop of the whole chain: before the first byte of an answer only, and never the client's business.

``tenacity`` and ``stamina`` were looked at: what is particular here, the server's own ``Retry-After`` and giving up
when it lies too far ahead, would be as much code as this on top of either.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

import anyio

from ..errors import TandemError

log = logging.getLogger("tandem.gateway")

STATUSES = frozenset({429, 502, 503, 504})
"""What a server answers when the same request may well succeed a moment later."""

_FIRST_WAIT_SECONDS = 0.25

T = TypeVar("T")


class MayPass(Exception):
    """A try failed in a way that another may not; ``error`` is what the client is told when there is no other."""

    def __init__(self, error: TandemError, reason: str) -> None:
        super().__init__(reason)
        self.error = error
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Retries:
    """``tries`` in all, the first included; no wait between two of them is longer than ``longest_seconds``."""

    tries: int
    longest_seconds: float

    async def run(self, attempt: Callable[[], Awaitable[T]], failed: Callable[[str], None]) -> T:
        """The first result of ``attempt``. ``failed`` hears the reason of each try that is followed by another.

        Raises what ``attempt`` raises, and for the last ``MayPass`` its ``error``.
        """
        for number in range(1, self.tries + 1):
            try:
                return await attempt()
            except MayPass as passing:
                wait = self._wait(number, passing.error.details.get("retry_after"))
                if wait is None:
                    raise passing.error from None
                log.warning("upstream try %d failed (%s), next in %.2f s", number, passing.reason, wait)
                failed(passing.reason)
            await anyio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _wait(self, number: int, retry_after: str | None) -> float | None:
        """Seconds to wait after try ``number``, None where the failure is final."""
        if number >= self.tries:
            return None
        # Between half and the whole of the growing wait: many gateways that failed together come back apart.
        wait = random.uniform(0.5, 1.0) * min(self.longest_seconds, _FIRST_WAIT_SECONDS * 2.0 ** (number - 1))
        asked = retry_after_seconds(retry_after, time.time()) or 0.0
        # Asked to stay away for longer than a reader waits: the client is told so at once, and has another side to ask.
        if asked > self.longest_seconds:
            return None
        return max(wait, min(self.longest_seconds, asked * random.uniform(1.0, 1.1)))


def retry_after_seconds(text: str | None, now: float) -> float | None:
    """The header ``Retry-After`` (RFC 9110, section 10.2.3: seconds or a date) as seconds from ``now`` (Unix time).

    None where it is missing or says nothing; a date that has passed is 0.
    """
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        # Beyond 15 digits a float may be infinite, and the wait is out of the question anyway.
        return float(text[:15])
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
