"""A file that an operator names on the command line. It may be in a directory of another user, who may plant links."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TextIO

from bridge.runtime import root_as_owner

_OWN = {"/dev/stdout": 1, "/dev/stderr": 2}
_DEVICES = Path("/dev")
_OWN_DIRECTORIES = ("/dev/fd", "/proc/self/fd")


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write the whole file or nothing. A link in its place is replaced, not followed. Raises OSError."""
    with root_as_owner.as_operator():
        if (fd := stream(path)) is not None:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
            return
        unfinished = beside(path, mode)
        try:
            with emptied(unfinished) as file:
                file.write(text)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink()
            raise


def stream(path: Path) -> int | None:
    """A pipe, a device, or something that is open already (`/dev/stdout`), opened for writing. Raises OSError."""
    if (own := _own(path)) is not None:  # opened again, a file would be written from its beginning
        return os.dup(own)
    if path.parent == _DEVICES:
        return _checked(os.open(path, os.O_WRONLY), path)
    if not os.path.lexists(path) or stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISLNK(mode):
        return None
    # Something else may be there by now, or nobody reads the pipe: neither is followed or waited for.
    fd = _checked(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK), path)
    os.set_blocking(fd, True)
    return fd


def _checked(fd: int, path: Path) -> int:
    """Refuse a disk: writing to it would overwrite its first blocks. Raises OSError."""
    if not (stat.S_ISFIFO(mode := os.fstat(fd).st_mode) or stat.S_ISCHR(mode)):
        os.close(fd)
        raise FileExistsError(errno.EEXIST, "neither a file nor a pipe", str(path))
    return fd


def _own(path: Path) -> int | None:
    if str(path.parent) in _OWN_DIRECTORIES and path.name.isdecimal():
        return int(path.name)
    return _OWN.get(str(path))


def beside(path: Path, mode: int) -> Path:
    """An empty file in the same directory, with a name that nobody can guess. Raises OSError."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    umask = os.umask(0o077)  # it cannot be read without being set
    os.umask(umask)
    try:
        os.fchmod(fd, mode & ~umask)
    finally:
        os.close(fd)
    return Path(name)


def emptied(path: Path) -> TextIO:
    """Opened for writing from its beginning, and not through a link. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    return os.fdopen(fd, "w", encoding="utf-8", newline="")
