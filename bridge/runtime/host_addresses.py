"""The addresses behind a host name: one lookup at a time for each name, and a connection to one that accepts.

The event loop has four threads for all its lookups. A name server that does not answer holds a thread for ten seconds
or more, and each mail for that name would take one: a broken name of one next hop would keep all others, and the
scanner, from being found. So callers share the lookup that is running, and lookups have their own threads.

A name is looked up only for a new connection, so none is kept for longer than MAX_CONNECTION_AGE_S.

A machine that is switched off does not refuse a connection; it is silent. So after part of the time allowed for
connecting, the next address is tried as well, and one that did not accept is tried last for a while. Otherwise a dead
machine would keep mail from the others of the same name.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from bridge.runtime.ip import ip_or_none
from bridge.runtime.threads import Threads

T = TypeVar("T")

# Under constant load a connection is never idle for long. When its name gets another address, mail must not keep going
# to the old one just because that still accepts it (Postfix: smtp_connection_reuse_time_limit).
MAX_CONNECTION_AGE_S = 300.0

_AVOID_S = 30.0  # a machine that was switched off takes about as long to start again
_threads = Threads("names", 32)


class NameLookup:
    """For the names of one peer."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[list[str]]] = {}
        self._avoided: dict[str, float] = {}  # addresses that did not accept, and until when they are tried last

    async def connect(
        self,
        host: str,
        connect: Callable[[str], Coroutine[Any, Any, T]],
        limit_s: float,
        discard: Callable[[T], None],
    ) -> T:
        """Connect to the first of its addresses that accepts. Raises the last one's OSError.

        The caller ends it after `limit_s`. What the lookup leaves of that is divided equally among the addresses: the
        next one is tried when a part has passed, or as soon as an attempt fails. Earlier attempts go on: over a slow
        line, all of them may need longer than their part. `discard` closes a connection that nobody needs any more.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        found = await self.addresses(host)
        if len(found) == 1:
            return await connect(found[0])
        now = clock()
        part_s = max(limit_s - (now - began), 0.0) / len(found)
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        trying: dict[asyncio.Task[T], str] = {}
        try:
            for address in sorted(found, key=lambda address: address in self._avoided):
                is_last = len(trying) == len(found) - 1
                if not is_last:  # unless it accepts: the caller's time may end before its part does
                    self._avoided[address] = now + _AVOID_S
                trying[asyncio.create_task(connect(address))] = address
                made = await _first_made(trying, None if is_last else part_s)
                if made is not None:
                    self._avoided.pop(trying.pop(made), None)
                    return made.result()
            raise list(trying)[-1].exception() or OSError(errno.ECANCELED, "cancelled")
        finally:
            _abandon(trying, discard)

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


async def _first_made(trying: Iterable[asyncio.Task[T]], limit_s: float | None) -> asyncio.Task[T] | None:
    """The first attempt that succeeds. None if one fails or the time is up; without a limit, if all have failed.

    Raises what an attempt raised, unless it is an OSError.
    """
    tasks = list(trying)
    while True:
        for task in tasks:  # an earlier one may have succeeded since
            if task.done() and not isinstance(task.exception(), OSError):  # TimeoutError is one
                task.result()
                return task
        pending = [task for task in tasks if not task.done()]
        if not pending:
            return None
        done, _ = await asyncio.wait(pending, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if limit_s is not None and all(isinstance(task.exception(), OSError) for task in done):
            return None


def _abandon(trying: dict[asyncio.Task[T], str], discard: Callable[[T], None]) -> None:
    """Also breaks a reference cycle: a failed task holds its error, and that holds the frame with the tasks."""
    for task in trying:
        task.cancel()
        task.add_done_callback(partial(_discard, discard))
    trying.clear()


def _discard(discard: Callable[[T], None], task: asyncio.Task[T]) -> None:
    if not task.cancelled() and task.exception() is None:
        discard(task.result())


def _look_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
