"""Accepting: several connections in one turn of the event loop.

The event loop (libuv) accepts one connection from each listening socket, then turns. In a burst the others would wait
in the queue, turn by turn, and each turn would find little to do: half of what a mail on a connection of its own costs
was that. So each socket is served several times, by copies, which share its queue.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

AT_ONCE = 8  # more bring no gain; a copy that finds the queue empty costs a system call for each new connection
_BACKLOG = 4096  # a burst that does not fit comes again only after a second


async def accept(sock: socket.socket, spawn: Callable[[], asyncio.Protocol]) -> list[asyncio.Server]:
    """Accept on a listening TCP or unix socket from now on. Who closes the servers closes the socket."""
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
    sockets = [sock, *(sock.dup() for _ in range(AT_ONCE - 1))]
    return [await create(spawn, sock=one, backlog=_BACKLOG) for one in sockets]
