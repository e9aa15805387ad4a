"""The file of a mail that is too large for memory. It has no name, so a crash leaves nothing behind.

`DirectFile` is written by its caller. The bridge uses `QueuedFile`, which the threads of a `SpoolDisk` write. What they
have not written yet stays in memory and is read from there: no mail waits for the disk.

A mail is accepted only if its file could be written (`is_kept`), unless the disk hangs.

What was written is read from the page cache, even by the event loop. On some file systems (XFS, NFS), a read waits for
a thread's write, so nothing reads a mail before `is_kept` has returned. While the disk hangs, only what is in the page
cache is read, and a mail with missing parts is deferred. If this is wrong, one disk stops all mail, or a mail has a
gap.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bridge.mail.spool import BLOCK, SpoolDisk, write_all

_SMALL = 4096
_TOO_SLOW = "the spool's disk cannot keep up"


class SpoolFile(Protocol):
    """A file that grows until it is closed."""

    @property
    def descriptor(self) -> int | None:
        """The open file, if it contains everything."""

    def write(self, chunk: bytes) -> None:
        """Append. Raises OSError."""

    def read(self, offset: int) -> Iterator[bytes]:
        """The content from here on, in blocks. Raises OSError."""

    async def is_kept(self) -> bool:
        """Whether it could be written, as soon as that is known. A disk that hangs is not waited for.

        Await it before anything is read.
        """

    def expect(self, *, more: bool) -> None:
        """Whether a block may arrive at any moment; not if the client is stopped. Initially, one may."""

    def close(self) -> None: ...


class DirectFile:
    """Writing to it waits for the disk."""

    __slots__ = ("descriptor",)

    def __init__(self, directory: str | None) -> None:
        self.descriptor: int | None = open_unlinked(directory)

    def write(self, chunk: bytes) -> None:
        write_all(self._open(), chunk)

    def read(self, offset: int) -> Iterator[bytes]:
        while block := os.pread(self._open(), BLOCK, offset):
            offset += len(block)
            yield block

    def _open(self) -> int:
        if self.descriptor is None:
            raise OSError(errno.EBADF, "the mail is closed")
        return self.descriptor

    async def is_kept(self) -> bool:
        return True

    def expect(self, *, more: bool) -> None:
        """Does nothing: no block waits in memory."""

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class QueuedFile:
    """Written by a thread. What is not written yet is read from memory."""

    __slots__ = ("_directory", "_disk", "_error", "_fd", "_grows", "_is_closed", "_is_in_memory", "_unwritten",
                 "_written")  # fmt: skip

    def __init__(self, disk: SpoolDisk, directory: str | None) -> None:
        self._disk = disk
        self._grows = True
        with disk.lock:
            disk.growing += 1
        self._directory = directory
        self._fd: int | None = None  # opened by the thread
        self._is_in_memory = False  # whether the file system is, so that it does not hang
        self._written = 0
        self._unwritten: list[bytes] = []
        self._error: OSError | None = None
        self._is_closed = False

    @property
    def descriptor(self) -> int | None:
        with self._disk.lock:
            return None if self._unwritten or self._is_closed else self._fd

    def write(self, chunk: bytes) -> None:
        """Returns at once. Raises the OSError of an earlier block, or an OSError if too much is unwritten."""
        disk = self._disk
        with disk.lock:
            if self._error is not None:
                raise OSError(self._error.errno, self._error.strerror)
            if disk.unwritten + len(chunk) > disk.limits.max_unwritten:
                raise OSError(errno.EAGAIN, _TOO_SLOW)
            disk.unwritten += len(chunk)
            waiting = self._unwritten
            if len(waiting) > 1 and len(waiting[-1]) < _SMALL and len(chunk) < _SMALL:  # the first may be in hand
                waiting[-1] += chunk
            else:
                waiting.append(chunk)
            disk.put(self)

    def read(self, offset: int) -> Iterator[bytes]:
        with self._disk.lock:  # from now on, bytes only move from memory to the file
            written, rest = self._written, tuple(self._unwritten)
        while offset < written:
            block = self._read_block(min(BLOCK, written - offset), offset)
            offset += len(block)
            yield block
        offset -= written
        for chunk in rest:
            if offset < len(chunk):
                yield chunk[offset:] if offset else chunk
            offset = max(offset - len(chunk), 0)

    def _read_block(self, count: int, offset: int) -> bytes:
        if self._fd is None or self._is_closed:
            raise OSError(errno.EBADF, "the mail is closed")
        may_hang = not self._is_in_memory and self._disk.hangs_s()
        block = _read_cached(self._fd, count, offset) if may_hang else os.pread(self._fd, count, offset)
        if not block:
            raise OSError(errno.EIO, "the spool file is shorter than the mail")
        return block

    def expect(self, *, more: bool) -> None:
        with self._disk.lock:
            self._set_growing(more and not self._is_closed)

    def _set_growing(self, grows: bool) -> None:
        """Called with the lock."""
        self._disk.growing += grows - self._grows
        self._grows = grows

    async def is_kept(self) -> bool:
        self.expect(more=False)
        until, pause_s = time.monotonic() + self._disk.limits.max_wait_s, 0.0
        while self._unwritten and self._error is None and not self._disk.hangs_s():
            if time.monotonic() >= until:
                self._error = OSError(errno.EAGAIN, _TOO_SLOW)  # no thread begins another block
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s + 0.0005, 0.02)
        return self._error is None

    def close(self) -> None:
        """Returns at once; a thread closes the file."""
        disk = self._disk
        with disk.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._set_growing(False)
            disk.unwritten -= sum(map(len, self._unwritten))
            self._unwritten = []
            if self._fd is not None:
                disk.put(self)
            else:
                disk.take_out(self)

    # In a thread.

    @property
    def has_work(self) -> bool:
        """Called with the lock."""
        if self._is_closed:
            return self._fd is not None
        return bool(self._unwritten) and self._error is None

    def work(self) -> None:
        """One step: write a block, or close the file."""
        disk = self._disk
        with disk.lock:
            if not self.has_work:
                return
            is_closed = self._is_closed
            chunk = b"" if is_closed else self._unwritten[0]
        try:
            if is_closed:
                self._close()
                return
            if self._fd is None:
                self._fd = open_unlinked(self._directory)
                self._is_in_memory = _is_on(self._fd, disk.limits.in_memory)
            disk.write(self._fd, chunk)
        except OSError as exc:
            self._error = exc
            return
        except MemoryError:
            self._error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            return
        with disk.lock:
            if not self._is_closed:  # otherwise `close` has already counted the block as gone
                del self._unwritten[0]
                self._written += len(chunk)
                disk.unwritten -= len(chunk)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def open_unlinked(directory: str | None) -> int:
    try:
        return os.open(directory or tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system supports O_TMPFILE
        fd, path = tempfile.mkstemp(dir=directory)
        os.unlink(path)
        return fd


def _is_on(fd: int, file_systems: frozenset[str]) -> bool:
    """Whether it is on one of these. Call it in a thread: a file system that hangs may not answer this either."""
    device = os.fstat(fd).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.split()[2] == number and line.partition(" - ")[2].split()[0] in file_systems for line in mounts)


def _read_cached(fd: int, count: int, offset: int) -> bytes:
    """Only what is in the page cache: the rest would have to come from a disk that hangs. Raises OSError.

    NFS and C libraries without preadv2 cannot read this way.
    """
    buffer = bytearray(count)
    flag = getattr(os, "RWF_NOWAIT", None)
    try:
        if flag is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        got = os.preadv(fd, [buffer], offset, flag)
    except OSError as exc:
        raise OSError(errno.EIO, "the disk that holds the spool is not responding") from exc
    return bytes(buffer[:got])
