"""Upkeep of a store that several bridges share: one of them at a time lists it, and the others use its count.

Listing a bucket costs a request for each thousand objects, and each bridge did it on its own timer. The turns are
recorded in the state database; if it cannot be reached, each bridge does the work itself, as for a store that it does
not share.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TypeVar

from bridge.quarantine.usage import Usage
from bridge.runtime.turns import Turns, TurnsFailed

log = logging.getLogger("bridge.quarantine")
T = TypeVar("T")

_COUNT_S = 300.0  # longer than a count of some million mails takes; then another bridge counts, too
_UPKEEP_S = 3600.0


class SharedUpkeep:
    """For one store. Its methods raise what the work raises."""

    def __init__(self, turns: Turns, store: str) -> None:
        self._turns = turns
        self._count, self._upkeep = f"count {store}", f"upkeep {store}"

    def usage(self, count: Callable[[], Usage], max_age_s: float) -> Usage:
        """A count that is not much older than this: ours, or another bridge's."""
        try:
            is_ours = self._turns.take(self._count, max_age_s, _COUNT_S)
            done = None if is_ours else self._turns.last(self._count)
        except TurnsFailed as exc:
            log.debug("quarantine: cannot coordinate with the other bridges, counting alone: %s", exc)
            return count()
        if not is_ours:
            # While the first bridge counts for the first time, there is nothing to use yet.
            return (_read(done.result) if done is not None else None) or count()
        return self._do(self._count, count, _write)

    def run(self, work: Callable[[], int], every_s: float) -> int:
        """Do the work, or return 0 if another bridge did it less than `every_s` ago or is doing it now."""
        try:
            if not self._turns.take(self._upkeep, every_s, _UPKEEP_S):
                return 0
        except TurnsFailed as exc:
            log.debug("quarantine: cannot coordinate with the other bridges; doing all the upkeep here: %s", exc)
            return work()
        return self._do(self._upkeep, work, str)

    def close(self) -> None:
        self._turns.close()

    def _do(self, name: str, work: Callable[[], T], shown: Callable[[T], str]) -> T:
        try:
            found = work()
        except BaseException:
            self._tell(self._turns.give_up, name)
            raise
        self._tell(self._turns.finish, name, shown(found))
        return found

    @staticmethod
    def _tell(say: Callable[..., None], *arguments: str) -> None:
        try:
            say(*arguments)
        except TurnsFailed as exc:  # the others wait until the turn ends by itself
            log.debug("quarantine: the other bridges could not be notified: %s", exc)


def _write(usage: Usage) -> str:
    return json.dumps([usage.mails, usage.size_bytes, usage.oldest_at])


def _read(result: str) -> Usage | None:
    """None if another version of this program wrote it in another form."""
    try:
        mails, size_bytes, oldest_at = json.loads(result)
        return Usage(int(mails), int(size_bytes), None if oldest_at is None else float(oldest_at))
    except (ValueError, TypeError):
        return None
