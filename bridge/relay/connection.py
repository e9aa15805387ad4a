"""One connection to the next hop: bytes out, replies in, every wait with a time limit.

It counts the commands that await a reply. A reply that no command awaits ends the connection: if an early
"250" were read as the answer to the final dot, the mail would be lost. So a command counts from the moment it is
written, and nothing is written while unsolicited bytes are waiting.

Nothing here raises. A wait returns the replies that came, fewer than asked for if the connection ended, and
`ended` says how; the caller knows at which step, and so what it means. If a caller is cancelled while it
waits, replies are kept for the next one.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from enum import StrEnum
from typing import cast

from bridge.errors import ProtocolError
from bridge.mail.reply import Reply
from bridge.relay.commands import Capabilities
from bridge.relay.reply_reader import ReplyReader
from bridge.runtime.unread import transport_has_unread

_WRITE_AT = 64 * 1024  # more than this is written immediately, not at the end of the event loop's turn
_SETTLE_TURNS = 10  # a TLS record may arrive in pieces; a peer that sends nothing else must not keep us


class End(StrEnum):
    """How a connection ended."""

    LOST = "connection lost"  # closed, reset, or 421
    SILENT = "no answer in time"
    LATE = "deadline passed"
    BROKEN = "not SMTP"  # malformed replies, or replies to no command
    CLOSED = "closed by us"


class NextHopConnection(asyncio.Protocol):
    """The protocol object; `handshake` prepares it for mail, `pool` keeps it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = ReplyReader()
        self._replies: list[Reply] = []
        self._awaited = 1  # the greeting
        self._wanted = 0
        self._last_reply_at = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._timeout_s = self._until = math.inf  # the waiter's limits
        self._timer: asyncio.TimerHandle | None = None  # fires when the waiter's time is up, or earlier
        self._paused = False
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._unsent_replies = 0  # the number of replies that the unsent commands will expect
        self._expects_tls = False
        self.certificate: bytes | None = None  # the peer's, as DER, if TLS is used
        self.ended: End | None = None
        self.unasked: Reply | None = None  # the reply to no command, if that ended the connection
        self.capabilities = Capabilities()
        self.takes_mail = False  # greeting, EHLO and STARTTLS are done
        self.reused = False  # has carried an earlier mail
        self.needs_reset = False  # a refused mail is still open at the next hop
        self.errors = 0  # refusals since a mail was accepted
        self.opened_at = self._loop.time()
        self.idle_since = 0.0

    # For callers.

    def send(self, data: bytes, replies: int) -> None:
        """Write at the end of this event loop turn, and expect this many replies."""
        self._unsent_replies += replies
        if not self._unsent:
            # Not `bridge.runtime.write_batch`: pool and handshake would have to pass one around, to save
            # 0.07 us per write at 20 connections (uvloop, Python 3.11); with one connection it is slower.
            self._loop.call_soon(self._write)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > _WRITE_AT:
            self._write()

    def _write(self) -> None:
        if self._unsent and self._transport is not None and self.ended is None:
            if self._unsent_replies and not self._awaited and self._has_unasked(self._transport):
                self._loop.call_soon(self._write)  # let the event loop read them; most likely they end the connection
                return
            self._transport.write(b"".join(self._unsent) if len(self._unsent) > 1 else self._unsent[0])
        self._awaited += self._unsent_replies
        self._unsent.clear()
        self._unsent_bytes = self._unsent_replies = 0

    @staticmethod
    def _has_unasked(transport: asyncio.Transport) -> bool:
        return not transport.is_closing() and transport_has_unread(transport)

    async def replies(
        self, count: int, timeout_s: float, until: float = math.inf, *, settles: bool = False
    ) -> list[Reply]:
        """The next replies: each within `timeout_s`, all of them before `until`.

        `settles`: if several replies or refusals have come, a further one that has arrived must be noticed: it would
        cast doubt on these.
        """
        if len(self._replies) < count and self.ended is None:
            self._wanted = count
            await self._wait(timeout_s, until)
        if settles and (count > 1 or self.errors):
            await self.settle()
        taken = self._replies[:count]
        del self._replies[:count]
        return taken

    async def drain(self, timeout_s: float, until: float) -> None:
        """Wait until the transport accepts more data."""
        while self._paused and self.ended is None:
            self._wanted = 0
            await self._wait(timeout_s, until)

    async def settle(self) -> None:
        """Let the event loop read what has already arrived. A reply that no command awaits then ends the connection."""
        for _ in range(_SETTLE_TURNS):
            if self.ended is not None or self._transport is None or not self._has_unasked(self._transport):
                return
            await asyncio.sleep(0)

    def expect_tls(self, expected: bool) -> None:
        """Discard plaintext after the next reply: an attacker may have injected it (CVE-2011-0411)."""
        self._expects_tls = expected

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypt the connection. Raises OSError (ssl.SSLError is one)."""
        assert self._transport is not None
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if transport is None:  # lost during the handshake
            raise ConnectionResetError("connection lost")
        self._transport = transport
        self.certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self._expects_tls = False

    @property
    def is_in_step(self) -> bool:
        """Whether every reply has come and was taken: only then may the connection carry another mail."""
        return not (self._awaited or self._unsent or self._replies or self._reader.has_rest)

    @property
    def age_s(self) -> float:
        return self._loop.time() - self.opened_at

    def become_idle(self) -> None:
        """The mail is done; the connection waits for the next one."""
        self.reused = True
        self.idle_since = self._loop.time()

    def quit(self) -> None:
        """Send QUIT and close, without waiting for the answer."""
        if self.ended is None and self._transport is not None:
            self._write()
            self._transport.write(b"QUIT\r\n")
            self.ended = End.CLOSED
            self._transport.close()

    def abort(self, how: End = End.CLOSED) -> None:
        """Drop the connection now, together with everything that is not written yet."""
        if self.ended is None:
            self.ended = how
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    # For the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it

    def data_received(self, data: bytes) -> None:
        if self.ended is not None or (self._expects_tls and not self._awaited):
            return
        try:
            for reply in self._reader.feed(data):
                self._on_reply(reply)
                if self.ended is not None:
                    return
                if self._expects_tls:
                    self._reader.clear()
                    break
        except ProtocolError:
            self.abort(End.BROKEN)
            return
        if not self._awaited and self._reader.has_rest:
            self.abort(End.BROKEN)  # the start of a reply to no command
            return
        if self._wanted and len(self._replies) >= self._wanted:
            self._wake()

    def _on_reply(self, reply: Reply) -> None:
        if not self._awaited:
            self.unasked = reply
            self.abort(End.LOST if reply.code == 421 else End.BROKEN)
            return
        if reply.code == 220 and self.takes_mail:  # a second greeting: it accepts nothing
            self.unasked = reply
            self.abort(End.BROKEN)
            return
        self._awaited -= 1
        if reply.code == 221:  # ends the connection and accepts nothing: only QUIT expects it
            reply = Reply(421, "", reply.text, is_foreign=True)
        if self._expects_tls and reply.code != 220:  # STARTTLS was refused: what follows is read as usual
            self._expects_tls = False
        self._replies.append(reply)
        self._last_reply_at = self._loop.time()
        if reply.code >= 400:
            self.errors += 1
        if reply.code == 421:  # RFC 5321 3.8: the server closes the connection
            self.abort(End.LOST)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended is None:
            self.ended = End.LOST
        self._paused = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if not self._wanted:
            self._wake()

    # Waiting: a single waiter, for replies (`_wanted` > 0) or for room to write.

    async def _wait(self, timeout_s: float, until: float) -> None:
        self._waiter = self._loop.create_future()
        self._last_reply_at = self._loop.time()
        self._timeout_s, self._until = timeout_s, until
        self._schedule_timer()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._wanted = 0

    def _schedule_timer(self) -> None:
        """Make sure that a timer fires in time. An earlier timer is kept: most waits end long before their limit."""
        due = min(self._last_reply_at + self._timeout_s, self._until)
        if self._timer is not None and self._timer.when() > due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < min(self._last_reply_at + self._timeout_s, self._until):
            self._schedule_timer()  # set for an earlier wait, or a reply has come: each reply has its own time limit
        else:
            self.abort(End.LATE if self._until <= self._last_reply_at + self._timeout_s else End.SILENT)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
