"""How much room the quarantine has left, when there is a limit.

Over the limit a mail is refused for now (452); nothing that was promised is ever removed for it.
Other processes keep and remove mail too, so the store is counted anew now and then, and always
before a mail is refused. Counting blocks: all of this belongs in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bridge.errors import StoreFull

_RECOUNT_WHEN_FULL_S = 1.0  # refusals may come by the hundred


class Space:
    """Bytes of everything kept, and those of mail that is being written."""

    def __init__(self, count: Callable[[], int], limit: int | None, recount_s: float) -> None:
        self._count = count
        self._limit = limit
        self._recount_s = recount_s
        self._lock = threading.Lock()
        self._counted = 0
        self._counted_at = -recount_s
        self._pending = 0

    @property
    def is_limited(self) -> bool:
        return self._limit is not None

    def take(self, size: int) -> None:
        """Room for `size` bytes, until `settle`. Raises StoreFull, and what counting raises."""
        if self._limit is None:
            return
        with self._lock:
            self._make_sure(size, self._limit)
            self._pending += size

    def settle(self, size: int, *, used: bool) -> None:
        """The room that was taken is used up, or free again."""
        if self._limit is None:
            return
        with self._lock:
            self._pending -= size
            self._counted += size if used else 0

    def recount(self) -> None:
        """Mail was removed: count when next asked."""
        self._counted_at = -self._recount_s

    def _make_sure(self, size: int, limit: int) -> None:
        age = time.monotonic() - self._counted_at
        full = self._counted + self._pending + size > limit
        if age >= self._recount_s or (full and age >= _RECOUNT_WHEN_FULL_S):
            self._counted, self._counted_at = self._count(), time.monotonic()
            full = self._counted + self._pending + size > limit
        if full:
            raise StoreFull(f"quarantine: {self._counted} bytes are kept, and the limit is {limit}")
