"""Usage: how much the quarantine holds, and how much room is left.

Counting touches every file, so it is done in a thread, from time to time; in between, the last count
is used. Other processes store and remove mail too, so no count stays exact for long.

If `quarantine.max_size` is set, a mail beyond it is refused for now (452). Stored mail is never removed
to make room: its clients were told 250.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import StoreFull

_RECOUNT_WHEN_FULL_S = 1.0  # refusals may come by the hundred


@dataclass(frozen=True, slots=True)
class Usage:
    """What a store holds."""

    mails: int
    size_bytes: int
    oldest_at: float | None  # Unix time; None if it is empty
    disk_free_bytes: int | None = None  # None: not on a local disk
    disk_size_bytes: int | None = None


def measure(directory: Path) -> Usage:
    """Count the files of a local store. Raises OSError."""
    mails, size, oldest = 0, 0, None
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):  # still being written
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed in the meantime
                continue
            size += status.st_size
            if entry.name.endswith(".json"):
                mails += 1
                oldest = status.st_mtime if oldest is None else min(oldest, status.st_mtime)
    disk = os.statvfs(directory)
    return Usage(mails, size, oldest, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)


class Quota:
    """The limit on stored bytes, including the bytes of mail that is being written.

    Recounts every `recount_s`, and before it refuses a mail. Counting blocks: reserve from a thread.
    """

    def __init__(self, count_bytes: Callable[[], int], limit: int | None, recount_s: float) -> None:
        self._count_bytes = count_bytes
        self._limit = limit
        self._recount_s = recount_s
        self._counting = threading.Lock()  # held while files are counted, so never taken by the event loop
        self._numbers = threading.Lock()  # held for a moment
        self._counted = 0
        self._counted_at = -recount_s
        self._pending = 0

    @property
    def is_limited(self) -> bool:
        return self._limit is not None

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes until `settle`. Raises StoreFull, and whatever counting raises."""
        if self._limit is None:
            return
        with self._counting:
            if self._must_count(size, self._limit):
                self._count()
            with self._numbers:
                if self._counted + self._pending + size > self._limit:
                    raise StoreFull(
                        f"quarantine: {self._counted} of {self._limit} bytes are used (quarantine.max_size)"
                    )
                self._pending += size

    def settle(self, size: int, *, is_stored: bool) -> None:
        """End a reservation: the bytes are stored, or free again. Does not wait for a count."""
        if self._limit is None:
            return
        with self._numbers:
            self._pending -= size
            self._counted += size if is_stored else 0

    def recount(self) -> None:
        """Mail was removed: count again before the next reservation."""
        self._counted_at = -self._recount_s

    def _must_count(self, size: int, limit: int) -> bool:
        age = time.monotonic() - self._counted_at
        is_full = self._counted + self._pending + size > limit
        return age >= self._recount_s or (is_full and age >= _RECOUNT_WHEN_FULL_S)

    def _count(self) -> None:
        before = self._counted
        found = self._count_bytes()
        with self._numbers:
            self._counted = found + self._counted - before  # what was stored meanwhile may not have been seen
            self._counted_at = time.monotonic()
