"""What all workers together have in processing, exactly: mails and bytes, one row for each worker.

Beside that, what they tell each other: that they are ready and alive, and how many connections each has.

The numbers lie in memory that the workers inherit. Only a row's worker changes the row, and near a limit
taking happens under a lock of the kernel's, so that what was taken cannot pass it. Giving back
needs no lock: a sum that is read meanwhile is at most too high. A worker that dies holds no lock
(the kernel ends it) and the supervisor clears its row. Knows nothing of mail.

What breaks if this is wrong: the scanner gets more than it was promised, or slots are lost for good.
"""

from __future__ import annotations

import fcntl
import mmap
import os

_CELL = 8  # bytes; written and read whole, because they are aligned


class Column:
    """One kind of number as one worker sees it: its own cell, and the sum of all."""

    __slots__ = ("_cells", "_lock", "_row")

    def __init__(self, cells: memoryview, lock: int, row: int) -> None:
        self._cells, self._lock, self._row = cells, lock, row

    @property
    def total(self) -> int:
        """The sum, but for what `take_one` does just now. Writes nothing: our cell may be another process' own."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            return sum(self._cells)
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def glance(self) -> int:
        """The sum for almost nothing; off by what moves from one worker to another at this very moment."""
        return sum(self._cells)

    @property
    def own(self) -> int:
        value: int = self._cells[self._row]
        return value

    def take(self, count: int, limit: int) -> int | None:
        """Add to our cell unless the sum would pass the limit: the sum before, or None."""
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
        """What `take(1, limit)` does, without the lock as long as there is room for one more of every row.

        Our one is written down first and the sum read after that. Whoever does so at the same moment may miss ours as
        we may miss his, one from each row, and for those there is room. If there was room before we wrote and is none
        after it, we have been slow, and the lock decides.
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


class Ledger:
    """Made by the supervisor before it forks. `rows` is how many processes can use it at once.

    Locks are POSIX ones (`lockf`), which belong to a process and not to an open file: an inherited
    descriptor will do, and the death of their holder ends them.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._lock = os.memfd_create("scanbridge-ledger", os.MFD_CLOEXEC)
        self._memory = mmap.mmap(-1, 5 * rows * _CELL)  # anonymous and shared
        cells = memoryview(self._memory).cast("q")
        columns = [cells[i * rows : (i + 1) * rows] for i in range(5)]
        self._mails, self._bytes, self._ready, self._beats, self._connections = columns

    def mails(self, row: int) -> Column:
        return Column(self._mails, self._lock, row)

    def bytes(self, row: int) -> Column:
        return Column(self._bytes, self._lock, row)

    def set_ready(self, row: int, ready: bool) -> None:
        self._ready[row] = ready

    def is_ready(self, row: int) -> bool:
        return bool(self._ready[row])

    def set_connections(self, row: int, count: int) -> None:
        """Of a worker; other processes say nothing, and nothing is 0."""
        self._connections[row] = count + 1

    def fewest_connections(self, but: int, since_s: float) -> int | None:
        """Of the workers that take some and gave a sign of life since then, without this one; None: no other does."""
        since = int(since_s * 1000)
        rows = enumerate(zip(self._ready, self._beats, self._connections, strict=True))
        found = [told - 1 for row, (ready, beat, told) in rows if ready and told and beat >= since and row != but]
        return min(found, default=None)

    def beat(self, row: int, now_s: float) -> None:
        """A sign of life."""
        self._beats[row] = int(now_s * 1000)

    def first_alive(self) -> int | None:
        """The lowest row with a worker; the supervisor gives the first sign of life when it forks one."""
        return next((row for row, beat in enumerate(self._beats) if beat), None)

    def last_beat(self, row: int) -> float:
        value: int = self._beats[row]
        return value / 1000

    def clear(self, row: int) -> None:
        """Its worker is gone (and must be): what it had in processing is free again."""
        for column in (self._ready, self._mails, self._bytes, self._beats, self._connections):
            column[row] = 0
