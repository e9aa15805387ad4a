"""What a client has sent and the session has not yet read.

Commands are taken as whole lines straight from the buffer, without an await while there is one. For the parts of
aiosmtpd that need a stream (PROXY header, AUTH) it also has the reading methods of asyncio.StreamReader. Only CRLF
ends a command; a line that never ends costs no memory. Knows nothing of commands. If this is wrong, a bare LF becomes a
line end, or a client fills our memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINE_LIMIT = 8192  # above every command's own limit, and what Postfix makes of 2,048 characters (xtext)
PAUSE_AT = 256 * 1024  # bytes waiting while a mail is processed: above this, we stop reading from the client


def _nothing() -> None:
    """Replaces the callback of a closed buffer."""


class LineTooLong(Exception):
    """A line longer than LINE_LIMIT was discarded."""


class LineBuffer:
    __slots__ = ("_before_wait", "_loop", "_skipping", "_waiter", "at_eof", "buffer")

    def __init__(self, loop: asyncio.AbstractEventLoop, before_wait: Callable[[], None]) -> None:
        self._loop = loop
        self._before_wait = before_wait  # sends the replies before we wait for the client
        self.buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._skipping = False
        self.at_eof = False

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def is_awaited(self) -> bool:
        return self._waiter is not None

    @property
    def next_is_quit(self) -> bool:
        """Whether QUIT is the next command."""
        return self.buffer[:6].upper() == b"QUIT\r\n"

    def feed(self, data: bytes) -> None:
        self.buffer += data
        self._wake()

    def close(self) -> None:
        self.at_eof = True
        self._before_wait = _nothing  # breaks the reference cycle with the connection
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def more(self) -> None:
        """Wait until something has arrived."""
        if self.at_eof:
            raise ConnectionResetError
        self._before_wait()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take_line(self) -> bytes | None:
        """The next line without its CRLF, or None while none is complete."""
        end = self.buffer.find(b"\r\n")
        if end < 0:
            if len(self.buffer) - self.buffer.endswith(b"\r") > LINE_LIMIT:  # the CR may be half of its end
                self._skipping = True
                del self.buffer[:-1]  # the last byte may be the CR of its end
            return None
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 2]
        if self._skipping or len(line) > LINE_LIMIT:
            self._skipping = False
            raise LineTooLong
        return line

    def take_all(self) -> bytes:
        data = bytes(self.buffer)
        self.buffer.clear()
        self._skipping = False
        return data

    # The methods of asyncio.StreamReader that aiosmtpd's PROXY and AUTH code uses

    async def readline(self) -> bytes:
        return await self.readuntil(b"\n")

    async def readuntil(self, separator: bytes = b"\n") -> bytes:
        while (end := self.buffer.find(separator)) < 0:
            if len(self.buffer) > LINE_LIMIT:
                raise asyncio.LimitOverrunError("no line end", len(self.buffer))
            await self._more_or(asyncio.IncompleteReadError(bytes(self.buffer), None))
        return self._cut(end + len(separator))

    async def readexactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            await self._more_or(asyncio.IncompleteReadError(bytes(self.buffer), count))
        return self._cut(count)

    async def read(self, count: int) -> bytes:
        while not self.buffer:
            if self.at_eof:
                return b""
            await self.more()
        return self._cut(count)

    async def _more_or(self, error: Exception) -> None:
        if self.at_eof:
            raise error
        await self.more()

    def _cut(self, count: int) -> bytes:
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data
