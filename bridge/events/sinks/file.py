"""A file of JSON lines, on disk before an event counts as delivered.

The name is checked before each batch: once a file has been renamed or removed (logrotate), the next batch creates a new
one. A line is complete or not there: what a full disk cut off is removed, and what a crash cut off is ended with a line
feed, so that the next line can be read. Several threads and processes may write to one file, including a thread whose
caller has given up: while one of them writes, the others wait, so that a writer never removes any bytes but its own.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bridge.events.outbox import Entry
from bridge.events.sinks.sink import NotDelivered, Results, all_failed
from bridge.runtime import durable_files

_POLL_S = 0.01


@dataclass(slots=True)
class FileSink:
    path: Path
    batch: int = 500
    lock_s: float = 2.0  # a batch of another process is written in milliseconds
    _fd: int = field(default=-1, init=False)
    _is_closing: bool = field(default=False, init=False)
    _using: threading.Lock = field(default_factory=threading.Lock, init=False)  # the descriptor

    async def deliver(self, entries: Sequence[Entry]) -> Results:
        try:
            await asyncio.to_thread(self.append, b"".join([entry.body + b"\n" for entry in entries]))
        except OSError as exc:
            await self.close()
            return all_failed(entries, NotDelivered(f"{self.path}: {exc.strerror or exc}"))
        return {entry.seq: None for entry in entries}

    def append(self, lines: bytes) -> None:
        """All of them or none, on disk. Raises OSError."""
        with self._using:
            try:
                if not self._is_current():
                    self._open()
                with _locked(self._fd, self.lock_s):
                    self._write(lines)
            finally:
                if self._is_closing:
                    self._is_closing = False
                    self._close()

    def _write(self, lines: bytes) -> None:
        start = os.fstat(self._fd).st_size
        if start and os.pread(self._fd, 1, start - 1) != b"\n":
            start += os.write(self._fd, b"\n")
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, start)
            raise

    def _is_current(self) -> bool:
        if self._fd < 0:
            return False
        try:
            named, ours = self.path.stat(), os.fstat(self._fd)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)

    def _open(self) -> None:
        """A file that `scanbridge events test` creates as root is given to the owner of its directory."""
        self._close()
        is_new = not self.path.exists()
        self._fd = durable_files.open_to_append(self.path, 0o640)
        if is_new:
            durable_files.give_to_owner(self.path)
            durable_files.sync_directory(self.path.parent)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):  # a FIFO without a reader would stop all sinks
            self._close()
            raise OSError("is not a regular file")

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        """A write whose caller was cancelled may still use the descriptor: it closes it then."""
        self._is_closing = True
        if self._using.acquire(blocking=False):
            self._is_closing = False
            self._close()
            self._using.release()


@contextmanager
def _locked(fd: int, limit_s: float) -> Iterator[None]:
    """Excludes other writers of the file, if its file system has locks. Raises OSError.

    Anyone who can read the file can lock it, and keep the lock.
    """
    end = time.monotonic() + limit_s
    while not (is_locked := _lock(fd)):
        if is_locked is None:
            yield
            return
        if time.monotonic() >= end:
            raise OSError(errno.EWOULDBLOCK, "is locked by another program")
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _lock(fd: int) -> bool | None:
    """Whether we hold the lock now; None if the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        return False if exc.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True
