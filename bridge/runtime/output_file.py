"""A file that an operator names on the command line. It may be in a directory of another user, who plants links."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TextIO

from bridge.runtime import root_as_owner


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Complete or not at all; a link at this place is replaced, not followed. Raises OSError."""
    with root_as_owner.as_operator():
        if path.exists() and not path.is_file():  # /dev/stdout
            with os.fdopen(os.open(path, os.O_WRONLY), "w", encoding="utf-8") as file:
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


def beside(path: Path, mode: int) -> Path:
    """An empty file in the same directory, with a name that nobody can guess. Raises OSError."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
    return Path(name)


def emptied(path: Path) -> TextIO:
    """Opened for writing from its beginning, and not through a link. Raises OSError."""
    opener = lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)  # noqa: E731
    return open(path, "w", encoding="utf-8", newline="", opener=opener)
