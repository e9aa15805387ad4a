"""A file that an operator names on the command line. It may be in a directory of another user, who plants links."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TextIO

from bridge.runtime import root_as_owner

_OWN = {"/dev/stdout": 1, "/dev/stderr": 2}


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Complete or not at all; a link at this place is replaced, not followed. Raises OSError."""
    with root_as_owner.as_operator():
        if _is_stream(path):
            own = _OWN.get(str(path))  # opened again, a file would be written from its beginning
            fd = os.open(path, os.O_WRONLY) if own is None else os.dup(own)
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


def _is_stream(path: Path) -> bool:
    """Whether it is /dev/stdout or the like, which may lead to a file, or itself a pipe or a device."""
    if str(path.parent) in ("/dev", "/dev/fd", "/proc/self/fd"):
        return True
    return os.path.lexists(path) and not (stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISLNK(mode))


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
