"""Files that survive a power cut, written in a thread.

A 250 may depend on such a file, so every step is checked: write, fsync, rename, fsync the directory. If a step
fails, nothing is left behind.

A thread cannot be cancelled, and a disk or a database may hang for minutes. The client must still be answered, so
`in_thread` stops waiting soon after the deadline. By then the message is closed and the client was told 451, so the
work must undo what it did: as its last step, it calls `Stop.confirm`, which raises if the caller has given up.

The threads are our own (`threads`): a disk that hangs must not stop what others do in the event loop's threads.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from bridge.runtime import root_as_owner
from bridge.runtime.threads import Threads

T = TypeVar("T")

_POLL_S = 0.01
_GRACE_S = 1.0  # for work to notice that it is to stop
_MAX_LINKS = 10
_DATABASE_BLOCK = 4096  # SQLite, os_unix.c: unixShmMap
_DATABASE_ROOM = 4 * 1024 * 1024  # bytes: more than others write while a database is opened
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_threads = Threads("files")

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # no blocks or inodes, quota, ulimit


class Stopped(Exception):
    """The caller was cancelled, or the deadline passed."""


class Stop:
    """Tells work to stop. It is checked between two steps, and a last time by `confirm`."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._turn = threading.Lock()
        self._is_set = False
        self._is_confirmed = False

    def set(self) -> bool:
        """What the work does from now on does not count. Returns False if its result was already confirmed."""
        with self._turn:
            self._is_set = not self._is_confirmed
            return self._is_set

    def check(self) -> None:
        if self._is_set or time.monotonic() >= self._deadline:
            raise Stopped

    def confirm(self) -> None:
        """The last step: from now on the result counts. Raises Stopped if the caller has given up: undo everything."""
        with self._turn:
            if self._is_set:
                raise Stopped
            self._is_confirmed = True


class _Job(Stop, Generic[T]):
    """Work for a thread."""

    def __init__(self, work: Callable[[Stop], T], deadline: float) -> None:
        super().__init__(deadline)
        self._work: Callable[[Stop], T] | None = work
        self.is_running = False

    def run(self) -> T:
        """Called in the thread. Work that was stopped before it began never begins."""
        with self._turn:
            self.check()
            work, self._work = self._work, None
            assert work is not None
            self.is_running = True
        try:
            return work(self)
        finally:
            self.is_running = False

    def set(self) -> bool:
        is_set = super().set()
        self._work = None  # if all threads hang, thousands of jobs may wait for one: each keeps only what is needed
        return is_set


async def in_thread(work: Callable[[Stop], T], deadline: float, threads: Threads | None = None) -> T:
    """Run `work`. Raises Stopped past the deadline; OSError if there is no thread, or too much waits for one already.

    Work on another disk or database gets its own `threads`, so that it goes on while this one hangs.
    """
    job = _Job(work, deadline)
    try:
        running = (threads or _threads).run(job.run)
    except RuntimeError as exc:
        await _abandon(job)
        raise OSError(errno.EAGAIN, f"no thread available: {exc}") from exc
    limit_s = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0) + _GRACE_S
    try:
        await asyncio.wait([running], timeout=limit_s)
    except asyncio.CancelledError:
        await _leave(job, running)
        raise
    if not running.done() and job.set():
        running.add_done_callback(_retrieve)
        raise Stopped
    return await running


async def _leave(job: Stop, running: asyncio.Future[T]) -> None:
    """The caller is cancelled. Work that reads its message is usually quick to stop, and is waited for."""
    job.set()
    until = time.monotonic() + _GRACE_S
    while not running.done() and (left_s := until - time.monotonic()) > 0:
        try:
            await asyncio.wait([running], timeout=left_s)
        except asyncio.CancelledError:  # cancelled again; still waiting for the thread
            pass
    running.add_done_callback(_retrieve)


def _retrieve(running: asyncio.Future[T]) -> None:
    """So that asyncio does not log its error."""
    if not running.cancelled():
        running.exception()


async def _abandon(job: _Job[T]) -> None:
    """If no thread can be started, the work is in the pool's queue anyway, and a later thread would run it."""
    job.set()
    while job.is_running:  # noqa: ASYNC110 - a thread is running it, and this is very rare
        await asyncio.sleep(_POLL_S)


def make_directory(path: Path) -> None:
    """Create the directory with mode 0700, durably. Missing parents get 0755, whatever the umask allows."""
    if path.is_dir():
        return
    missing = [parent for parent in path.parents if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=0o755, exist_ok=True)
        sync_directory(parent.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)


def write(path: Path, chunks: Iterable[bytes], check: Callable[[], None]) -> None:
    """Write and fsync a new file. Raises OSError, or whatever `check` raises, after removing the file."""
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


def rename_new(temporary: Path, path: Path) -> None:
    """Give a file its name, but never that of another. Raises FileExistsError.

    `temporary` was created by `write`, and its name depends on that of `path` alone: until it is renamed, nobody else
    can have it, so nobody else can take `path` after the look.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    temporary.rename(path)


def open_own(path: Path, flags: int) -> int:
    """Open a file in one of our directories, or create it with mode 0600. Raises OSError.

    Root runs our commands in a directory that belongs to the service's user: they must not follow a link from there, or
    write to another user's file.
    """
    fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EPERM, "is not a regular file", str(path))
        # Ours, and not a second name of another file.
        is_ours = found.st_uid == root_as_owner.current_user() and found.st_nlink == 1
        is_planted = found.st_uid != path.parent.stat().st_uid or not _is_trusted(found, path)
        if not is_ours and is_planted:
            raise OSError(errno.EPERM, "belongs to another user", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private(path: Path) -> None:
    """Create a database file readable by us only. SQLite would use the umask, for the file and its journals.

    An existing file is not opened: closing it would release all locks that this process has on it (POSIX), and
    another process could then think it is the last one and remove the journal that we still write to.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_to_read(path: Path) -> int:
    """Open an existing file in one of our directories. Raises OSError.

    The service's user must not lead root to another file, such as by a link, or make it wait, such as by a FIFO. And it
    must not be a file that somebody else has put there for us.
    """
    return _ordinary(os.open(path, _TO_READ), path, of_anyone=False)


