"""One SMTP connection: bytes in, command lines out, replies back, every phase within its time.

aiosmtpd's server class, with its stream loop replaced: commands are taken as whole lines from what
has arrived and answered with one write; content goes block by block from the socket into the
message, with no task woken in between. What the commands mean is in `smtp`.
If this is wrong, clients hang, sessions leak, or one client's bytes become another's commands.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import re
import ssl
from asyncio.streams import FlowControlMixin
from dataclasses import dataclass, replace
from typing import Any, Self

from aiosmtpd.proxy_protocol import get_proxy
from aiosmtpd.smtp import MISSING, SMTP, TLSSetupException

from bridge.intake.data import DataReader
from bridge.intake.inbox import PAUSE_AT, Inbox, LineTooLong
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import new_id

log = logging.getLogger(__name__)

_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|TRACE) \S+ HTTP/|PRI \* HTTP/2")
_RATE_WINDOW_S = 30.0
_TLS_HANDSHAKE_S = 30.0
_LAST_WORDS_S = 5.0  # for a client to read what we said before we hang up
_IDLE_COMMANDS = frozenset(
    ["NOOP", "RSET", "VRFY", "EXPN", "HELP", "HELO", "EHLO", "LHLO", "STARTTLS", "AUTH", "XFORWARD", "XCLIENT"]
)
_BEFORE_TLS = frozenset({"NOOP", "EHLO", "LHLO", "STARTTLS", "QUIT"})  # RFC 3207 4
_INTERNAL = Reply(451, "4.3.0", "Error: internal problem, try again later")


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session may cost. Times in seconds."""

    command_timeout_s: float | None = None  # None: aiosmtpd's `timeout`
    data_timeout_s: float = 180.0
    min_data_rate: int = 256  # bytes per second over 30 s
    max_recipients: int = 1000
    max_errors: int = 20
    max_idle_commands: int = 100  # commands in a row that bring no mail nearer


