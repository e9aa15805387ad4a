"""The servers of all listeners: opened together or not at all, changed by a reload, drained at the end.

Knows sockets and servers; what a server does with a mail is in its plan (`components.ListenerPlan`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from itertools import chain

from bridge.config.listener import Listener
from bridge.daemon.addresses import listener_key
from bridge.daemon.components import ListenerKey, ListenerPlan, Server
from bridge.daemon.workers.worker_context import WorkerContext

log = logging.getLogger(__name__)

Servers = dict[ListenerKey, Server]


class Listeners:
    def __init__(self, worker: WorkerContext) -> None:
        self._sockets = worker.sockets
        self._is_ahead = worker.balance(lambda: self.connections)
        self._servers: Servers = {}  # in the order of the configuration
        self._leaving: set[Server] = set()  # removed by a reload, finishing their mail

    @property
    def servers(self) -> list[Server]:
        return list(self._servers.values())

    @property
    def connections(self) -> int:
        return sum(server.connections for server in self._servers.values())

    def connections_by_name(self) -> dict[str, int]:
        return {name: server.connections for (name, _, _), server in self._servers.items()}

    async def open_missing(self, plans: Iterable[ListenerPlan]) -> Servers:
        """New servers for the plans that have none: all of them, or none. Raises CannotListen, ConfigError, OSError."""
        missing = [plan for plan in plans if plan.key not in self._servers]
        opened: Servers = {}
        async with AsyncExitStack() as undo:
            bound = [self._open(plan.listener) for plan in missing]
            for sock in chain.from_iterable(bound):
                undo.callback(sock.close)
            undo.push_async_callback(self.close_unused, opened)
            for plan, sockets in zip(missing, bound, strict=True):
                server = opened[plan.key] = plan.create(self._is_ahead)
                for sock in sockets:
                    await server.serve(sock)
                listener = plan.listener
                log.info(
                    "listener %s: %s on %s, profile %s",
                    listener.name,
                    listener.protocol,
                    listener.address,
                    listener.profile,
                )
            undo.pop_all()
        return opened

    async def close_unused(self, opened: Servers) -> None:
        """Servers that were opened for a configuration that is not used: they have no mail yet."""
        for server in opened.values():
            await server.drain(0.0)

    def _open(self, listener: Listener) -> list[socket.socket]:
        return self._sockets.open(listener_key(listener), listener.address, listener.unix_mode, listener.unix_owner)

    def adopt(self, plans: Iterable[ListenerPlan], opened: Mapping[ListenerKey, Server]) -> list[Server]:
        """Switch to these plans, with `opened` for the new ones. Returns the servers that have no plan any more."""
        running, self._servers = self._servers, {}
        for plan in plans:
            server = running.pop(plan.key, None)
            if server is None:
                server = opened[plan.key]
            else:
                plan.change(server)
            self._servers[plan.key] = server
        return list(running.values())

    async def drain_removed(self, server: Server, limit_s: float) -> None:
        self._leaving.add(server)
        await server.drain(limit_s)
        self._leaving.discard(server)

    def start_drain(self, limit_s: float) -> list[asyncio.Task[None]]:
        """Stop accepting; mail in processing may take `limit_s`."""
        return [asyncio.create_task(server.drain(limit_s)) for server in (*self._servers.values(), *self._leaving)]
