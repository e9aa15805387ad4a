"""Files that are still there after a power cut, written in a thread.

A 250 may rest on such a file, so each step is checked: written, fsynced, renamed, the directory
fsynced; and when one fails nothing is left behind.

A thread cannot be cancelled, and the message it reads is closed as soon as its caller has ended.
`in_thread` therefore tells the work to stop and waits until it has: a thread that read on from a
closed message would find it short, and keep half a mail.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.01

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # no blocks or inodes, quota, ulimit


class Stopped(Exception):
    """The caller does not want it any more."""


class Stop:
    """Asked between two steps: go on? Not once the file has its final name."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._event = threading.Event()
        self._beginning = threading.Lock()
        self.has_begun = False
        self.is_running = False

    def set(self) -> None:
        with self._beginning:
            self._event.set()

    def check(self) -> None:
        if self._event.is_set() or time.monotonic() >= self._deadline:
            raise Stopped

    def run(self, work: Callable[[Stop], T]) -> T:
        """The thread's side. Work that was told to stop before it began never begins."""
        with self._beginning:
            self.check()
            self.has_begun = self.is_running = True
        try:
            return work(self)
        finally:
            self.is_running = False


async def in_thread(work: Callable[[Stop], T], deadline: float) -> T:
    """Run `work`; end only when it has ended. Raises Stopped past the deadline, OSError when there is no thread."""
    stop = Stop(deadline)
    job = asyncio.ensure_future(asyncio.to_thread(stop.run, work))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        stop.set()
        while not job.done():
            try:
                await asyncio.wait([job])
            except asyncio.CancelledError:  # told again; the thread is what it waits for
                pass
        if not job.cancelled():
            job.exception()  # seen: the caller hears of the cancellation alone
        raise
    except RuntimeError as exc:
        if stop.has_begun and not stop.is_running:
            raise  # the work's own
        await _abandon(stop)
        raise OSError(errno.EAGAIN, f"no thread for it: {exc}") from exc


async def _abandon(stop: Stop) -> None:
    """Where no thread can be started, the work is in the pool's queue all the same: the next thread would find it."""
    stop.set()
    while stop.is_running:  # noqa: ASYNC110 - a thread has it, and this hardly ever happens
        await asyncio.sleep(_POLL_S)


def make_directory(path: Path) -> None:
    """The directory, for us alone, and known to its parent for good."""
    if path.is_dir():
        return
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    sync_directory(path.parent)


def write(path: Path, chunks: Iterable[bytes], check: Callable[[], None]) -> None:
    """A new file, fsynced. Raises OSError, or whatever `check` raises; then there is no file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            for chunk in chunks:
                check()
                view = memoryview(chunk)
                while view:
                    view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        remove(path)
        raise


def sync_directory(path: Path) -> None:
    """Make the names in it last."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def give_to_owner(path: Path) -> None:
    """A file that root made belongs to whom its directory belongs to: the daemon must be able to read it."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def remove(path: Path) -> None:
    """Remove a file if it is there. Never raises: this runs while another error is on its way."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass
