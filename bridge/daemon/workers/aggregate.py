"""One scrape gives the numbers of all workers, whichever of them answers it.

The one that is asked rings at the others, waits a moment for them to write their boards anew, and
adds everything up. One that does not write in time (it hangs, or the machine is very busy) is counted as silent
and its last known numbers are used, so that no counter ever goes backwards. What a worker
counted before it ended is on the supervisor's board; of one that was killed, what it had written
last: all that was ever shown, and all but the last second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from bridge.daemon.workers.worker_context import Share

log = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_PATIENCE_S = 1.0
_LOOK_S = 0.002

Words = dict[str, Any]


class Siblings:
    """Our board, and the others'. `words` is what we have to say: plain data."""

    def __init__(self, share: Share, words: Callable[[], Words]) -> None:
        self._share = share
        self._words = words
        self._too_long = False

    async def write_always(self) -> None:
        """Write when rung at, and once a second in any case. Ends by being cancelled."""
        loop, boards, row = asyncio.get_running_loop(), self._share.boards, self._share.row
        loop.add_reader(boards.bell(row), self._rung)
        try:
            while True:
                self.write()
                self._share.ledger.beat(row, time.monotonic())
                self._share.tell_connections()
                await asyncio.sleep(_INTERVAL_S)
        finally:
            loop.remove_reader(boards.bell(row))

    def _rung(self) -> None:
        self._share.boards.heard(self._share.row)
        self.write()

    def write(self) -> None:
        try:
            self._share.boards.write(self._share.row, json.dumps(self._words()).encode())
        except ValueError as exc:
            if not self._too_long:
                log.error("metrics: %s: those of this worker are missing", exc)
            self._too_long = True

    async def ask(self) -> tuple[list[Words], Words, int]:
        """What the others say, what the supervisor says, and how many did not answer in time."""
        boards, own = self._share.boards, self._share.row
        editions = {row: boards.edition(row) for row in range(boards.rows) if row != own}
        waiting = {row: edition for row, edition in editions.items() if edition}  # also those that are leaving
        for row in waiting:
            boards.ring(row)
        end = time.monotonic() + _PATIENCE_S
        while waiting and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)
            waiting = {row: edition for row, edition in waiting.items() if boards.edition(row) == edition}
        self.write()  # whatever is shown once is kept, should we be killed right after
        found, supervisor = self._read()
        return found, supervisor, len(waiting)

    def _read(self) -> tuple[list[Words], Words]:
        """All boards at one moment of the supervisor's: no worker is both on its own board and on that one."""
        boards, found, supervisor = self._share.boards, [], {}
        for _ in range(5):
            edition = boards.edition(boards.supervisor)
            supervisor = self._share.supervisor_says()
            texts = [boards.read(row) for row in range(boards.rows) if row != self._share.row]
            gone = set(supervisor.get("gone", ()))
            found = [words for words in map(json.loads, filter(None, texts)) if words["life"] not in gone]
            if boards.edition(boards.supervisor) == edition:
                break
        return found, supervisor
