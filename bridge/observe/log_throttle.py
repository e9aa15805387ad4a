"""What a flood of log lines may cost: of each kind a few at once, then one a second, and a count of the others.

Lines that strangers can cause (refused connections, broken handshakes) must not fill a disk or hide
what matters. A kind is a place in the code, so their number is bounded. The one line of each mail does not
come through here: only trusted mail servers cause it, and it is what an operator looks for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BURST = 20
PER_SECOND = 1.0


@dataclass(slots=True)
class _Kind:
    tokens: float
    at: float
    held: int = 0
    last: logging.LogRecord | None = None  # of those held back


class Flood(logging.Filter):
    """For a handler. `on_held` is called for each line that is held back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.on_held: Callable[[], None] = lambda: None
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        with self._lock:
            kind = self._kinds.setdefault((record.pathname, record.lineno), _Kind(BURST, now))
            if not _take(kind, now):
                kind.held += 1
                kind.last = record
                self.on_held()
                return False
            _say(record, kind)
        return True

    def leftovers(self) -> Iterator[logging.LogRecord]:
        """What is left to say of floods that are over: the last line of each, with the count."""
        now = self._clock()
        with self._lock:
            ready = [kind for kind in self._kinds.values() if kind.last is not None and _take(kind, now)]
            records = []
            for kind in ready:
                assert kind.last is not None
                record, kind.held = kind.last, kind.held - 1
                _say(record, kind)
                records.append(record)
        yield from records


def _take(kind: _Kind, now: float) -> bool:
    kind.tokens = min(kind.tokens + (now - kind.at) * PER_SECOND, BURST)
    kind.at = now
    if kind.tokens < 1:
        return False
    kind.tokens -= 1
    return True


def _say(record: logging.LogRecord, kind: _Kind) -> None:
    """This one is written; it speaks for those that were not."""
    if kind.held:
        record.msg, record.args = f"{record.getMessage()} (and {kind.held} more like it)", None
    kind.held, kind.last = 0, None
