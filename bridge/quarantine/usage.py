"""What lies in the quarantine: how much, since when, and how much room its disk has.

Counting touches every file, so it is done in a thread, now and then; whoever is asked meanwhile tells
what was counted last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stock:
    mails: int
    size_bytes: int
    oldest_at: float | None  # Unix time; None when it is empty
    disk_free_bytes: int | None = None  # None: it is on no disk of ours
    disk_size_bytes: int | None = None


def take_stock(directory: Path) -> Stock:
    """Raises OSError."""
    mails, size, oldest = 0, 0, None
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):  # not whole yet
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # released or purged meanwhile
                continue
            size += found.st_size
            if entry.name.endswith(".json"):
                mails += 1
                oldest = found.st_mtime if oldest is None else min(oldest, found.st_mtime)
    disk = os.statvfs(directory)
    return Stock(mails, size, oldest, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)
