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

    def add(self, connection: TimedConnection) -> None:
        self._open.add(connection)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_later(self._interval_s, self._tick)

    def discard(self, connection: TimedConnection) -> None:
        self._open.discard(connection)

    def _tick(self) -> None:
        self._is_scheduled = bool(self._open)
        if self._is_scheduled:
            self._loop.call_later(self._interval_s, self._tick)
        for connection in tuple(self._open):
            connection.check_deadlines()
