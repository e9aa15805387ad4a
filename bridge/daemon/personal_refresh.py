"""Keeps the personal lists in memory up to date, in every worker: a change takes effect within two seconds.

As long as nobody has made an entry, there is no file, and nothing is opened. If the database cannot be read, the
entries in memory stay in effect, and after a start there are none: mail does not wait for personal lists.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from bridge.lists.personal_store import REMOVALS_KEPT_S, PersonalLists
from bridge.lists.personal_table import EMPTY, PersonalTable
from bridge.runtime.counted import counted

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_SETTLED_NS = 1_000_000_000  # far longer than a tick of any file system's clock

Stamp = tuple[tuple[int, int], ...]  # size and time of the files


class PersonalRefresh:
    """Call `start`, then `watch`, which runs until cancelled; mail uses `table`."""

    def __init__(self, lists: PersonalLists, file: Path | None) -> None:
        self.table: PersonalTable = EMPTY
        self.problem = ""
        self._lists = lists
        self._files = () if file is None else (file, file.with_name(f"{file.name}-wal"))
        self._stamp: Stamp | None = None
        self._seq = -1  # not loaded
        self._looked_at = 0.0
        self._looking = asyncio.Lock()

    async def start(self) -> None:
        """Load the entries, before the first connection."""
        await self.look()
        if not self.table.is_empty:
            log.info("personal lists: %s", counted(len(self.table), "entry", "entries"))

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    def close(self) -> None:
        self._lists.close()

    async def look(self) -> None:
        """Take over what has changed."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        if self._files and self._seq < 0 and not self._files[0].exists():
            return
        try:
            self.table = await asyncio.to_thread(self._latest)
        except Exception as exc:  # a watch that ends here would leave the entries unchanged forever
            if str(exc) != self.problem:
                kept = counted(len(self.table), "entry", "entries")
                log.error("personal lists cannot be read, keeping %s: %s", kept, exc)
            self.problem, self._stamp = str(exc), None
        else:
            if self.problem:
                log.info("personal lists: readable again")
            self.problem = ""

    def _latest(self) -> PersonalTable:
        stamp, now = self._files_now(), time.monotonic()
        if self._files and stamp == self._stamp:
            self._looked_at = now
            return self.table
        seq = self._lists.seq()
        if self._seq < 0 or seq < self._seq or now - self._looked_at > REMOVALS_KEPT_S / 2:
            table = PersonalTable.of(self._lists.everything())
        elif seq == self._seq:
            table = self.table
        else:
            changes = self._lists.changes(self._seq)
            table = self.table.after(changes)
            seq = max([seq, *(change.seq for change in changes)])
        self._seq, self._stamp, self._looked_at = seq, stamp if _is_settled(stamp) else None, now
        return table

    def _files_now(self) -> Stamp:
        """SQLite's files: as long as they have not changed, no query is needed."""
        found = []
        for file in self._files:
            try:
                state = file.stat()
            except OSError:
                found.append((0, 0))
            else:
                found.append((state.st_size, state.st_mtime_ns))
        return tuple(found)


def _is_settled(stamp: Stamp) -> bool:
    """Whether the next change gets a different time: within one tick of the file system's clock, two have the same."""
    return time.time_ns() - max((changed for _, changed in stamp), default=0) > _SETTLED_NS
