"""Limits as properties of any course of events, and the addresses they are counted by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyapp.errors import BadArgument, Busy
from pyapp.gateway.client_address import client_address, parse_network
from pyapp.gateway.limits import Account, Accounts, Caps, Ticket

T = TypeVar("T")
MIDNIGHT = 86400.0 * 20_000


class Clock:
    def __init__(self, now: float = MIDNIGHT) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def account(**caps: int) -> Account:
    return Account(Caps(**caps), "This client")


def retry_after(error: Busy) -> int:
    assert error.details["status"] == 429
    return int(error.details["retry_after"])


def attempt(call: Callable[[], T]) -> tuple[Busy | None, T | None]:
    """Whether the call was refused, else its result."""
    try:
        return None, call()
    except Busy as error:
        return error, None


@given(st.integers(1, 6), st.lists(st.floats(0.0, 40.0), max_size=60))
def test_no_minute_holds_more_requests_than_allowed(most: int, pauses: list[float]) -> None:
    clock, mine = Clock(), account(requests_per_minute=most)
    taken: list[float] = []
    for pause in pauses:
        clock.now += pause
        lately = [at for at in taken if at > clock.now - 60]
        try:
            Ticket([mine], clock).close(0)
        except Busy as error:
            assert len(lately) == most  # nobody is turned away before that
            wait = retry_after(error)
            clock.now += wait
            Ticket([mine], clock).close(0)  # who waits as told gets in
        else:
            assert len(lately) < most
        taken.append(clock.now)


@given(st.integers(1, 4), st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=40))
def test_no_more_streams_are_open_than_allowed(most: int, steps: list[int | None]) -> None:
    """None opens a stream, a number closes the one at that place, perhaps once more."""
    mine, clock = account(concurrent=most), Clock()
    tickets: list[Ticket] = []
    open_ones: set[int] = set()
    for step in steps:
        if step is None:
            if len(open_ones) < most:
                tickets.append(Ticket([mine], clock))
                open_ones.add(len(tickets) - 1)
            else:
                with pytest.raises(Busy, match=rf"answers at once \({most}\); try again in 1 second\."):
                    Ticket([mine], clock)
        elif step < len(tickets):
            tickets[step].close(0)
            open_ones.discard(step)
        assert mine.streams == len(open_ones)


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(1, 200), st.floats(0.0, 1.0), st.floats(0.0, 30_000.0)), max_size=30),
)
def test_no_day_costs_more_tokens_than_allowed(most: int, calls: list[tuple[int, float, float]]) -> None:
    """Calls of at most ``aside`` tokens that take a share of it; some end in the day after."""
    clock, mine = Clock(), account(tokens_per_day=most)
    spent: dict[int, int] = {}
    for aside, share, pause in calls:
        day = int(clock.now // 86400)
        used = spent.get(day, 0)
        cost = 0
        refused, ticket = attempt(lambda: Ticket([mine], clock))
        if refused:
            assert used >= most
            assert 0 <= (day + 1) * 86400 - clock.now <= retry_after(refused) <= 86400
        if ticket:
            refused, _ = attempt(partial(ticket.set_aside, aside))
            if refused:
                assert used + aside > most
                assert f"{most - used} of its {most} tokens left" in refused.message
            else:
                cost = int(aside * share)
                spent[day] = used + cost
                assert spent[day] <= most
        clock.now += pause / 2
        if ticket:
            ticket.close(cost)
        clock.now += pause / 2


def test_tokens_in_progress_count_in_full_until_their_end() -> None:
    clock, mine = Clock(), account(tokens_per_day=100)
    first = Ticket([mine], clock)
    first.set_aside(80)
    second = Ticket([mine], clock)
    with pytest.raises(Busy, match="20 of its 100"):
        second.set_aside(30)
    first.close(10)
    second.set_aside(90)
    second.close(90)
    with pytest.raises(Busy, match="0 of its 100") as caught:
        Ticket([mine], clock)
    assert retry_after(caught.value) == 86400
    clock.now += 86400
    Ticket([mine], clock)


def test_an_answer_that_cost_more_than_was_foreseen_leaves_none() -> None:
    clock, mine = Clock(), account(tokens_per_day=100)
    ticket = Ticket([mine], clock)
    ticket.set_aside(60)
    ticket.close(130)  # the prompt had more tokens than its bytes told
    with pytest.raises(Busy, match=r"has 0 of its 100 tokens left today"):
        Ticket([mine], clock)


def test_what_began_yesterday_changes_nothing_today() -> None:
    clock, mine = Clock(), account(tokens_per_day=100)
    old = Ticket([mine], clock)
    old.set_aside(80)
    clock.now += 86400
    new = Ticket([mine], clock)
    new.set_aside(90)
    old.close(10)
    with pytest.raises(Busy, match="10 of its 100"):
        Ticket([mine], clock).set_aside(11)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_request_that_one_account_refuses_counts_in_none(order: tuple[int, int]) -> None:
    clock, full, free = Clock(), account(concurrent=1), account(concurrent=9, requests_per_minute=1)
    both = [full, free]
    Ticket([full], clock)
    with pytest.raises(Busy):
        Ticket([both[at] for at in order], clock)
    assert free.streams == 0
    Ticket([free], clock)


def test_tokens_that_one_account_refuses_count_in_none() -> None:
    clock, small, large = Clock(), account(tokens_per_day=10), account(tokens_per_day=1000)
    ticket = Ticket([large, small], clock)
    with pytest.raises(Busy):
        ticket.set_aside(500)
    ticket.close(0)
    Ticket([large], clock).set_aside(1000)


def test_without_limits_nothing_is_kept_but_the_streams() -> None:
    clock, mine = Clock(), account()
    tickets = [Ticket([mine], clock) for _ in range(1000)]
    for ticket in tickets:
        ticket.set_aside(10**9)
        ticket.close(0)
    assert mine.streams == 0
    assert not mine._arrivals


def test_accounts_are_bounded_and_those_in_use_stay() -> None:
    clock, accounts = Clock(), Accounts(Caps(concurrent=1), "This client", 3)
    held = Ticket([accounts.of("a")], clock)
    for number in range(50):
        accounts.of(str(number))
    assert len(accounts) == 3
    with pytest.raises(Busy):
        Ticket([accounts.of("a")], clock)
    held.close(0)
    for number in range(50):
        accounts.of(str(number))
    assert accounts.of("a").streams == 0


def test_the_account_longest_unused_goes_first() -> None:
    accounts = Accounts(Caps(), "This client", 2)
    first = accounts.of("a")
    accounts.of("b")
    assert accounts.of("a") is first
    accounts.of("c")
    assert accounts.of("a") is first


TRUSTED = [parse_network("10.0.0.0/8"), parse_network("fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("8.8.8.8", [], "8.8.8.8"),
        ("8.8.8.8", ["1.1.1.1"], "8.8.8.8"),  # no proxy of ours: it may say what it likes
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["6.6.6.6, 1.1.1.1"], "1.1.1.1"),  # what stands left of it is the client's own claim
        ("10.0.0.1", ["6.6.6.6", "1.1.1.1, 10.0.0.2"], "1.1.1.1"),
        ("10.0.0.1", ["10.9.9.9, 10.0.0.2"], "10.9.9.9"),
        ("10.0.0.1", ["1.1.1.1:5678"], "1.1.1.1"),
        ("10.0.0.1", ["1.1.1.1, nonsense"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("fd00::1", ["[2001:db8:1:2:3::4]:443"], "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1%eth0", [], "2001:db8:1:2::/64"),
        (None, ["1.1.1.1"], "unknown"),
        ("testclient", [], "unknown"),
    ],
)
def test_whose_address_counts(peer: str | None, forwarded: list[str], client: str) -> None:
    assert client_address(peer, forwarded, TRUSTED) == client


@given(st.one_of(st.none(), st.text(max_size=40)), st.lists(st.text(max_size=60), max_size=4))
def test_any_header_is_survived(peer: Any, forwarded: list[str]) -> None:
    assert client_address(peer, forwarded, TRUSTED)
    assert client_address("10.0.0.1", forwarded, TRUSTED)


@given(st.ip_addresses(v=4).filter(lambda address: not address.is_private), st.lists(st.text(max_size=30), max_size=3))
def test_a_client_cannot_choose_its_address_through_the_header(address: Any, claims: list[str]) -> None:
    seen = client_address("10.0.0.1", [*claims, str(address)], TRUSTED)
    assert seen == str(address)


def test_a_network_that_is_none() -> None:
    with pytest.raises(BadArgument, match=r"'10\.0\.0\.1/8' is no network"):
        parse_network("10.0.0.1/8")
