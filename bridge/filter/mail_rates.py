"""How much mail each client has sent within a minute, at this bridge and at those that share its database.

Checking a mail is a look-up in dictionaries. The counts of the others arrive about once a second
(`bridge.daemon.rate_exchange`), so all of them together may let in a little more than the limit. While the database is
slow or unavailable, this process continues with its own counts: mail never waits for it.

The last minute is estimated from the current calendar minute and part of the previous one, so that a client cannot send
twice the limit around the turn of a minute. If this is wrong, a client's mail is deferred for no reason, or one client
takes the capacity of all others.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.runtime.ip import client_of

LIMIT = "max_mails_per_client_per_minute"  # in the configuration, the metrics and the log
MAX_CLIENTS = 100_000  # counted in a minute; any further client is not limited
MAX_REPORTED = 500  # clients reported to the others at a time: those with the most mail
_MINUTE_S = 60.0
_SHARE = 20  # a client with less than a twentieth of the limit is not reported to the others
_SAME_CLOCK_S = 0.5  # a smaller difference does not matter


class Count(NamedTuple):
    """Mails of one client in one minute (of the Unix time)."""

    minute: int
    client: str
    mails: int


@dataclass(slots=True)
class _Minute:
    own: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)  # how many of our own the database has
    news: set[str] = field(default_factory=set)  # clients whose count it does not have yet
    others: dict[str, int] = field(default_factory=dict)

    def of(self, client: str) -> int:
        return self.own.get(client, 0) + self.others.get(client, 0)


class MailRates:
    """The counts of this process, and what is known about those of the others."""

    def __init__(
        self,
        limit: int | None,
        clock: Callable[[], float] = time.monotonic,
        max_clients: int = MAX_CLIENTS,
        max_reported: int = MAX_REPORTED,
    ) -> None:
        self.limit = limit  # per minute; None: no limit
        self.is_asked = False  # since the last exchange; if not, no one needs the others' counts
        self._clock = clock
        self._max_clients = max_clients
        self._max_reported = max_reported
        self._offset_s = time.time() - clock()  # of the clock that all bridges share
        self._current, self._previous = _Minute(), _Minute()
        self._networks: dict[str, str] = {}
        self._begin(self._clock())

    def lets_in(self, address: str | None) -> bool:
        """Count one more mail of this client, unless it is beyond the limit. A client without an address has none."""
        if self.limit is None or address is None:
            return True
        now = self._clock()
        if now >= self._end:
            self._turn(now)
        self.is_asked = True
        client = self._network_of(address) if ":" in address else address
        current, share = self._current, (self._end - now) / _MINUTE_S
        if current.of(client) + self._previous.of(client) * share + 1 > self.limit:
            return False
        own = current.own.get(client, 0) + 1
        if own > 1 or len(current.own) < self._max_clients:
            current.own[client] = own
            if own >= self.least:
                current.news.add(client)
        return True

    @property
    def least(self) -> int:
        """A smaller count is not reported to the others."""
        return max(1, (self.limit or 0) // _SHARE)

    # The exchange with the others

    def report(self) -> list[Count]:
        """What the database does not have yet: to be added to its counts."""
        self.is_asked = False
        if (now := self._clock()) >= self._end:
            self._turn(now)
        found = [Count(minute, *item) for minute, counts in self._minutes() for item in _untold(counts)]
        return heapq.nlargest(self._max_reported, found, key=lambda count: count.mails)

    def told(self, counts: Iterable[Count]) -> None:
        """The database has these."""
        minutes = dict(self._minutes())
        for minute, client, mails in counts:
            if (known := minutes.get(minute)) is not None:
                known.told[client] = known.told.get(client, 0) + mails
                if known.told[client] >= known.own.get(client, 0):
                    known.news.discard(client)

    def learn(self, totals: Sequence[Count], now: float, took_s: float = 0.0) -> None:
        """What all bridges together have counted, and the time of the clock that they share, `took_s` old at most."""
        offset_s = now - self._clock()
        if abs(offset_s - self._offset_s) > took_s + _SAME_CLOCK_S:  # the first answer, or another server
            self._use_clock(offset_s)
        for minute, counts in self._minutes():
            counts.others = {  # a server that has lost its last transactions may know less than we told it
                total.client: max(0, total.mails - counts.told.get(total.client, 0))
                for total in totals
                if total.minute == minute
            }

    def _use_clock(self, offset_s: float) -> None:
        """Use the shared clock's minutes. Counts reported for another minute are reported again for the right one."""
        self._offset_s, before = offset_s, self._minute
        self._begin(self._clock())
        if self._minute != before:
            for counts in (self._previous, self._current):
                counts.told.clear()
                counts.news = {client for client, mails in counts.own.items() if mails >= self.least}

    def _minutes(self) -> tuple[tuple[int, _Minute], tuple[int, _Minute]]:
        return (self._minute - 1, self._previous), (self._minute, self._current)

    def _turn(self, now: float) -> None:
        """A minute is over. After a pause, the previous one is over as well."""
        is_next = now < self._end + _MINUTE_S
        self._previous = self._current if is_next else _Minute()
        self._current = _Minute()
        self._networks.clear()
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._minute = int((now + self._offset_s) // _MINUTE_S)
        self._end = (self._minute + 1) * _MINUTE_S - self._offset_s

    def _network_of(self, address: str) -> str:
        """Remembered for a minute, because reading an IPv6 address takes longer than the rest."""
        client = self._networks.get(address)
        if client is None:
            client = client_of(address)
            if len(self._networks) < self._max_clients:
                self._networks[address] = client
        return client


def _untold(counts: _Minute) -> Iterable[tuple[str, int]]:
    return ((client, counts.own[client] - counts.told.get(client, 0)) for client in counts.news)
