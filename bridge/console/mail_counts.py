"""How much mail there was, and whose: counted once for all who ask, for each set of tenants.

Counting a month of a busy server takes seconds, so it is done in the background, and results are kept for a minute or
more. The first to ask gets what has been counted so far; after that, the last result, with a note that a newer one is
on its way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from anyio import to_thread

from bridge.console.kept_results import KeptResults
from bridge.console.roles import Tenants
from bridge.console.tenant_history import TenantHistory
from bridge.history.query import By, HistoryQuery, Sum, Top
from bridge.history.store import HistoryError

log = logging.getLogger(__name__)

_HOUR, _DAY = 3600.0, 86400.0
PERIODS = {"day": _DAY, "week": 7 * _DAY, "month": 30 * _DAY}
_COUNTED: tuple[By, ...] = ("action", "decision", "hour")
LISTED: dict[By, str] = {"sender": "Senders", "recipient": "Recipients", "tag": "Tags", "client": "Clients"}
_WAIT_S = 0.05  # for what was not counted before
_FRESH = {"day": 60.0, "week": 120.0, "month": 300.0}  # seconds
_HOUR_FRESH_S = 1.5  # of the last hour
_MAX_KEPT = 60
_TOP = 10


@dataclass(slots=True)
class Counted:
    """Grows while it is counted."""

    at: float = field(default_factory=time.time)  # Unix time
    took_s: float = 0.0
    sums: dict[str, list[Sum]] = field(default_factory=lambda: {by: [] for by in _COUNTED})
    tops: dict[str, Top] = field(default_factory=dict)
    is_complete: bool = False
    is_old: bool = False  # it is being counted again

    @property
    def mails(self) -> int:
        return sum(one.mails for one in self.sums["action"])

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.sums["action"])


class MailCounter:
    """Counts once for all who ask, and again in the background when the result is old."""

    def __init__(self) -> None:
        self._kept: KeptResults[tuple[Tenants, str], Counted] = KeptResults(_MAX_KEPT)
        self._running: dict[tuple[Tenants, str], asyncio.Task[None]] = {}
        self._growing: dict[tuple[Tenants, str], Counted] = {}
        self._one_at_a_time = asyncio.Semaphore(1)

    async def count(self, history: TenantHistory, tenants: Tenants, period: str) -> Counted:
        key = (tenants, period)
        if (fresh := self._kept.fresh(key)) is not None:
            return fresh
        known = self._kept.latest(key)
        is_new = key not in self._running
        if is_new:
            self._growing[key] = Counted()
            task = self._running[key] = asyncio.create_task(self._work(key, history))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # `_work` has logged it
        running, counted = self._running[key], self._growing[key]
        if is_new:
            await asyncio.wait([running], timeout=_WAIT_S)
        if running.done() and (known is None or running.exception() is None):
            running.result()  # raises what went wrong
            return counted
        if known is None:
            return counted
        known.is_old = not running.done()
        return known

    async def _work(self, key: tuple[Tenants, str], history: TenantHistory) -> None:
        counted = self._growing[key]
        try:
            async with self._one_at_a_time:
                await asyncio.to_thread(_count, counted, history, key[1])
            self._kept.keep(key, counted, _fresh_s(_FRESH[key[1]], counted.took_s))
        except HistoryError as exc:
            log.warning("console: %s", exc)
            raise
        finally:
            del self._running[key], self._growing[key]


class LastHour:
    """What was done with the mail of the last hour: one count at a time, for everybody with the same tenants.

    Every open window of the overview asks every two seconds.
    """

    def __init__(self) -> None:
        self._kept: KeptResults[Tenants, list[Sum]] = KeptResults(_MAX_KEPT)
        self._one_at_a_time = asyncio.Lock()

    async def count(self, history: TenantHistory) -> list[Sum]:
        """Raises HistoryError."""
        if (fresh := self._kept.fresh(history.tenants)) is not None:
            return fresh
        async with self._one_at_a_time:
            if (fresh := self._kept.fresh(history.tenants)) is not None:
                return fresh
            began = time.monotonic()
            sums = await to_thread.run_sync(history.count, "action", HistoryQuery(since=time.time() - _HOUR))
            self._kept.keep(history.tenants, sums, _fresh_s(_HOUR_FRESH_S, time.monotonic() - began))
            return sums


def _fresh_s(least_s: float, took_s: float) -> float:
    """Counting may take at most a twentieth of a thread's time."""
    return max(least_s, 20 * took_s)


def _count(counted: Counted, history: TenantHistory, period: str) -> None:
    began, query = time.monotonic(), query_of(period)
    for by in _COUNTED:
        found = history.count(by, query)
        counted.sums[by] = _whole(found, query) if by == "hour" else found
    for by in LISTED:
        counted.tops[by] = history.top(by, query, _TOP)
    counted.at, counted.took_s, counted.is_complete = time.time(), time.monotonic() - began, True


def _whole(hours: list[Sum], query: HistoryQuery) -> list[Sum]:
    """With the first and the last hour of the period, so that the plot shows all of it."""
    known = {one.label: one for one in hours}
    for moment in (query.since or 0.0, time.time()):
        label = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:00")
        known.setdefault(label, Sum(label, 0, 0))
    return [known[label] for label in sorted(known)]


def query_of(period: str) -> HistoryQuery:
    """From the beginning of an hour, because sums are kept by the hour."""
    return HistoryQuery(since=(time.time() - PERIODS[period]) // 3600 * 3600, limit=0)
