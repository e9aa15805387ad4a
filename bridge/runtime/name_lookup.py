"""The addresses behind a host name: one lookup at a time for each name, and a connection to one that accepts.

The event loop has four threads for all its lookups. A name server that does not answer holds a thread for ten seconds
or more, and each mail for that name would take one: a broken name of one next hop would keep all others, and the
scanner, from being found. So callers share the lookup that is running, and lookups have their own threads.

A name is looked up only for a new connection, so none is kept for longer than MAX_CONNECTION_AGE_S.

A machine that is switched off does not refuse a connection, it is silent. So each address has only its part of the time
to connect, and one that did not accept is tried last for a while. Otherwise a dead machine would keep mail from the
others of the same name.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from bridge.runtime.ip import ip_or_none
from bridge.runtime.threads import Threads

T = TypeVar("T")

# Under constant load a connection is never idle for long. When its name gets another address, mail must not go to the
# old one for as long as that accepts it (Postfix: smtp_connection_reuse_time_limit).
MAX_CONNECTION_AGE_S = 300.0

_AVOID_S = 30.0  # a machine that was switched off takes about as long to start again
_LEAST_S = 1.0  # for an address: a TLS handshake over a slow line takes half of that
_threads = Threads("names", 32)


class NameLookup:
    """For the names of one peer."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[list[str]]] = {}
        self._avoided: dict[str, float] = {}  # addresses that did not accept, and until when they are tried last

    async def connect(self, host: str, connect: Callable[[str], Awaitable[T]], limit_s: float) -> T:
        """Connect to the first of its addresses that accepts. Raises the last one's OSError.

        The caller ends it after `limit_s`. Of what the lookup leaves of that, each address but the last has an equal
        part.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        found = await self.addresses(host)
        now = clock()
        part_s = max((limit_s - (now - began)) / len(found), _LEAST_S)
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        *others, last = sorted(found, key=lambda address: address in self._avoided)
        for address in others:
            self._avoided[address] = now + _AVOID_S  # unless it accepts: the caller's time may end before its part does
            with suppress(OSError):  # TimeoutError is one
                async with asyncio.timeout(part_s):
                    made = await connect(address)
                del self._avoided[address]
                return made
        return await connect(last)

    async def addresses(self, host: str) -> list[str]:
        """In the order of preference; an address stands for itself. Raises OSError."""
        if ip_or_none(host) is not None:
            return [host]
        running = self._running.get(host)
        if running is None:
            try:
                running = self._running[host] = _threads.run(partial(_look_up, host))
            except RuntimeError as exc:
                raise OSError(errno.EAGAIN, "no thread available") from exc
            running.add_done_callback(lambda done: self._end(host, done))
        return await asyncio.shield(running)

    def _end(self, host: str, done: asyncio.Future[list[str]]) -> None:
        del self._running[host]
        if not done.cancelled():
            done.exception()  # perhaps nobody waits for it any more


def _look_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
