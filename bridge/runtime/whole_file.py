"""Files that a configuration names and that are read as a whole: the configuration itself, secrets, certificates.

A name may lead to what never ends (`/dev/zero`), to what never begins (a FIFO without a writer), or to more than the
memory holds. A program that reads these hangs without a word, in front of all mail. So there is a limit to the size,
and to the time without data. Pipes are read: a shell gives one for `<(command)`.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

_LIMIT = 64 * 1024 * 1024  # bytes: many times the largest list of certificates, or the rules of a large site
_SILENT_S = 5  # less than a watchdog waits
_BLOCK = 1024 * 1024


def read_bytes(path: Path, silent_s: float = _SILENT_S) -> bytes:
    """Raises OSError, whose `strerror` says what is wrong with the file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        is_file = stat.S_ISREG(found.st_mode)
        pieces: list[bytes] = []
        size = found.st_size
        while size <= _LIMIT:
            if not is_file:
                _wait(fd, path, silent_s)
            piece = os.read(fd, _BLOCK)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size = max(size, sum(map(len, pieces)))
    finally:
        os.close(fd)
    raise _too_large(path)


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """With the line ends that Python's own text files have. Raises OSError and UnicodeDecodeError."""
    return read_bytes(path).decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def refuse_endless(path: Path | str) -> None:
    """For a file that a library reads next. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if found.st_size > _LIMIT:
        raise _too_large(path)


def _too_large(path: Path | str) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {_LIMIT // 1024**2} MiB", str(path))


def _wait(fd: int, path: Path, silent_s: float) -> None:
    """For data, or for the end of a pipe that somebody has written to."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(1000 * silent_s):
        raise OSError(errno.ETIMEDOUT, f"it is a pipe or a device, and gave nothing for {silent_s:g} s", str(path))
