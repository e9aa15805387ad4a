"""Two daemons with one state directory: usually a mistake, so the second one says so in its log.

Both work, because what they share is locked, but each shows the other's mail and counts it in its own limits. The lock
ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bridge.runtime import durable_files

log = logging.getLogger(__name__)

NAME = "daemon.lock"


@contextmanager
def in_use(state: Path) -> Iterator[None]:
    """The file contains our process id. A daemon that cannot write it works without."""
    lock = -1
    try:
        with suppress(OSError):
            lock = durable_files.open_own(state / NAME, os.O_RDWR)
            _claim(lock, state)
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def _claim(lock: int, state: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(lock, 20, 0).decode("ascii", "replace") or "unknown"
        log.warning(
            "state_directory: %s is in use by another daemon (process %s); "
            "stop that daemon, or give each one its own state_directory",
            state,
            other,
        )
        return
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