def read(path: Path, limit: int, *, of_anyone: bool = False) -> tuple[bytes, float]:
    """The content of such a file, and when it was written (Unix time). Raises OSError.

    `of_anyone`: it is not in one of our directories, so it may belong to another user.
    """
    with open(_ordinary(os.open(path, _TO_READ), path, of_anyone=of_anyone), "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_size > limit:
            raise OSError(errno.EFBIG, f"is larger than {limit} bytes", str(path))
        return file.read(limit), found.st_mtime


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def give_to_owner(path: Path) -> None:
    """Give a file that root created to the owner of its directory, so that the daemon can read it."""
    if root_as_owner.current_user() != 0:
        return
    owner = path.parent.stat()
    # Not by its name: the owner of the directory may have put another file there. And O_PATH, because closing any other
    # descriptor would release the locks of a database.
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.chown(f"/proc/self/fd/{fd}", owner.st_uid, owner.st_gid)
    finally:
        os.close(fd)


def refuse_planted(path: Path) -> None:
    """Raises OSError if this is no regular file, or if it is planted.

    A planted file is one that another user has put where we expect our own, so that we use its content, or follow it
    elsewhere if it is a link, or wait for it if it is a FIFO.
    In a directory in which only we and root can write, it stays as it is until it is opened.
    """
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid in (0, root_as_owner.current_user()):
            found = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EPERM, "is not a regular file", str(path))
    if not _is_trusted(found, path):
        raise OSError(errno.EPERM, "belongs to another user", str(path))


def refuse_full_database(path: Path) -> None:
    """Raises OSError if its file system is nearly full: SQLite then ends the process with SIGBUS.

    SQLite maps the index of its journal (`-shm`) into memory, and allocates only the end of each 4 KiB of it. Where the
    blocks of the file system are smaller (ext4 below 512 MB), a later write to this memory needs a block, and no error
    can be returned to it.
    """
    disk = os.statvfs(path.parent)
    # Not `f_bfree`: ext4 also keeps some blocks from root.
    if disk.f_bsize < _DATABASE_BLOCK and disk.f_bavail * disk.f_frsize < _DATABASE_ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def refuse_planted_database(path: Path) -> None:
    """The same for all files that SQLite opens together with this one."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        refuse_planted(path.with_name(path.name + suffix))


def others_who_write(directory: Path) -> str:
    """Who else could put files in one of our directories, in words; empty if nobody but root can. Raises OSError.

    A group may write if an administrator has set this up: the directory is root's, or we belong to the group.
    """
    found, user = directory.stat(), root_as_owner.current_user()
    if found.st_uid not in (0, user):
        return f"belongs to another user ({found.st_uid})"
    if found.st_mode & stat.S_IWOTH:
        return "is writable by every user"
    is_ours = found.st_gid in root_as_owner.current_groups() or found.st_uid != user
    return "is writable by another group" if found.st_mode & stat.S_IWGRP and not is_ours else ""


def _is_trusted(found: os.stat_result, path: Path) -> bool:
    """Ours or root's; for root, also the directory owner's, whose rights a command run by root takes on."""
    user = root_as_owner.current_user()
    return found.st_uid in (0, user) or (user == 0 and found.st_uid == path.parent.stat().st_uid)


def open_to_append(path: Path, mode: int) -> int:
    """Open a file that grows, or create it. Never waits for a FIFO. Raises OSError.

    As root, it follows only links that root has made: the owner of the directory may put one there at any moment, even
    between a look at the file and opening it.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    if root_as_owner.current_user() != 0:
        return os.open(path, flags, mode)
    path = _end_of_links(path)
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW, mode)
    except OSError as exc:
        if exc.errno != errno.ELOOP:
            raise
        raise OSError(errno.EPERM, "is not a regular file", str(path)) from exc
    return _ordinary(fd, path, of_anyone=True)


def _end_of_links(path: Path) -> Path:
    """Where root's links lead. Anybody else's link is left for O_NOFOLLOW to refuse."""
    for _ in range(_MAX_LINKS):
        try:
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return path
        try:
            found = os.fstat(fd)
            if not stat.S_ISLNK(found.st_mode) or found.st_uid != 0:
                return path
            path = path.parent / os.readlink("", dir_fd=fd)
        finally:
            os.close(fd)
    return path


def _ordinary(fd: int, path: Path, *, of_anyone: bool) -> int:
    """The descriptor, if its file is an ordinary one; otherwise it is closed. Raises OSError."""
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EPERM, "is not a regular file", str(path))
        if found.st_nlink > 1 and found.st_uid != path.parent.stat().st_uid:  # a second name of another user's file
            raise OSError(errno.EPERM, "belongs to another user", str(path))
        if not of_anyone and not _is_trusted(found, path):
            raise OSError(errno.EPERM, "belongs to another user", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove(path: Path) -> None:
    """Remove a file if it exists. Never raises: this runs while another error is being handled."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass
