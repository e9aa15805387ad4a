"""How much mail of a client is let in within a minute: by one process, and by several that exchange their counts."""

from __future__ import annotations

import pytest

from bridge.filter.mail_rates import Count, MailRates

LIMIT = 100
BEGIN = 1_800_000_000.0  # a full minute


class Clock:
    """Stands still, until a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def of(clock: Clock, limit: int | None = LIMIT, **limits: int) -> MailRates:
    """A minute of the clock that all share begins with the clock."""
    rates = MailRates(limit, clock, **limits)
    rates.learn([], BEGIN)
    return rates


def accepted(rates: MailRates, count: int, client: str = "192.0.2.1") -> int:
    return sum(rates.lets_in(client) for _ in range(count))


class Shared:
    """The sums of all processes, as the database has them."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.sums: dict[tuple[int, str], int] = {}
        self._ahead_s = ahead_s

    def exchange(self, rates: MailRates, clock: Clock) -> None:
        counts = rates.report()
        for count in counts:
            key = (count.minute, count.client)
            self.sums[key] = self.sums.get(key, 0) + count.mails
        rates.told(counts)
        rates.learn([Count(*key, mails) for key, mails in self.sums.items()], BEGIN + clock.now + self._ahead_s)


def test_a_client_may_send_as_much_as_the_limit_in_a_minute() -> None:
    rates = of(Clock())
    assert accepted(rates, 3 * LIMIT) == LIMIT
    assert accepted(rates, 10, "192.0.2.2") == 10


@pytest.mark.parametrize(("limit", "client"), [(None, "192.0.2.1"), (1, None)])
def test_without_a_limit_or_an_address_nothing_is_counted(limit: int | None, client: str | None) -> None:
    rates = MailRates(limit)
    assert all(rates.lets_in(client) for _ in range(10))
    assert not rates.is_asked and rates.report() == []


def test_the_turn_of_a_minute_does_not_double_the_limit() -> None:
    """Counts that begin at zero with each minute let in the limit just before the turn, and again just after it."""
    clock = Clock()
    rates = of(clock)
    clock.now += 55.0
    assert accepted(rates, 2 * LIMIT) == LIMIT
    clock.now += 11.0  # six seconds of the next minute
    assert accepted(rates, 2 * LIMIT) == 10
    clock.now += 27.0
    assert accepted(rates, 2 * LIMIT) == 45
    clock.now += 120.0
    assert accepted(rates, 2 * LIMIT) == LIMIT


def test_a_refused_mail_is_not_counted() -> None:
    """A client that tries again and again would never get in again."""
    clock = Clock()
    rates = of(clock)
    assert accepted(rates, 100 * LIMIT) == LIMIT
    clock.now += 90.0
    assert accepted(rates, 100 * LIMIT) == LIMIT // 2


def test_the_addresses_of_an_ipv6_network_are_one_client() -> None:
    """Its owner has 2**64 of them."""
    rates = of(Clock())
    assert sum(rates.lets_in(f"2001:db8::{number:x}") for number in range(1, 2 * LIMIT)) == LIMIT
    assert rates.lets_in("2001:db8:0:1::1")


def test_the_number_of_clients_in_memory_is_bounded() -> None:
    """Those beyond it are not limited: mail goes on."""
    rates = of(Clock(), 1, max_clients=5)
    assert accepted(rates, 10) == 1
    for number in range(100):
        rates.lets_in(f"198.51.100.{number}")
        rates.lets_in(f"2001:db8:{number:x}::1")
    assert len(rates._current.own) == 5 and len(rates._networks) == 5
    assert accepted(rates, 10, "203.0.113.1") == 10
    assert accepted(rates, 10) == 0


def test_several_processes_let_in_the_limit_together() -> None:
    clock = Clock()
    shared, processes = Shared(), [of(clock) for _ in range(4)]
    total = 0
    for _ in range(100):
        for rates in processes:
            total += accepted(rates, 2)
            shared.exchange(rates, clock)
    assert LIMIT <= total <= LIMIT + 2 * len(processes)
    clock.now += 60.0 + 30.0  # half of the minute before counts, whoever had it
    again = 0
    for _ in range(100):
        for rates in processes:
            shared.exchange(rates, clock)
            again += accepted(rates, 2)
    assert LIMIT // 2 - 10 <= again <= LIMIT // 2 + 2 * len(processes)


def test_only_busy_clients_are_told_and_the_busiest_first() -> None:
    """A flood of addresses would fill the database otherwise; those that were left out come next."""
    clock = Clock()
    rates, shared = of(clock, max_reported=3), Shared()
    for number in range(1, 11):
        accepted(rates, number, f"192.0.2.{number}")
    reported = rates.report()
    assert [(count.client, count.mails) for count in reported] == [(f"192.0.2.{n}", n) for n in (10, 9, 8)]
    for _ in range(5):
        shared.exchange(rates, clock)
    assert sorted(shared.sums.values()) == [5, 6, 7, 8, 9, 10]
    assert rates.report() == []


def test_counts_that_could_not_be_told_are_told_later() -> None:
    """The database was away, also over the turn of a minute."""
    clock = Clock()
    rates, shared = of(clock), Shared()
    accepted(rates, 10)
    rates.report()
    clock.now += 60.0
    accepted(rates, 20)
    shared.exchange(rates, clock)
    assert sorted(shared.sums.values()) == [10, 20]


def test_a_server_that_was_frozen_does_not_move_the_minutes() -> None:
    """The time in its late answer is from before."""
    clock = Clock()
    rates, shared = of(clock), Shared()
    accepted(rates, 10)
    shared.exchange(rates, clock)
    clock.now += 59.0
    rates.learn([], BEGIN + clock.now - 120.0, took_s=120.0)
    accepted(rates, 10)
    shared.exchange(rates, clock)
    assert shared.sums == {(int(BEGIN // 60), "192.0.2.1"): 20}


def test_a_server_that_has_lost_counts_lets_in_no_more() -> None:
    """After a failover, it may know less than it was told."""
    clock = Clock()
    rates, shared = of(clock), Shared()
    accepted(rates, LIMIT - 10)
    shared.exchange(rates, clock)
    shared.sums = dict.fromkeys(shared.sums, 5)
    shared.exchange(rates, clock)
    assert accepted(rates, LIMIT) == 10


@pytest.mark.parametrize("away_s", [-3600.0, -61.0, -2.0, 2.0, 61.0, 3600.0])
def test_clocks_that_differ_do_no_harm(away_s: float) -> None:
    """The minutes are those of the database, whatever the machine's own clock says."""
    clock = Clock()
    one, other = of(clock), of(clock)
    shared = Shared(away_s)
    total = 0
    for _ in range(60):
        for rates in (one, other):
            total += accepted(rates, 2)
            shared.exchange(rates, clock)
    # What the first exchange told of another minute may count twice.
    assert LIMIT - 4 <= total <= LIMIT + 8
