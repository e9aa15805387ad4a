"""Accepts several connections in one turn of the event loop, and balances them among workers.

The event loop (libuv) accepts one connection per listening socket and turn. In a burst, the others would wait in the
queue turn after turn, and each turn would have little to do: that was half the cost of a mail with its own connection.
So each socket is duplicated, and the copies share its queue.

Workers share that queue, too, and the first to wake up would take every connection. A worker that is ahead of the
others closes its copies, and accepts again only when a connection has waited for a moment. Knows no protocol. If this
is wrong, connections wait while workers are idle, or one worker serves them all.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

AT_ONCE = 8  # more gain nothing; each copy costs a system call per new connection, even if the queue is empty
AT_ONCE_OF_MANY = 4  # with workers, which all wake up for each new connection and compete for it
_BACKLOG = 4096  # clients that do not fit in the queue retry only after a second
_RETRY_S = 0.1
_YIELD_S = 0.003  # a longer pause leaves a worker idle while mail waits


class Acceptor:
    """Accepts on one listening TCP or unix socket, and owns it."""

    def __init__(
        self,
        sock: socket.socket,
        spawn: Callable[[], asyncio.Protocol],
        is_ahead: Callable[[], bool] | None = None,
    ) -> None:
        self._sock = sock
        self._spawn = spawn
        self._is_ahead = is_ahead
        self._options: dict[str, Any] = {}
        if sock.family == socket.AF_UNIX and sys.version_info >= (3, 13):
            self._options["cleanup_socket"] = False  # else closing one copy deletes the path, and nobody can connect
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError if no file descriptor is left."""
        unix = self._sock.family == socket.AF_UNIX
        create = self._loop.create_unix_server if unix else self._loop.create_server
        spawn = self._spawn if self._is_ahead is None else self._accept_and_compare
        for _ in range(AT_ONCE if self._is_ahead is None else AT_ONCE_OF_MANY):
            try:
                copy = self._sock.dup()
            except OSError:
                if not self._servers:
                    raise
                break  # fewer copies suffice
            self._servers.append(await create(spawn, sock=copy, backlog=_BACKLOG, **self._options))

    def close(self) -> None:
        """Connections in the queue stay there if another process holds the socket."""
        self._stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._starting is not None:
            self._starting.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
        self._sock.close()

    def _stop(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []

    # Among workers

    def _accept_and_compare(self) -> asyncio.Protocol:
        assert self._is_ahead is not None
        if self._is_ahead():
            self._loop.call_soon(self._step_back)  # after this connection is accepted
        return self._spawn()

    def _step_back(self) -> None:
        if self._servers:
            self._stop()
            self._loop.add_reader(self._sock, self._on_waiting)

    def _on_waiting(self) -> None:
        """A connection is in the queue: leave it to another worker for a moment."""
        self._loop.remove_reader(self._sock)
        assert self._is_ahead is not None
        if self._is_ahead():
            self._timer = self._loop.call_later(_YIELD_S, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._timer = None
        assert self._is_ahead is not None
        if self._is_ahead() and not self._has_waiting():
            self._loop.add_reader(self._sock, self._on_waiting)
        else:
            self._starting = self._loop.create_task(self._start_again())

    def _has_waiting(self) -> bool:
        queue = select.poll()
        queue.register(self._sock, select.POLLIN)
        return bool(queue.poll(0))

    async def _start_again(self) -> None:
        try:
            await self.start()
        except OSError:
            self._timer = self._loop.call_later(_RETRY_S, self._go_on)