class Connection(SMTP):
    """Make one, then `spawn` a copy for each connection: that is far cheaper than making each."""

    peer_address: str | None = None  # of the connection's other end; None on a unix socket
    trusted = False  # believed about its clients; the handler sets it when a client connects
    counted_as: str | None = None  # whose connection this is, for the cap per client

    def __init__(
        self, handler: Any, *, limits: SessionLimits | None = None, spool: Spool | None = None, **stock: Any
    ) -> None:
        super().__init__(handler, **stock)
        self._limits = limits or SessionLimits()
        self._spool = spool or Spool(1 << 30)
        self._has_auth = self._auth_required or not self._auth_require_tls or self._has_authenticator(stock)
        self._ehlo_replies: dict[tuple[bool, bool], bytes] = {}  # shared by all connections
        self._commands = {name: getattr(type(self), "smtp_" + name, None) for name in self._smtp_methods}
        self._renew()

    @staticmethod
    def _has_authenticator(stock: dict[str, Any]) -> bool:
        return stock.get("authenticator") is not None or stock.get("auth_callback") is not None

    def spawn(self) -> Self:
        """A fresh connection with the same settings, without aiosmtpd's costly set-up."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._renew()
        return twin

    def _renew(self) -> None:
        """All that belongs to one connection."""
        FlowControlMixin.__init__(self, loop=self.loop)
        self._closed = self.loop.create_future()
        self._inbox = self._reader = Inbox(self.loop, self._before_wait)
        self._out: list[bytes] = []
        self._data: DataReader | None = None
        self._data_ended: asyncio.Future[None] | None = None
        self._busy = False
        self._is_handled = False
        self._reading_paused = False
        self._farewell: Reply | None = None  # said when the running mail is over
        self._silent_s = 0.0
        self._errors = 0
        self._excused = 0  # 503s that a pipelining client could not avoid
        self._idle_commands = 0
        self._argument = b""
        self.command_size_limits: dict[str, int] = collections.defaultdict(lambda: self.command_size_limit)
        self.client = Client()  # what we believe of the client behind this connection
        self.forwarded: Client | None = None  # XFORWARD's word, for one mail
        self.described: tuple[Any, Session] | None = None  # what was said, and the session made of it
        self._call_limit: dict[str, int] = dict(self._call_limit_base) if self._enforce_call_limit else {}
        self._transport: Any = None
        self.transport: Any = None

    # The connection's life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._transport = transport
        self._writer = asyncio.StreamWriter(self.transport, self, None, self.loop)
        self.session = self._create_session()
        self.session.id = new_id()
        self.session.peer = transport.get_extra_info("peername")
        self._set_rset_state()
        self._phase_began = self.loop.time()
        self._timeout_handle = self.loop.call_later(self._timeout(), self._tick)
        self._handler_coroutine = self.loop.create_task(self._handle_client())

    def connection_lost(self, error: Exception | None) -> None:
        if self._closed.done():
            return
        if self._timeout_handle is not None:
            self._timeout_handle.cancel()
        FlowControlMixin.connection_lost(self, error)
        self._closed.set_result(None)
        self._inbox.close()
        self.transport = None
        if self._handler_coroutine is not None:
            self._handler_coroutine.cancel()
        if (hook := self._handle_hooks.get("CLOSE")) is not None:
            hook(self)

    def eof_received(self) -> bool | None:
        """The client is gone, or says no more: what runs for it is cancelled, what it said is answered.

        Exim (4.96) sends QUIT right behind the final dot, ends its half of the connection and reads on: who has
        said goodbye is not gone.
        """
        assert self._handler_coroutine is not None
        if not self._is_handled:
            self._hang_up()  # cancelled before its first step, the handler would not do it
        elif not self._inbox.is_awaited and not self._inbox.says_goodbye:
            self._handler_coroutine.cancel()
        self._inbox.close()
        return self.session.ssl is None

    def data_received(self, data: bytes) -> None:
        if self._data is not None:
            rest = self._data.feed(data)
            if rest is None:
                return
            data = self._end_data(rest)
        if data:
            self._inbox.feed(data)
            if len(self._inbox) > PAUSE_AT and not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()

    def _timeout(self) -> float:
        if self._data is not None:
            return min(_RATE_WINDOW_S, self._limits.data_timeout_s)
        return self._limits.command_timeout_s or float(self._timeout_duration)

    def _tick(self) -> None:
        """One timer per connection, looking back at its phase instead of being set anew per command."""
        if self.transport is None:
            return
        waited = self.loop.time() - self._phase_began
        left = self._timeout() - (0.0 if self._busy else waited)
        if left <= 0 and self._data is not None and self._is_alive(self._data, waited):
            self._begin_phase()
            left = self._timeout()
        if left > 0:
            self._timeout_handle = self.loop.call_later(max(left, 0.01), self._tick)
            return
        self._say(b"421 4.4.2 Error: timeout exceeded")
        self._hang_up()

    def _is_alive(self, data: DataReader, waited: float) -> bool:
        """Whether the client may go on: silent not for too long, and when it speaks not too slowly."""
        received, data.received = data.received, 0
        if not received:
            self._silent_s += waited
            return self._silent_s < self._limits.data_timeout_s
        self._silent_s = 0.0
        return received >= self._limits.min_data_rate * waited

    def _begin_phase(self) -> None:
        self._phase_began = self.loop.time()

    # Replies: collected, and written when nothing more can be answered

    def _say(self, line: bytes) -> None:
        self._out.append(line + b"\r\n")
        if line[:2] == b"50":  # 500 to 504: the client's mistake
            self._errors += 1

    def _reply(self, reply: Reply) -> None:
        self._out.append(reply.to_bytes())
        if 500 <= reply.code <= 504:
            self._errors += 1

    async def push(self, status: str | bytes | Reply) -> None:
        """aiosmtpd's way to answer; hooks may return a Reply as well as text."""
        if isinstance(status, Reply):
            self._reply(status)
        else:
            self._say(status.encode("utf-8") if isinstance(status, str) else status)

    def _flush(self) -> None:
        if self._out and self.transport is not None:
            self._transport.write(b"".join(self._out) if len(self._out) > 1 else self._out[0])
        self._out.clear()

    def _before_wait(self) -> None:
        self._flush()
        if self._reading_paused:
            self._resume_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        if self.transport is not None:
            self._transport.resume_reading()

    def _hang_up(self) -> None:
        """No command is taken after this; a client that does not read our last words is cut."""
        if self.transport is None:
            return
        self._flush()
        self._writer.close()
        if self._transport.get_write_buffer_size():
            self._timeout_handle.cancel()
            self._timeout_handle = self.loop.call_later(min(_LAST_WORDS_S, self._timeout()), self._transport.abort)
        self.transport = None

    @property
    def in_mail(self) -> bool:
        """Whether content is on its way or in processing: not to be disturbed."""
        return self._busy or self._data is not None

    def goodbye(self, reply: Reply) -> None:
        """Say this last word and hang up."""
        if self.transport is not None:
            self._reply(reply)
            self._hang_up()

    def goodbye_after_mail(self, reply: Reply) -> None:
        """Say this last word when the mail in processing has its answer."""
        self._farewell = reply

    def _out_of_order(self, line: bytes) -> None:
        """Refuse what needs an earlier command; no mistake if that was refused and this already on its way."""
        self._say(line)
        if self._excused:
            self._excused -= 1
            self._errors -= 1

    def strike(self) -> None:
        """One more mistake of the client's; too many end the session."""
        self._errors += 1

    async def _more(self) -> None:
        """Wait for the client: first to read what we said, then to say more."""
        if self._paused:
            await self._drain_helper()
        await self._inbox.more()

    async def handle_exception(self, error: Exception) -> str | Reply:
        if hasattr(self.event_handler, "handle_exception"):
            status: str | Reply = await self.event_handler.handle_exception(error)
            return status
        if not isinstance(error, TLSSetupException):
            log.exception("session %s: unexpected error", self.session.id)
        return _INTERNAL

    # The command loop

    async def _handle_client(self) -> None:
        self._is_handled = True
        try:
            if self._proxy_timeout is not None and not await self._read_proxy():
                return
            status = await self._call_handler_hook("CONNECT")
            if status is not MISSING:
                await self.push(status)
                return self._hang_up()
            self._say(f"220 {self.hostname} {self.__ident__}".encode())
            while self.transport is not None:
                try:
                    line = self._inbox.take_line()
                except LineTooLong:
                    self._say(b"500 5.5.2 Command line too long")
                else:
                    if line is None:
                        await self._more()
                        continue
                    await self._execute(line)
                self._begin_phase()
                if self._errors >= self._limits.max_errors or self._idle_commands > self._limits.max_idle_commands:
                    self._say(b"421 4.7.0 Error: too many errors or idle commands")
                    return self._hang_up()
        except asyncio.CancelledError:
            self._hang_up()
            self._writer.close()
            raise
        except ConnectionError:
            self._hang_up()
        except Exception:
            log.exception("session %s: ended by an unexpected error", self.session.id)
            self._say(b"421 4.3.0 Error: internal problem, try again later")
            self._hang_up()

    async def _execute(self, line: bytes) -> None:
        """One command line, CRLF cut off."""
        verb_bytes, _, argument = line.partition(b" ")
        verb = verb_bytes.upper().decode("ascii", "replace")
        refusal = self._refuse_line(verb, line)
        if refusal is not None:
            return self._say(refusal)
        if self._enforce_call_limit and not self._within_call_limit(verb):
            self._say(f"421 4.7.0 {verb} sent too many times".encode())
            return self._hang_up()
        method = self._commands.get(verb)
        if method is None:
            return self._unknown(line)
        self._idle_commands = self._idle_commands + 1 if verb in _IDLE_COMMANDS else 0
        self._argument = argument.strip(b" \t")
        try:
            argument_text = self._argument.decode("utf-8", "replace") or None
            await method(self, argument_text)
        except Exception as error:
            if isinstance(error, ConnectionError) and self._inbox.at_eof:
                raise  # the client's own, not a hook's
            self._set_rset_state()
            await self._answer_exception(error)
            if isinstance(error, TLSSetupException):
                self._out.clear()
                self._hang_up()

    async def _answer_exception(self, error: Exception) -> None:
        try:
            await self.push(await self.handle_exception(error))
        except Exception:
            log.exception("session %s: the exception handler failed", self.session.id)
            self._reply(_INTERNAL)

    def _refuse_line(self, verb: str, line: bytes) -> bytes | None:
        if not line.isascii() and not self.enable_SMTPUTF8:
            return b"500 5.5.2 Error: strict ASCII mode" if verb.isascii() else b"500 5.5.2 Error: bad syntax"
        if not line or not verb.isascii():
            return b"500 5.5.2 Error: bad syntax"
        if (b"\0" in line or b"\r" in line or b"\n" in line) and verb not in ("MAIL", "RCPT"):
            return b"501 5.5.2 Error: NUL, CR or LF inside a command"
        limit = self.command_size_limits[verb] if self.session.extended_smtp else self.command_size_limit
        if len(line) > limit:
            return b"500 5.5.2 Command line too long"
        if not self._tls_handshake_okay and verb != "QUIT":
            return b"554 5.7.0 Command refused due to lack of security"
        if self.require_starttls and self.session.ssl is None and verb not in _BEFORE_TLS:
            return b"530 5.7.0 Must issue a STARTTLS command first"
        return None

    def _within_call_limit(self, verb: str) -> bool:
        left = self._call_limit.get(verb, int(self._call_limit_default))
        self._call_limit[verb] = left - 1
        return left >= 1

    def _unknown(self, line: bytes) -> None:
        if _HTTP.match(line):
            self._out.clear()
            return self._hang_up()
        self._say(b"500 5.5.2 Error: command not recognized")

    async def _read_proxy(self) -> bool:
        """The PROXY header, from a peer the handler trusts. False: hang up without a word."""
        hook = self._handle_hooks.get("OPEN")
        if hook is not None and not hook(self):
            self._hang_up()
            return False
        handle = self.loop.call_later(self._proxy_timeout, self._hang_up)
        try:
            self.session.proxy_data = await get_proxy(self._inbox)
        except asyncio.IncompleteReadError:
            pass
        finally:
            handle.cancel()
        if self.session.proxy_data:
            status = await self._call_handler_hook("PROXY", self.session.proxy_data)
            if status is not MISSING and status:
                self._begin_phase()
                return True
        self._hang_up()
        return False

    # Content

    async def _receive(self, message: Message) -> DataReader:
        """From 354 to the final dot; blocks go from the socket into the message in data_received."""
        if self._inbox.at_eof:
            raise ConnectionResetError
        self._flush()
        reader = DataReader(message, self.data_size_limit)
        self._begin_phase()
        rest = reader.feed(self._inbox.take_all()) if len(self._inbox) else None
        if rest is not None:
            self._inbox.feed(rest)
            return reader
        if self._reading_paused:
            self._resume_reading()
        self._silent_s = 0.0
        self._data, self._data_ended = reader, self.loop.create_future()
        self._timeout_handle.cancel()
        self._timeout_handle = self.loop.call_later(self._timeout(), self._tick)
        try:
            await self._data_ended
        finally:
            self._data = None
        return reader

    def _end_data(self, rest: bytes) -> bytes:
        assert self._data_ended is not None
        self._data = None
        self._busy = True
        if not self._data_ended.done():
            self._data_ended.set_result(None)
        return rest

    # TLS

    async def start_tls(self) -> None:
        """The handshake. Raises TLSSetupException when it fails; the connection is of no use then."""
        self._before_wait()
        self._inbox.take_all()  # RFC 3207 4.2: what came in the clear behind STARTTLS was never said
        timeout = min(_TLS_HANDSHAKE_S, self._timeout() / 2)  # before a 421 would go out in the clear
        try:
            transport = await self.loop.start_tls(
                self._transport, self, self.tls_context, server_side=True, ssl_handshake_timeout=timeout
            )
        except (OSError, ssl.SSLError) as error:
            log.info("session %s: TLS handshake failed: %s", self.session.id, type(error).__name__)
            self._end_unsecured()
            raise TLSSetupException from error
        if self.transport is None:  # we hung up meanwhile, which start_tls takes for a success
            self._end_unsecured()
            raise ConnectionResetError
        self._secured(transport)

    def _end_unsecured(self) -> None:
        """The loop does not always tell us that a connection ended during its handshake."""
        self._transport.abort()
        self.connection_lost(None)

    def _secured(self, transport: Any) -> None:
        """RFC 3207 4.2: after the handshake the session starts anew."""
        self.transport = self._transport = transport
        self._writer._transport = transport  # type: ignore[attr-defined]  # a new writer would let the old one close the socket
        self._over_ssl = True
        self._tls_protocol = transport  # aiosmtpd asks whether it is there
        self.described = None
        old, self.session = self.session, self._create_session()
        self.session.id, self.session.peer, self.session.proxy_data = old.id, old.peer, old.proxy_data
        self.session.ssl = {"ssl_object": transport.get_extra_info("ssl_object")}
        self._set_rset_state()
        self.client = replace(self.client, helo=None)
        hook = self._handle_hooks.get("STARTTLS")
        self._tls_handshake_okay = True if hook is None else hook(self, self.session, self.envelope)
