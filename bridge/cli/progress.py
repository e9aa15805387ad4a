"""Progress of a long command: a bar with rate and remaining time on a terminal, plain lines in a log.

All of it goes to standard error, so that standard output has results only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bridge.cli.terminal import say

LINE_EVERY_S = 5.0


@contextmanager
def meter(
    label: str, total: int | None, *, hidden: bool = False, what: str = "entries"
) -> Iterator[Callable[[int], None]]:
    """Yields a function to be called with the number of entries (or of `what`) that were just processed."""
    if hidden or total == 0:
        yield lambda count: None
    elif sys.stderr.isatty():
        from bridge.cli.progress_bar import bar  # imports rich

        with bar(label, total, shown_rate) as advance:
            yield advance
    else:
        yield PlainMeter(label, total, what=what)


class PlainMeter:
    """Prints a line at most every five seconds; a shorter command prints none."""

    def __init__(
        self, label: str, total: int | None, clock: Callable[[], float] = time.monotonic, what: str = "entries"
    ) -> None:
        self._label, self._total, self._clock, self._what = label, total, clock, what
        self._done = 0
        self._began = self._said = clock()

    def __call__(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now - self._said >= LINE_EVERY_S:
            self._said = now
            say(self.line(now), err=True)

    def line(self, now: float) -> str:
        rate = self._done / max(now - self._began, 1e-9)
        if self._total is None:
            return f"{self._label}: {self._done:,} {self._what} ({shown_rate(rate)})"
        left = (self._total - self._done) / max(rate, 1e-9)
        done = f"{self._label}: {self._done:,} of {self._total:,} {self._what}"
        return f"{done} ({shown_rate(rate)}, {left:,.0f} s left)"


def shown_rate(per_second: float) -> str:
    """A scan may take several seconds, while 10,000 list entries take one."""
    return f"{per_second:,.0f}/s" if per_second >= 10 or per_second == int(per_second) else f"{per_second:.1f}/s"
