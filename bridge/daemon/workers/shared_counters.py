"""Counters that all workers share: mails and bytes in processing, exact, one row per worker.

The same table holds what the workers and the supervisor need to know about each other: which process
is ready, which is alive, and how many connections each worker has.

The numbers live in memory that the workers inherit. Only a row's own worker changes the row. Near a
limit, taking happens under a kernel lock, so the sum cannot pass the limit. Giving back needs no
lock: a sum read meanwhile is at most too high. A worker that dies releases its lock (the kernel does
that), and the supervisor clears its row. Knows nothing of mail.

If this is wrong, the scanner gets more mail than it was promised, or slots are lost until a restart.
"""

from __future__ import annotations

import fcntl
import mmap
import os

_CELL = 8  # bytes; aligned, so each is read and written as a whole


class Column:
    """One kind of number as one worker sees it: its own cell, and the sum of all cells."""

    __slots__ = ("_cells", "_lock", "_row")

    def __init__(self, cells: memoryview, lock: int, row: int) -> None:
        self._cells, self._lock, self._row = cells, lock, row

    @property
    def total(self) -> int:
        """The exact sum, except for a `take_one` in progress. Writes nothing: the supervisor reads with any row."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            return sum(self._cells)
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def glance(self) -> int:
        """The sum without the lock: cheap, but off by whatever changes while it is read."""
        return sum(self._cells)

    @property
    def own(self) -> int:
        value: int = self._cells[self._row]
        return value

    def take(self, count: int, limit: int) -> int | None:
        """Add `count` to our cell and return the previous sum; None, and no change, if it would pass the limit."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            before = sum(self._cells)
            if before + count > limit:
                return None
            self._cells[self._row] += count
            return before
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def take_one(self, limit: int) -> int | None:
        """The same as `take(1, limit)`, but without the lock while there is room for one more from every row.

        We write our own count first and read the sum afterwards. Another worker that does the same at this moment may
        miss ours, and we may miss theirs: at most one from each row, and there is room for those. If there was room
        before our write but not after it, the lock decides.
        """
        cells, most = self._cells, limit - len(self._cells)
        if sum(cells) < most:
            cells[self._row] += 1
            if (total := sum(cells)) <= most:
                return total - 1
            cells[self._row] -= 1
        return self.take(1, limit)

    def give_back(self, count: int) -> None:
        self._cells[self._row] -= count


class SharedCounters:
    """Created by the supervisor before it forks. `rows` is the largest number of processes that use it together.

    The locks are POSIX locks (`lockf`). They belong to a process, not to an open file, so an inherited
    descriptor works, and they end when their holder dies.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._lock = os.memfd_create("scanbridge-counters", os.MFD_CLOEXEC)
        self._memory = mmap.mmap(-1, 5 * rows * _CELL)  # anonymous and shared
        cells = memoryview(self._memory).cast("q")
        columns = [cells[i * rows : (i + 1) * rows] for i in range(5)]
        self._mails, self._bytes, self._ready, self._heartbeats, self._connections = columns

    def mails(self, row: int) -> Column:
        return Column(self._mails, self._lock, row)

    def bytes(self, row: int) -> Column:
        return Column(self._bytes, self._lock, row)

    def set_ready(self, row: int, ready: bool) -> None:
        self._ready[row] = ready

    def is_ready(self, row: int) -> bool:
        return bool(self._ready[row])

    def set_connections(self, row: int, count: int) -> None:
        """Stored plus one: 0 means that the process does not report connections (the embedded service)."""
        self._connections[row] = count + 1

    def fewest_connections(self, except_row: int, since_s: float) -> int | None:
        """The smallest count among the other ready workers with a heartbeat since then; None if there are none."""
        since = int(since_s * 1000)
        rows = enumerate(zip(self._ready, self._heartbeats, self._connections, strict=True))
        found = [
            stored - 1
            for row, (ready, heartbeat, stored) in rows
            if ready and stored and heartbeat >= since and row != except_row
        ]
        return min(found, default=None)

    def beat(self, row: int, now_s: float) -> None:
        """Record a heartbeat."""
        self._heartbeats[row] = int(now_s * 1000)

    def first_alive(self) -> int | None:
        """The lowest row with a process; the supervisor records the first heartbeat when it forks one."""
        return next((row for row, heartbeat in enumerate(self._heartbeats) if heartbeat), None)

    def last_beat(self, row: int) -> float:
        value: int = self._heartbeats[row]
        return value / 1000

    def clear(self, row: int) -> None:
        """Free everything the row's worker had in processing. That worker must be gone."""
        for column in (self._ready, self._mails, self._bytes, self._heartbeats, self._connections):
            column[row] = 0
