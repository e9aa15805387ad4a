"""How much room the quarantine has left, when there is a limit.

Over the limit a mail is refused for now (452); nothing that was promised is ever removed for it.
Other processes keep and remove mail too, so the files are counted anew now and then, and always
before a mail is refused.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.errors import StoreFull

RECOUNT_S = 60.0
_RECOUNT_WHEN_FULL_S = 1.0  # refusals may come by the hundred


class Space:
    """Bytes of all files, and those of mail that is being written."""

    def __init__(self, directory: Path, limit: int | None) -> None:
        self._directory = directory
        self._limit = limit
        self._lock = threading.Lock()
        self._counted = 0
        self._counted_at = -RECOUNT_S
        self._pending = 0

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Room for `size` bytes, used up if the block succeeds. Raises StoreFull."""
        if self._limit is None:
            yield
            return
        with self._lock:
            self._make_sure(size, self._limit)
            self._pending += size
        kept = 0
        try:
            yield
            kept = size
        finally:
            with self._lock:
                self._pending -= size
                self._counted += kept

    def recount(self) -> None:
        """Mail was removed: count when next asked."""
        self._counted_at = -RECOUNT_S

    def _make_sure(self, size: int, limit: int) -> None:
        age = time.monotonic() - self._counted_at
        full = self._counted + self._pending + size > limit
        if age >= RECOUNT_S or (full and age >= _RECOUNT_WHEN_FULL_S):
            self._counted, self._counted_at = _count(self._directory), time.monotonic()
            full = self._counted + self._pending + size > limit
        if full:
            raise StoreFull(f"quarantine: {self._counted} bytes are kept, and the limit is {limit}")


def _count(directory: Path) -> int:
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith("."):  # being written: pending, here or elsewhere
                try:
                    total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:  # removed meanwhile
                    pass
    return total
