"""What every reader is to the comparison: bytes of a mail in, the files and texts that it shows out."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

TIMEOUT_S = 20.0  # for one mail; the readers need milliseconds
NESTING = 3  # how often an enclosed mail is opened, if the reader shows it as a file
MAX_OBJECTS = 2000
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-" + b"STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


class Missing(Exception):
    """The reader is not installed; the text says what would install it."""


class Hung(Exception):
    """The reader did not answer in time or ended."""


@dataclass(frozen=True, slots=True)
class Found:
    """One file or text that a reader shows."""

    content: bytes
    name: str = ""
    kind: str = ""  # the media type, as far as the reader says


class Reader:
    """One program. `read` may be called from one thread at a time."""

    name = ""
    honest: ClassVar[dict[str, str]] = {}  # choices of the grammar that make a mail in which this reader finds the file

    def __init__(self) -> None:
        """Raises Missing."""

    def read(self, mail: bytes) -> list[Found]:
        """Everything the reader shows, including what is in enclosed mails that it shows as files."""
        found = self.read_one(mail)
        todo = [(item, 1) for item in found]
        while todo and len(found) < MAX_OBJECTS:
            item, depth = todo.pop()
            if depth <= NESTING and _is_mail(item):
                inner = self.read_one(item.content)
                found += inner
                todo += [(one, depth + 1) for one in inner if one.content != item.content]
        return found

    def read_one(self, mail: bytes) -> list[Found]:
        raise NotImplementedError

    def close(self) -> None:
        pass


def _is_mail(item: Found) -> bool:
    return item.kind in ("message/rfc822", "message/global") or item.name.lower().endswith(".eml")


def find_program(name: str, package: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin/mh")
    if found is None:
        raise Missing(f"{name} not installed (Debian: {package})")
    return found


def new_directory() -> Path:
    """A directory for one reader; removed at the exit at the latest."""
    home = tempfile.mkdtemp(prefix="mime-reader-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return Path(home)


def end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
