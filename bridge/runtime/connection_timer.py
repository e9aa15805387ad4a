"""One timer that looks at all connections of a listener.

A timer for each connection would cost as much as refusing it does, so a single timer visits all of
them at a fixed interval, and each connection compares the clock with its own deadlines. A connection
that fails to do so is closed, and the others are visited anyway. Knows nothing of any protocol.
If this is wrong, silent clients stay connected forever.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger(__name__)


class TimedConnection(Protocol):
    def check_deadlines(self) -> None:
        """Close the connection if one of its deadlines has passed."""

    def cut(self) -> None:
        """Close the connection now, whatever is under way."""


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
            try:
                connection.check_deadlines()
            except Exception:  # must not affect the other connections
                self._give_up(connection)

    def _give_up(self, connection: TimedConnection) -> None:
        """Close a connection whose state is unknown; it would fail again at every tick."""
        log.exception("connection: its deadlines cannot be checked; closing it")
        self._open.discard(connection)
        try:
            connection.cut()
        except Exception:
            log.exception("connection: cannot be closed")

    def _schedule(self) -> None:
        self.next_tick_at = self._loop.time() + self._interval_s
        self._loop.call_at(self.next_tick_at, self._tick)
