"""Accepting: several connections in one turn of the event loop, and not all of them by one worker.

The event loop (libuv) accepts one connection from each listening socket, then turns. In a burst the others would wait
in the queue, turn by turn, and each turn would find little to do: half of what a mail on a connection of its own costs
was that. So each socket is served several times, by copies, which share its queue.

Workers share that queue, too, and who wakes up first would take everything that comes. A worker that is ahead of the
others closes its copies, and only when somebody has waited for a moment does it go on.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

AT_ONCE = 8  # more bring no gain; a copy that finds the queue empty costs a system call for each new connection
AT_ONCE_OF_MANY = 4  # workers: all of them wake up for each new connection, and stand in each other's way
_BACKLOG = 4096  # a burst that does not fit comes again only after a second
_NO_DESCRIPTOR_S = 0.1
_AFTER_YOU_S = 0.003  # more keeps a worker idle while mail waits


class Acceptor:
    """Accepts on one listening TCP or unix socket, which it closes in the end."""

    def __init__(
        self, sock: socket.socket, spawn: Callable[[], asyncio.Protocol], is_ahead: Callable[[], bool] | None = None
    ) -> None:
        self._sock = sock
        self._spawn = spawn
        self._is_ahead = is_ahead
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError when there is no descriptor left."""
        unix = self._sock.family == socket.AF_UNIX
        create = self._loop.create_unix_server if unix else self._loop.create_server
        spawn = self._spawn if self._is_ahead is None else self._spawn_and_look
        for _ in range(AT_ONCE if self._is_ahead is None else AT_ONCE_OF_MANY):
            try:
                copy = self._sock.dup()
            except OSError:
                if not self._servers:
                    raise
                break  # fewer will do
            self._servers.append(await create(spawn, sock=copy, backlog=_BACKLOG))

    def close(self) -> None:
        """Whoever is in the queue stays there, if somebody else holds the socket."""
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

    def _spawn_and_look(self) -> asyncio.Protocol:
        assert self._is_ahead is not None
        if self._is_ahead():
            self._loop.call_soon(self._step_back)  # this one is being accepted
        return self._spawn()

    def _step_back(self) -> None:
        if self._servers:
            self._stop()
            self._loop.add_reader(self._sock, self._on_waiting)

    def _on_waiting(self) -> None:
        """Somebody is in the queue: another worker's, if it takes him soon."""
        self._loop.remove_reader(self._sock)
        assert self._is_ahead is not None
        if self._is_ahead():
            self._timer = self._loop.call_later(_AFTER_YOU_S, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._timer = None
        assert self._is_ahead is not None
        if self._is_ahead() and not self._somebody_waits():
            self._loop.add_reader(self._sock, self._on_waiting)
        else:
            self._starting = self._loop.create_task(self._start_again())

    def _somebody_waits(self) -> bool:
        queue = select.poll()
        queue.register(self._sock, select.POLLIN)
        return bool(queue.poll(0))

    async def _start_again(self) -> None:
        try:
            await self.start()
        except OSError:
            self._timer = self._loop.call_later(_NO_DESCRIPTOR_S, self._go_on)
