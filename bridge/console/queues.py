"""Work that takes much memory or time: a little of each kind runs at once, and a few wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anyio import CapacityLimiter

from bridge.console.checks import Refused


@dataclass(slots=True)
class Queue:
    """For work of one kind, of which only a little may run at once."""

    limiter: CapacityLimiter
    max_waiting: int  # with those that run
    waiting: int = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Raises Refused if many wait already."""
        if self.waiting >= self.max_waiting:
            raise Refused(503, "Busy", "Many people ask for this at the same moment. Try again.", 5)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


class Queues:
    def __init__(self) -> None:
        # Each takes 64 MiB and a tenth of a second: a flood of them must take neither from those who have signed in.
        self.passwords = Queue(CapacityLimiter(2), max_waiting=10)
        self.links = Queue(CapacityLimiter(2), max_waiting=20)  # they work while passwords are being tried out
        self.readers = Queue(CapacityLimiter(2), max_waiting=100)  # a large mail takes three times its size
        self.scans = Queue(CapacityLimiter(2), max_waiting=20)
        self.list_files = Queue(CapacityLimiter(1), max_waiting=5)  # that are read
