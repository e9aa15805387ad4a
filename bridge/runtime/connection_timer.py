"""One timer that looks at all connections of a listener.

A timer for each connection would cost as much as refusing it does, so a single timer visits all of
them at a fixed interval, and each connection compares the clock with its own deadlines. Knows
nothing of any protocol. If this is wrong, silent clients stay connected forever.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class TimedConnection(Protocol):
    def check_deadlines(self) -> None:
        """Close the connection if one of its deadlines has passed."""


class ConnectionTimer:
    """Calls `check_deadlines` on every open connection each `interval_s`; idle while none is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._open: set[TimedConnection] = set()
        self._is_scheduled = False
        self.next_tick_at = 0.0  # on the event loop's clock

    def add(self, connection: TimedConnection) -> None:
        self._open.add(connection)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule()

    def discard(self, connection: TimedConnection) -> None:
        self._open.discard(connection)

    def _tick(self) -> None:
        self._is_scheduled = bool(self._open)
        if self._is_scheduled:
            self._schedule()
        for connection in tuple(self._open):
            connection.check_deadlines()

    def _schedule(self) -> None:
        self.next_tick_at = self._loop.time() + self._interval_s
        self._loop.call_at(self.next_tick_at, self._tick)
