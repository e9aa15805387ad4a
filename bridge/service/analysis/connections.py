"""Connections to engines that speak their own protocol over TCP or a Unix socket.

All of them follow the same rules. At most `count` connections are open, so that an engine is not flooded. Each
connection is used for one request, because a second answer would be taken for the answer to the next request. An answer
has a maximum length, whatever its headers say. It is read while the mail is still being sent, because an engine may
answer early and then stop reading. An early answer counts if it says that the mail is bad; only an engine that has the
whole mail can call it clean (`counted`). Timeouts are the pipeline's: it cancels the whole analysis.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from bridge.runtime.endpoints import Endpoint
from bridge.runtime.host_addresses import NameLookup
from bridge.service.analysis.engine import Findings

PIECE = 64 * 1024
_CONNECT_S = 5.0  # shared by the addresses of a name; the pipeline gives the last ones all the remaining time
_CONNECT_SHARE = 0.5  # of the engine's own timeout, if that is less: the rest is for the mail

T = TypeVar("T")


class BadAnswer(Exception):
    """The engine sent something that its protocol does not allow, too much, or nothing."""


def counted(found: Findings, has_sent_all: bool, is_bad: bool) -> Findings:
    """The part of an answer that counts: if it is early, only what it says against the mail. Raises BadAnswer.

    `is_bad`: whether the engine says that the mail is bad, which each of them does in its own way.
    """
    if has_sent_all:
        return found
    if not is_bad:
        raise BadAnswer("answered before everything was sent")
    return replace(found, score=max(found.score, 0.0), opinion=max(found.opinion, 0.0))


class Connection:
    """One connection. `allow` says how long the next answer may be."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._allowed = 0
        self.has_sent_all = False  # in `answer`

    def allow(self, count: int) -> None:
        self._allowed = count

    async def send(self, data: bytes | bytearray) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def receive(self) -> bytes:
        """What has arrived; nothing at the end."""
        return await asyncio.get_running_loop().sock_recv(self._sock, PIECE)

    def end(self) -> None:
        """Tell the peer that nothing more is sent."""
        self._sock.shutdown(socket.SHUT_WR)

    async def answer(self, sending: Coroutine[Any, Any, None], reading: Coroutine[Any, Any, T]) -> T:
        """What `reading` returns; it may do so before everything is sent: see `has_sent_all`."""
        task = asyncio.create_task(self._sent(sending))
        try:
            return await reading
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            sending.close()  # it may not have begun

    async def _sent(self, sending: Coroutine[Any, Any, None]) -> None:
        try:
            await sending
            self.has_sent_all = True
        except ConnectionError:
            pass  # the reason may have arrived
        except Exception:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # ends the reading
            raise

    async def line(self) -> bytes:
        """Up to the next LF, without CR and LF."""
        return (await self.until(b"\n")).removesuffix(b"\r")

    async def until(self, end: bytes) -> bytes:
        searched = 0
        while (at := self._buffer.find(end, searched)) < 0:
            searched = max(0, len(self._buffer) - len(end) + 1)
            await self._receive()
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return found

    async def exactly(self, count: int) -> AsyncIterator[bytes]:
        """Exactly this many bytes, in pieces."""
        while count:
            if not self._buffer:
                await self._receive()
            piece = bytes(self._buffer[:count])
            del self._buffer[: len(piece)]
            count -= len(piece)
            yield piece

    async def _receive(self) -> None:
        piece = await self.receive()
        if not piece:
            raise BadAnswer("the connection was closed")
        self._allowed -= len(piece)
        if self._allowed < 0:
            raise BadAnswer("the answer is too long")
        self._buffer += piece
        await asyncio.sleep(0)  # other tasks run in between, even if the engine is faster than we are

    @property
    def has_more(self) -> bool:
        """Whether more has arrived than was read."""
        return bool(self._buffer)

    def close(self) -> None:
        self._sock.close()


Opening = Callable[[socket.socket], Awaitable[Connection]]  # what happens after a socket has connected, such as TLS


async def as_it_is(sock: socket.socket) -> Connection:
    return Connection(sock)


async def connect(address: Endpoint, names: NameLookup, timeout_s: float, opening: Opening = as_it_is) -> Connection:
    """To the first address that accepts. `timeout_s`: for the whole analysis. Raises OSError."""
    if address.path:
        return await _connected(socket.AF_UNIX, address.path, opening)
    return await names.connect(
        address.host or "",
        lambda ip: _connected(_family(ip), (ip, address.port), opening),
        min(_CONNECT_S, timeout_s * _CONNECT_SHARE),
        Connection.close,
    )


def _family(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


async def _connected(family: int, place: Any, opening: Opening) -> Connection:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        await asyncio.get_running_loop().sock_connect(sock, place)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return await opening(sock)
    except BaseException:
        sock.close()
        raise


class Connections:
    """At most `count` connections to one engine; callers wait for a free one."""

    def __init__(self, address: Endpoint, count: int, timeout_s: float, opening: Opening = as_it_is) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._opening = opening
        self._names = NameLookup()
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """A new connection, for one request. Raises OSError."""
        async with self._free:
            connection = await connect(self._address, self._names, self._timeout_s, self._opening)
            try:
                yield connection
            finally:
                connection.close()
