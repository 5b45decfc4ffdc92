"""How much one client, or one shop, may ask for: requests a minute, streams at once, tokens a day.

``limits`` and ``slowapi`` were looked at: both count requests, and know neither what is open at the moment nor a cost
that is known at the end only. The figures live in this process: each replica counts what comes to it.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import Busy

_MINUTE = 60.0
_DAY = 86400


@dataclass(frozen=True, slots=True)
class Caps:
    """The most of each, None for no limit. ``tokens_per_day`` counts prompt and answer, in days of UTC."""

    requests_per_minute: int | None = None
    concurrent: int | None = None
    tokens_per_day: int | None = None


class Account:
    """What one client or shop has had. ``whose`` begins the sentences of refusals: "This client", "This shop"."""

    def __init__(self, caps: Caps, whose: str) -> None:
        self.streams = 0
        self._caps = caps
        self._whose = whose
        self._arrivals: deque[float] = deque()  # times of the last minute's requests, oldest first
        self._day = 0
        self._tokens = 0  # of that day, those set aside included

    def check(self, now: float) -> None:
        """Raises ``Busy`` where one more request at ``now`` (Unix time) is too much. Changes nothing that counts."""
        most = self._caps.concurrent
        if most is not None and self.streams >= most:
            raise self._busy(f"is at its limit of answers at once ({most})", 1.0)
        most = self._caps.requests_per_minute
        if most is not None:
            while self._arrivals and self._arrivals[0] <= now - _MINUTE:
                self._arrivals.popleft()
            if len(self._arrivals) >= most:
                wait = self._arrivals[0] + _MINUTE - now
                raise self._busy(f"is at its limit of requests a minute ({most})", wait)
        self.check_tokens(0, now)

    def check_tokens(self, tokens: int, now: float) -> None:
        """Raises ``Busy`` where the day has no room for ``tokens`` more; for 0 of them: where it has none at all."""
        most = self._caps.tokens_per_day
        if most is None:
            return
        day = int(now // _DAY)
        used = self._tokens if day == self._day else 0
        if used + max(tokens, 1) > most:
            raise self._busy(
                f"has {max(0, most - used)} of its {most} tokens left today, too few", (day + 1) * _DAY - now
            )

    def enter(self, now: float) -> None:
        self.streams += 1
        if self._caps.requests_per_minute is not None:
            self._arrivals.append(now)

    def leave(self) -> None:
        self.streams -= 1

    def add_tokens(self, tokens: int, now: float) -> int:
        """Counts ``tokens``; the result is the day they went to."""
        day = int(now // _DAY)
        if day != self._day:
            self._day, self._tokens = day, 0
        self._tokens += tokens
        return day

    def correct_tokens(self, difference: int, day: int) -> None:
        """Changes what was counted on ``day``; another day's count is left alone."""
        if day == self._day:
            self._tokens += difference

    def _busy(self, what: str, wait: float) -> Busy:
        seconds = max(1, math.ceil(wait))
        return Busy(
            f"{self._whose} {what}; try again in {seconds} {'second' if seconds == 1 else 'seconds'}.",
            status=429,
            retry_after=str(seconds),
        )


class Accounts:
    """An account for each key with the same ``caps``; the ones longest unused go when there are more than ``most``."""

    def __init__(self, caps: Caps, whose: str, most: int) -> None:
        self._caps = caps
        self._whose = whose
        self._most = most
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, key: str) -> Account:
        account = self._accounts.get(key)
        if account is None:
            self._forget()
            account = self._accounts[key] = Account(self._caps, self._whose)
        self._accounts.move_to_end(key)
        return account

    def _forget(self) -> None:
        """Makes place for one more, where one can be spared."""
        if len(self._accounts) >= self._most:
            # One in use is never lost: its streams would no longer be counted.
            idle = next((key for key, account in self._accounts.items() if not account.streams), None)
            if idle is not None:
                del self._accounts[idle]


class Ticket:
    """One admitted request. ``close`` it, whatever becomes of it."""

    def __init__(self, accounts: Sequence[Account], clock: Callable[[], float] = time.time) -> None:
        """Enters the request in all ``accounts`` or, where one raises ``Busy``, in none."""
        self._accounts = tuple(accounts)
        self._clock = clock
        self._aside = 0
        self._days: list[int] = []
        self._open = True
        now = clock()
        for account in self._accounts:
            account.check(now)
        for account in self._accounts:
            account.enter(now)

    def set_aside(self, tokens: int) -> None:
        """Counts the most that the answer can cost, before it is asked for. Counts nothing where it raises ``Busy``."""
        now = self._clock()
        for account in self._accounts:
            account.check_tokens(tokens, now)
        self._aside = tokens
        self._days = [account.add_tokens(tokens, now) for account in self._accounts]

    def close(self, spent: int) -> None:
        """Counts ``spent`` tokens in place of those set aside. Once only; further calls do nothing."""
        if not self._open:
            return
        self._open = False
        for account in self._accounts:
            account.leave()
        for account, day in zip(self._accounts, self._days, strict=False):
            account.correct_tokens(spent - self._aside, day)
