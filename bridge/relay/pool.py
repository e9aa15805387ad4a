"""Connections to one next hop, kept for the next mail.

A slot is the right to hold one connection; there are `max_connections` of them. A connection in use, an
idle one, and one being opened each hold a slot. Callers queue for a slot until their deadline. Every change of state
happens in a plain function without an await, so no other task can see it half finished.

The most recently used connection is reused first, so that the others grow old and are closed.
"""

from __future__ import annotations

import asyncio
from collections import deque

from bridge.mail.next_hop import NextHopError
from bridge.relay.client_replies import CLOSING, LATE
from bridge.relay.connection import NextHopConnection
from bridge.relay.handshake import RelaySettings, open_connection
from bridge.runtime.host_addresses import MAX_CONNECTION_AGE_S, NameLookup

# Servers delay a client after many errors, and then hang up (Postfix: after 10 and 20); refusals of one
# mail must not delay the next.
MAX_ERRORS = 5


class Pool:
    """Callers take a connection and give it back, in whatever state it is."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._slots = settings.max_connections
        self._idle: list[NextHopConnection] = []  # oldest first
        self._queue: deque[asyncio.Future[NextHopConnection | None]] = deque()  # None: a free slot, for opening one
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self.names = NameLookup()
        self.certificate: bytes | None = None  # of the last connection with TLS, as DER

    @property
    def connections(self) -> tuple[int, int]:
        """How many are in use or being opened, and how many are idle."""
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
            conn = await self._wait_in_queue(until)
            if conn is not None:
                return conn
        return await self._open(until)

    async def renew(self, conn: NextHopConnection, until: float) -> NextHopConnection:
        """A new connection to replace one that turned out to be dead. Raises NextHopError."""
        conn.abort()
        return await self._open(until)

    def give_back(self, conn: NextHopConnection) -> None:
        """The mail is done. A connection that has ended only frees its slot."""
        if conn.ended is None and not conn.is_in_step:
            conn.abort()
        if conn.ended is None and (self._closed or conn.errors >= MAX_ERRORS or conn.age_s >= MAX_CONNECTION_AGE_S):
            conn.quit()
        if conn.ended is not None:
            self._pass_on(None)
            return
        conn.become_idle()
        self._pass_on(conn)

    def close(self) -> None:
        """Close idle connections now, and the others when they are given back."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for conn in self._idle:
            conn.quit()
        self._slots += len(self._idle)
        self._idle.clear()

    async def _open(self, until: float) -> NextHopConnection:
        """Open a connection. The caller holds a slot, which is passed on if this fails."""
        try:
            conn = await open_connection(self._settings, self.names, until)
            self.certificate = conn.certificate or self.certificate
            return conn
        except BaseException:
            self._pass_on(None)
            raise

    async def _wait_in_queue(self, until: float) -> NextHopConnection | None:
        waiter: asyncio.Future[NextHopConnection | None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            async with asyncio.timeout_at(until):
                return await waiter
        except BaseException as exc:
            if waiter.done() and not waiter.cancelled():  # served and cancelled in the same turn
                self._return_unused(waiter.result())
            elif waiter in self._queue:
                self._queue.remove(waiter)
            if isinstance(exc, TimeoutError):
                raise NextHopError(LATE, "all connections to the next hop are in use (max_connections)") from exc
            raise

    def _return_unused(self, served: NextHopConnection | None) -> None:
        if served is None:
            self._pass_on(None)
        else:
            self.give_back(served)

    def _pass_on(self, conn: NextHopConnection | None) -> None:
        """Give a connection or slot to the first in the queue; otherwise it is idle, or free."""
        while self._queue:
            waiter = self._queue.popleft()
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
        """Close connections that were idle for too long, and drop those that the peer closed."""
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
