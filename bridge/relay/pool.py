"""Connections to one next hop, kept for the next mail.

A slot is the right to hold one connection; there are `max_connections` of them. A connection in
use, an idle one, and one being opened each hold a slot. Who finds none waits in line until his
deadline. Every change of state is in a plain function below, with no await inside: that is what
makes it right.

The last one used is the first one reused, so that the others can grow old and go.
"""

from __future__ import annotations

import asyncio
from collections import deque

from bridge.errors import NextHopError
from bridge.relay.connection import NextHopConnection
from bridge.relay.handshake import RelaySettings, open_connection
from bridge.relay.replies import CLOSING, LATE

# Servers slow a client down that has made many errors, and then hang up (Postfix: from 10 on, at 20);
# one mail's refusals must not be the next one's delay.
MAX_ERRORS = 5


class Pool:
    """Take a connection, give it back, whatever has become of it."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._slots = settings.max_connections
        self._idle: list[NextHopConnection] = []  # oldest first
        self._line: deque[asyncio.Future[NextHopConnection | None]] = deque()  # None: a slot, open one yourself
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self.certificate: bytes | None = None  # of the last connection with TLS, as DER

    @property
    def connections(self) -> tuple[int, int]:
        """Those in use or being opened, and those that rest."""
        idle = len(self._idle)
        return self._settings.max_connections - self._slots - idle, idle

    async def take(self, until: float) -> NextHopConnection:
        """A connection ready for MAIL. Raises NextHopError."""
        conn = self._reuse()
        if conn is not None:
            return conn
        if self._closed:
            raise NextHopError(CLOSING)
        if self._slots > 0:
            self._slots -= 1
        else:
            conn = await self._stand_in_line(until)
            if conn is not None:
                return conn
        return await self._open(until)

    async def renew(self, conn: NextHopConnection, until: float) -> NextHopConnection:
        """A fresh connection in place of one that turned out to be dead. Raises NextHopError."""
        conn.abort()
        return await self._open(until)

    def give_back(self, conn: NextHopConnection) -> None:
        """The mail is done with it. A connection that ended only gives back its slot."""
        if conn.ended is None and (self._closed or conn.errors >= MAX_ERRORS):
            conn.quit()
        if conn.ended is not None:
            self._pass_on(None)
            return
        conn.rest()
        self._pass_on(conn)

    def close(self) -> None:
        """Close the idle ones; those in use are closed when they come back."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for conn in self._idle:
            conn.quit()
        self._slots += len(self._idle)
        self._idle.clear()

    async def _open(self, until: float) -> NextHopConnection:
        """The caller holds a slot; it is passed on if this fails."""
        try:
            conn = await open_connection(self._settings, until)
            self.certificate = conn.certificate or self.certificate
            return conn
        except BaseException:
            self._pass_on(None)
            raise

    async def _stand_in_line(self, until: float) -> NextHopConnection | None:
        waiter: asyncio.Future[NextHopConnection | None] = asyncio.get_running_loop().create_future()
        self._line.append(waiter)
        try:
            async with asyncio.timeout_at(until):
                return await waiter
        except BaseException as exc:
            if waiter.done() and not waiter.cancelled():  # served and cancelled in the same breath
                self._return_unused(waiter.result())
            elif waiter in self._line:
                self._line.remove(waiter)
            if isinstance(exc, TimeoutError):
                raise NextHopError(LATE, "every connection to the next hop was in use") from exc
            raise

    def _return_unused(self, served: NextHopConnection | None) -> None:
        if served is None:
            self._pass_on(None)
        else:
            self.give_back(served)

    def _pass_on(self, conn: NextHopConnection | None) -> None:
        """To the first in line; else the connection rests, or the slot is free."""
        while self._line:
            waiter = self._line.popleft()
            if not waiter.done():
                waiter.set_result(conn)
                return
        if conn is None:
            self._slots += 1
            return
        self._idle.append(conn)
        if self._sweeper is None:
            self._sweep_at(conn.idle_since + self._settings.max_idle_s)

    def _reuse(self) -> NextHopConnection | None:
        while self._idle:
            conn = self._idle.pop()
            if conn.ended is None:
                return conn
            self._slots += 1
        return None

    def _sweep_at(self, when: float) -> None:
        self._sweeper = asyncio.get_running_loop().call_at(when, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle too long, and forget what the peer closed."""
        self._sweeper = None
        oldest = asyncio.get_running_loop().time() - self._settings.max_idle_s
        kept = []
        for conn in self._idle:
            if conn.idle_since <= oldest:
                conn.quit()
            if conn.ended is None:
                kept.append(conn)
        self._slots += len(self._idle) - len(kept)
        self._idle = kept
        if kept:
            self._sweep_at(kept[0].idle_since + self._settings.max_idle_s)
