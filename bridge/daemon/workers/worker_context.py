"""The place of this process among the workers: alone, or one of several that share sockets and limits.

The daemon asks a `WorkerContext` for everything that differs between the two. The accounts that
limit mail in processing look the same to the code that uses them; only here is it known that other
processes may draw on them too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from bridge.daemon.admin import AdminView, OwnStatus, SingleView
from bridge.daemon.sockets import Sockets
from bridge.daemon.workers.aggregate import INTERVAL_S, Aggregate, SharedRow
from bridge.daemon.workers.shared_counters import Column
from bridge.filter.admission import Admission, AdmissionSettings
from bridge.mail.message import Spool
from bridge.mail.spool import SpoolDisk

_AHEAD = 8  # connections beyond 1.25 times the fewest: connections come and go


class WorkerContext(Protocol):
    """What the daemon needs to know about the other processes, if there are any."""

    @property
    def sockets(self) -> Sockets: ...

    @property
    def has_supervisor(self) -> bool:
        """Whether a supervisor does what must be done once, at the start, before any worker runs."""

    @property
    def is_first(self) -> bool:
        """Whether this process does what only one of them may do (fetch lists, purge the quarantine)."""

    @property
    def is_retired(self) -> bool:
        """Whether a reload has started another worker to replace this one."""

    def admission(self, settings: AdmissionSettings) -> Admission: ...

    def spool(self, limit: int, memory_per_mail: int, directory: str | None) -> Spool: ...

    def balance(self, connections: Callable[[], int]) -> Callable[[], bool] | None:
        """A check that says whether to leave new connections to other workers; None if there are none."""

    def admin_view(self, status: OwnStatus) -> AdminView: ...


class SingleProcess:
    """The daemon is one process."""

    has_supervisor = False
    is_first = True
    is_retired = False

    def __init__(self) -> None:
        self.sockets = Sockets()

    def admission(self, settings: AdmissionSettings) -> Admission:
        return Admission(settings)

    def spool(self, limit: int, memory_per_mail: int, directory: str | None) -> Spool:
        return Spool(limit, memory_per_mail, directory, disk=SpoolDisk())

    def balance(self, connections: Callable[[], int]) -> Callable[[], bool] | None:
        return None

    def admin_view(self, status: OwnStatus) -> AdminView:
        return SingleView(status)


class SupervisedWorker:
    """The daemon is one of several workers, started by a supervisor."""

    has_supervisor = True

    def __init__(self, shared: SharedRow, sockets: Sockets, lifeline: int) -> None:
        self.sockets = sockets
        self.lifeline = lifeline  # readable (end of file) once the supervisor is gone
        self.life = shared.life
        self._shared = shared
        self._row, self._counters = shared.row, shared.counters
        self._is_retired = False

    @property
    def is_first(self) -> bool:
        return self._counters.first_alive() == self._row

    @property
    def is_retired(self) -> bool:
        return self._is_retired

    def retire(self) -> None:
        """Another worker replaces this one and answers for it from now on."""
        self._is_retired = True

    def admission(self, settings: AdmissionSettings) -> Admission:
        return Admission(settings, self._counters.mails(self._row))

    def spool(self, limit: int, memory_per_mail: int, directory: str | None) -> Spool:
        account = ReservedBytes(self._counters.bytes(self._row), limit // 1000)
        return Spool(limit, memory_per_mail, directory, account, SpoolDisk())

    def balance(self, connections: Callable[[], int]) -> Callable[[], bool] | None:
        return lambda: self.is_ahead(connections())

    def is_ahead(self, own: int) -> bool:
        """Whether another worker has so many fewer connections than `own` that it should get the next ones."""
        self._counters.set_connections(self._row, own)
        fewest = self._counters.fewest_connections(self._row, time.monotonic() - 2 * INTERVAL_S)
        return fewest is not None and own >= fewest * 1.25 + _AHEAD

    def admin_view(self, status: OwnStatus) -> AdminView:
        return Aggregate(self._shared, status, lambda: self.is_retired)

    # Reports to the supervisor

    async def beat_regularly(self) -> None:
        """Record a heartbeat every second, until cancelled: the event loop of this process runs."""
        while True:
            self._counters.beat(self._row, time.monotonic())
            await asyncio.sleep(INTERVAL_S)

    def report_ready(self) -> None:
        self._counters.set_ready(self._row, True)
        self._wake_supervisor()

    def report_closed(self) -> None:
        """This process accepts no more connections."""
        self._counters.set_ready(self._row, False)
        self._wake_supervisor()

    def _wake_supervisor(self) -> None:
        if os.getppid() == self._shared.supervisor:
            os.kill(self._shared.supervisor, signal.SIGUSR1)


class ReservedBytes:
    """The bytes of all workers together, drawn with a reserve: taking from the shared account needs a lock.

    A worker with mail in processing keeps up to `reserve` bytes more than its mail needs. The limit is therefore
    never passed, but may appear to be reached early by that reserve (a thousandth of the limit) for each worker.
    """

    def __init__(self, used: Column, reserve: int) -> None:
        self._used = used
        self._own = 0  # what our mail holds; what we took beyond that is the reserve
        self._reserve = 0
        self._most_reserve = reserve

    @property
    def in_use(self) -> int:
        return self._used.total

    def take(self, count: int, limit: int) -> bool:
        if count > self._reserve and not self._refill(count, limit):
            return False
        self._reserve -= count
        self._own += count
        return True

    def _refill(self, count: int, limit: int) -> bool:
        """Bring the reserve to at least `count`."""
        missing = count - self._reserve
        for more in (missing + self._most_reserve, missing):
            if self._used.take(more, limit) is not None:
                self._reserve += more
                return True
        return False

    def give_back(self, count: int) -> None:
        self._own -= count
        self._reserve += count
        kept = self._most_reserve if self._own else 0
        if self._reserve > kept:
            self._used.give_back(self._reserve - kept)
            self._reserve = kept
