"""The spool's disk: threads write to it, so that a disk that hangs does not stop the event loop.

On a disk that hangs, a write, and even a close, does not return for minutes, and the event loop would stop as well. So
the event loop only hands blocks over, and these threads write them. A disk that hangs costs memory, for all mail of a
process at most `max_unwritten`; beyond that, large mail is deferred. Mail that fits in memory is not affected.

Knows how much is not written and for how long, but not what a file is (`spool_file`). If this is wrong, one disk stops
all mail, or takes all memory.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from bridge.runtime.threads import Threads

BLOCK = 256 * 1024
LOOK_S = 0.02  # how often a stopped client is checked
_ARRIVED_S = 0.02  # by then the bridge has read what a client had sent while it was stopped
_THREADS = 4


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Limits that no configuration key changes; tests set other values."""

    max_unwritten: int = 64 * 1024 * 1024  # bytes in a process; clients are stopped at half of it, or earlier
    hangs_after_s: float = 3.0  # for one block: the slowest disks take tenths of a second
    max_wait_s: float = 20.0  # for a disk that is slow, or threads that cannot be started; the mail is then deferred
    in_memory: frozenset[str] = frozenset({"tmpfs", "ramfs"})  # file systems that do not hang


class Writing(Protocol):
    """A file with something to write."""

    @property
    def has_work(self) -> bool:
        """Called with the lock."""

    def work(self) -> None:
        """One step: write a block, or close the file."""


class SpoolDisk:
    """The threads that write the queued files of a process. Its lock guards the state of all of them."""

    def __init__(self, limits: DiskLimits | None = None) -> None:
        self.limits = limits or DiskLimits()
        self.lock = threading.Lock()
        self.unwritten = 0  # bytes
        self.growing = 0  # files for which a block may arrive at any moment
        self._threads = Threads("spool", _THREADS)
        self._jobs = 0
        self._waiting: dict[Writing, None] = {}  # in this order
        self._in_hand: dict[Writing, float] = {}  # files that a thread works on, and since when
        self._let_go, self._let_go_at = 0, 0.0  # bytes expected from clients that were stopped, and since when

    def hangs_s(self) -> float:
        """For how long the disk has not answered; 0 if it is answering."""
        with self.lock:
            oldest = min(self._in_hand.values(), default=None)
        waited_s = 0.0 if oldest is None else time.monotonic() - oldest
        return waited_s if waited_s >= self.limits.hangs_after_s else 0.0

    def is_behind(self) -> bool:
        """Whether half of the room is taken, or the rest is needed for a block of each mail. Not while the disk hangs.

        All clients that are not stopped may send a block in the same turn of the event loop.
        """
        return self.unwritten > self._room() and not self.hangs_s()

    def _room(self) -> int:
        """At least an eighth of the limit, which keeps the threads busy."""
        most = self.limits.max_unwritten
        return max(min(most - self.growing * BLOCK, most // 2), most // 8)

    def may_go_on(self) -> bool:
        """Whether a client that was stopped may send a block. It is counted now, because it arrives later."""
        if self.hangs_s():
            return True
        now = time.monotonic()
        if now - self._let_go_at >= _ARRIVED_S:
            self._let_go, self._let_go_at = 0, now
        if self.unwritten + self._let_go > self._room():
            return False
        self._let_go += 2 * BLOCK  # while the disk is not behind yet, a client may send another one
        return True

    # The following are called with the lock.

    def put(self, file: Writing) -> None:
        """There is something to do for this file. A thread that is working on it will notice by itself."""
        if file not in self._in_hand:
            self._waiting[file] = None
            if self._jobs < _THREADS:
                self._jobs += 1
                self._start()

    def _start(self) -> None:
        try:
            self._threads.submit(self._work)
        except (RuntimeError, OSError):  # no thread is available: the next block of any mail tries again
            self._jobs -= 1

    def take_out(self, file: Writing) -> None:
        """There is nothing to do for this file any more."""
        self._waiting.pop(file, None)

    # In a thread.

    def _work(self) -> None:
        """One step of each file in turn, so that no file has to wait until another is written completely."""
        while True:
            with self.lock:
                file = next(iter(self._waiting), None)
                if file is None:
                    self._jobs = max(self._jobs - 1, 0)
                    return
                del self._waiting[file]
                self._in_hand[file] = time.monotonic()
            try:
                file.work()
            finally:
                with self.lock:
                    del self._in_hand[file]
                    if file.has_work:
                        self._waiting[file] = None

    def write(self, descriptor: int, chunk: bytes) -> None:
        """May take forever."""
        write_all(descriptor, chunk)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
