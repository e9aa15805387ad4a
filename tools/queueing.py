"""A small simulation of queueing: one core of a bridge, and a scanner with some slots.

`tools.simulate` uses it. Service times are constants or drawn by the caller; it knows nothing of kernels, garbage
collection or other programs, so that its slowest percent is faster than that of a real machine.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count


class Clock:
    """Runs what is to happen in the order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), do))

    def run(self) -> None:
        while self._events:
            self.now, _, do = heapq.heappop(self._events)
            do()


class Station:
    """Some servers, each of which does one thing at a time; everything else waits in line."""

    def __init__(self, clock: Clock, servers: int) -> None:
        self._clock, self._free = clock, servers
        self._line: deque[tuple[float, Callable[[], None]]] = deque()

    def serve(self, seconds: float, then: Callable[[], None]) -> None:
        self._line.append((seconds, then))
        self._next()

    def _next(self) -> None:
        if self._free and self._line:
            self._free -= 1
            seconds, then = self._line.popleft()
            self._clock.after(seconds, lambda: self._done(then))

    def _done(self, then: Callable[[], None]) -> None:
        self._free += 1
        self._next()
        then()


@dataclass
class Cell:
    """One core of a bridge, and a scanner; mails above the limit are refused."""

    mail_s: float  # CPU time of the bridge
    scans: Iterator[float]  # seconds
    slots: int  # scans at a time
    limit: float = math.inf  # mails in processing
    refusal_s: float = 0.0  # CPU time of the bridge
    before: float = 0.9
    waits: list[float] = field(default_factory=list)  # of accepted mails
    refused: int = 0
    most: int = 0  # mails in processing at once

    def __post_init__(self) -> None:
        self.clock = Clock()
        self._bridge, self._scanner, self._inside = Station(self.clock, 1), Station(self.clock, self.slots), 0

    def mail(self, then: Callable[[], None] = lambda: None) -> None:
        if self._inside >= self.limit:
            self.refused += 1
            self._bridge.serve(self.refusal_s, then)
            return
        self._inside += 1
        self.most = max(self.most, self._inside)
        began = self.clock.now

        def end() -> None:
            self._inside -= 1
            self.waits.append(self.clock.now - began)
            then()

        def answer() -> None:
            self._bridge.serve(self.mail_s * (1 - self.before), end)

        self._bridge.serve(self.mail_s * self.before, lambda: self._scanner.serve(next(self.scans), answer))

    def open_loop(self, gaps: Iterable[float], seconds: float) -> Cell:
        """Mails arrive after these gaps, whether or not the last one has been answered."""
        left = iter(gaps)

        def arrive() -> None:
            if self.clock.now < seconds:
                self.mail()
                self.clock.after(next(left), arrive)

        arrive()
        self.clock.run()
        return self

    def closed_loop(self, sessions: int, mails: int) -> Cell:
        """Each session sends its next mail when the last one has been answered."""
        left = iter(range(mails))

        def send() -> None:
            if next(left, None) is not None:
                self.mail(send)

        for _ in range(sessions):
            send()
        self.clock.run()
        return self

    def percentile_ms(self, share: float) -> float:
        return 1000 * sorted(self.waits)[int(share * (len(self.waits) - 1))]
