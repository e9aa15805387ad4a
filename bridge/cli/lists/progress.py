"""Progress of a long command: a bar with rate and remaining time on a terminal, plain lines in a log.

All of it goes to standard error, so that standard output has results only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from bridge.cli.terminal import console, say
from bridge.runtime.visible_text import visible

LINE_EVERY_S = 5.0


@contextmanager
def meter(
    label: str, total: int | None, *, hidden: bool = False, what: str = "entries"
) -> Iterator[Callable[[int], None]]:
    """Yields a function to be called with the number of entries, or `what` is counted, just processed."""
    if hidden or total == 0:
        yield lambda count: None
    elif sys.stderr.isatty():
        with _bar(label, total) as advance:
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
            return f"{self._label}: {self._done:,} {self._what} ({rate:,.0f}/s)"
        left = (self._total - self._done) / max(rate, 1e-9)
        return f"{self._label}: {self._done:,} of {self._total:,} {self._what} ({rate:,.0f}/s, {left:,.0f} s left)"


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Count(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task(visible(label), total=total)
        yield lambda count: progress.advance(task, count)


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        of = f" of {task.total:,.0f}" if task.total is not None else ""
        return Text(f"{task.completed:,.0f}{of}")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")
