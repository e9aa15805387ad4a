"""The log throttle: a burst of log lines of one kind, then one line per second with a count of the others.

Strangers can cause some lines (refused connections, broken handshakes); these must not fill a disk or hide
what matters. A kind is a place in the code, so the number of kinds is bounded. The line of each mail is not
throttled: only trusted mail servers cause it, and operators search for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST = 20
PER_SECOND = 1.0


@dataclass(slots=True)
class _Kind:
    """A token bucket, and the lines it suppressed since the last one it let through."""

    tokens: float
    updated_at: float
    suppressed: int = 0
    last_suppressed: logging.LogRecord | None = None

    def take_token(self, now: float) -> bool:
        self.tokens = min(self.tokens + (now - self.updated_at) * PER_SECOND, BURST)
        self.updated_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def suppress(self, record: logging.LogRecord) -> None:
        self.suppressed += 1
        self.last_suppressed = record

    def report_in(self, record: logging.LogRecord, others: int) -> None:
        """Add the number of suppressed lines to a line that is written."""
        if others:
            record.msg = f"{record.msg} (and {others} more like it)"
        self.suppressed, self.last_suppressed = 0, None


class LogThrottle(logging.Filter):
    """A filter for a handler. `on_suppressed` is called for each line that is suppressed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.on_suppressed: Callable[[], None] = lambda: None
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        with self._lock:
            kind = self._kinds.setdefault((record.pathname, record.lineno), _Kind(BURST, now))
            if not kind.take_token(now):
                kind.suppress(record)
                self.on_suppressed()
                return False
            kind.report_in(record, kind.suppressed)
        return True

    def summaries(self) -> list[logging.LogRecord]:
        """The last suppressed line of each burst that is over, with the count of the others."""
        now, records = self._clock(), []
        with self._lock:
            for kind in self._kinds.values():
                if (record := kind.last_suppressed) is not None and kind.take_token(now):
                    kind.report_in(record, kind.suppressed - 1)
                    records.append(record)
        return records
