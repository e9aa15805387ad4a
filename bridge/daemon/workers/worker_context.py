"""What a worker has in common with its siblings: sockets, counts, boards; made by the supervisor.

The two accounts that limit mail in processing look like those of a single process to everything
that uses them; only here is it known that other processes draw on them too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge.daemon.sockets import Sockets
from bridge.daemon.workers.shared_counters import Column, Ledger
from bridge.daemon.workers.shared_snapshots import Boards
from bridge.errors import Saturated
from bridge.filter.admission import Admission, AdmissionSettings
from bridge.mail.message import Spool

_BEAT_S = 1.0
_AHEAD = 8  # connections more, and a quarter: connections come and go


class SharedAdmission(Admission):
    """The slots of all workers together."""

    def __init__(self, settings: AdmissionSettings, slots: Column) -> None:
        self.settings = settings
        self._slots = slots

    @property
    def in_processing(self) -> int:  # type: ignore[override]  # a number of its own costs one process nothing
        return self._slots.total

    def glance(self) -> int:
        return self._slots.glance()  # the hot path of a bad day

    def enter(self, is_pressed: Callable[[], bool] = lambda: False) -> float:
        before = self._slots.take_one(self.settings.max_in_processing)
        if before is None:
            raise Saturated("mail in processing is at its limit")
        return self.delay_after(before, is_pressed)

    def leave(self) -> None:
        self._slots.give_back(1)


class SharedSpool(Spool):
    """The bytes of all workers together.

    A worker with mail in processing keeps a small reserve, because taking from the common account needs a lock. So
    the limit is never passed, and may seem to be reached a thousandth of it too early for each worker.
    """

    def __init__(self, limit: int, memory_per_mail: int, directory: str | None, used: Column) -> None:
        self.limit, self.memory_per_mail, self.directory = limit, memory_per_mail, directory
        self._used = used
        self._own = 0  # what our mail holds; the rest of what we took is the reserve
        self._reserve = 0
        self._most_reserve = limit // 1000

    @property
    def in_use(self) -> int:  # type: ignore[override]
        return self._used.total

    def take(self, count: int) -> None:
        if count > self._reserve:
            self._refill(count)
        self._reserve -= count
        self._own += count

    def _refill(self, count: int) -> None:
        """Have at least so much in reserve."""
        missing = count - self._reserve
        for more in (missing + self._most_reserve, missing):
            if self._used.take(more, self.limit) is not None:
                self._reserve += more
                return
        raise Saturated("bytes in processing are at their limit")

    def give_back(self, count: int) -> None:
        self._own -= count
        self._reserve += count
        kept = self._most_reserve if self._own else 0
        if self._reserve > kept:
            self._used.give_back(self._reserve - kept)
            self._reserve = kept


@dataclass(slots=True)
class Share:
    """One worker's place among the others."""

    row: int
    ledger: Ledger
    boards: Boards
    sockets: Sockets
    supervisor: int  # its process id
    lifeline: int  # reads as ended when the supervisor is gone
    life: int = 0  # which worker this is: a process id may come again
    connections: Callable[[], int] = lambda: 0  # how many we have

    def admission(self, settings: AdmissionSettings) -> Admission:
        return SharedAdmission(settings, self.ledger.mails(self.row))

    def spool(self, limit: int, memory_per_mail: int, directory: str | None) -> Spool:
        return SharedSpool(limit, memory_per_mail, directory, self.ledger.bytes(self.row))

    def tell_connections(self) -> int:
        """Tell the others how many we have."""
        count = self.connections()
        self.ledger.set_connections(self.row, count)
        return count

    def is_ahead(self) -> bool:
        """Whether another worker has so many connections less than we that the next ones should be his."""
        own = self.tell_connections()
        fewest = self.ledger.fewest_connections(self.row, time.monotonic() - 2 * _BEAT_S)
        return fewest is not None and own >= fewest * 1.25 + _AHEAD

    @property
    def is_first(self) -> bool:
        """Of those that live: it does what need be done once only."""
        return self.ledger.first_alive() == self.row

    async def beat_always(self) -> None:
        """A sign of life each second: our event loop turns. Ends by being cancelled."""
        while True:
            self.ledger.beat(self.row, time.monotonic())
            await asyncio.sleep(_BEAT_S)

    def tell_ready(self) -> None:
        self.ledger.set_ready(self.row, True)
        self._wake()

    def tell_closed(self) -> None:
        """We take no connections any more."""
        self.ledger.set_ready(self.row, False)
        self._wake()

    def _wake(self) -> None:
        if os.getppid() == self.supervisor:
            os.kill(self.supervisor, signal.SIGUSR1)

    def supervisor_says(self) -> dict[str, Any]:
        """Its phase, its reloads, and the counts of the workers that are gone."""
        text = self.boards.read(self.boards.supervisor)
        return dict(json.loads(text)) if text else {}
