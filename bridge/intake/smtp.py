"""SMTP as our clients speak it: aiosmtpd's server class with its own command loop and DATA.

aiosmtpd gives sessions, hooks, AUTH and the PROXY header. Ours is what decides speed and safety:
commands are taken as whole lines from what has arrived and answered with one write, content goes
block by block from the socket into the message, addresses are parsed on the raw bytes, every
phase has its time limit, and an exception is a 451. Which mail is wanted is not known here: the
handler's hooks say so (`handle_MAIL`, `handle_RCPT`, `handle_PREDATA`, `handle_DATA`).
"""

from __future__ import annotations

import asyncio
import collections
import logging
import re
import ssl
from asyncio.streams import FlowControlMixin
from dataclasses import dataclass, replace
from typing import Any

from aiosmtpd.smtp import MISSING, SMTP, syntax
from aiosmtpd.smtp import Envelope as StockEnvelope

from bridge.intake import xforward
from bridge.intake.address import Path, parse_path
from bridge.intake.data import DataReader, Fault
from bridge.intake.inbox import PAUSE_AT, Inbox, LineTooLong
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client
from bridge.mail.transaction import new_id

log = logging.getLogger(__name__)

_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|TRACE) \S+ HTTP/|PRI \* HTTP/2")
_RATE_WINDOW_S = 30.0
_TLS_HANDSHAKE_S = 30.0
_EXTENDED = 1024  # what ESMTP parameters may add to a MAIL or RCPT line
_IDLE_COMMANDS = frozenset({"NOOP", "RSET", "VRFY", "HELP", "HELO", "EHLO", "LHLO", "EXPN", "XFORWARD"})
_BEFORE_TLS = frozenset({"NOOP", "EHLO", "HELO", "STARTTLS", "QUIT", "LHLO"})

_FAULTS = {
    Fault.BARE: Reply(550, "5.5.2", "Error: a CR, LF or NUL outside a line end is not accepted"),
    Fault.TOO_LARGE: Reply(552, "5.3.4", "Error: Too much mail data"),
    Fault.SATURATED: Reply(451, "4.3.2", "Too much mail in processing, try again later"),
    Fault.STORAGE: Reply(452, "4.3.1", "Insufficient system storage"),
}


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session may cost. Times in seconds."""

    command_timeout_s: float | None = None  # None: aiosmtpd's `timeout`
    data_timeout_s: float = 180.0
    min_data_rate: int = 256  # bytes per second over 30 s
    max_recipients: int = 1000
    max_errors: int = 20
    max_idle_commands: int = 100  # commands in a row that bring no mail nearer


class SmtpEnvelope(StockEnvelope):  # type: ignore[misc]
    """aiosmtpd's envelope over our message. `mail_from` is None before MAIL, "" for the null sender."""

    def __init__(self) -> None:
        self.mail_from: str | None = None
        self.mail_options: list[str] = []
        self.smtp_utf8 = False
        self.rcpt_tos: list[str] = []
        self.rcpt_options: list[str] = []
        self.rcpt_params: list[tuple[str, ...]] = []
        self.message: Message | None = None
        self._decode: str | None = None

    @property
    def original_content(self) -> bytes | None:
        return None if self.message is None else b"".join(self.message.chunks())

    @property
    def content(self) -> bytes | str | None:
        content = self.original_content
        return content.decode(self._decode, "surrogateescape") if content is not None and self._decode else content


class BridgeSMTP(SMTP):  # type: ignore[misc]
    """One connection. Make one, then `spawn` a copy for each connection: that is far cheaper."""

    smtp_name = "HELO"
    trusted = False  # believed about its clients: set by the handler when it connects

    def __init__(
        self, handler: Any, *, limits: SessionLimits | None = None, spool: Spool | None = None, **stock: Any
    ) -> None:
        super().__init__(handler, **stock)
        self._limits = limits or SessionLimits()
        self._spool = spool or Spool(1 << 30)
        self._has_auth = self._auth_required or not self._auth_require_tls or self._has_authenticator(stock)
        self._commands = {name: getattr(type(self), "smtp_" + name, None) for name in self._smtp_methods}
        self._renew()

    @staticmethod
    def _has_authenticator(stock: dict[str, Any]) -> bool:
        return stock.get("authenticator") is not None or stock.get("auth_callback") is not None

    def spawn(self) -> BridgeSMTP:
        """A fresh connection with the same settings, without aiosmtpd's costly set-up."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._renew()
        return twin

    def _renew(self) -> None:
        """All that belongs to one connection."""
        FlowControlMixin.__init__(self, loop=self.loop)
        self._closed = self.loop.create_future()
        self._inbox = self._reader = Inbox(self.loop, self._flush)
        self._out: list[bytes] = []
        self._data: DataReader | None = None
        self._data_ended: asyncio.Future[None] | None = None
        self._busy = False
        self._errors = 0
        self._idle_commands = 0
        self._argument = b""
        self.command_size_limits = collections.defaultdict(lambda: self.command_size_limit)
        self.client = Client()  # what we believe of the client behind this connection
        self.forwarded: Client | None = None  # XFORWARD's word, for one mail
        self._call_limit: dict[str, int] = dict(self._call_limit_base) if self._enforce_call_limit else {}

    def _create_envelope(self) -> SmtpEnvelope:
        envelope = SmtpEnvelope()
        if self._decode_data:
            envelope._decode = "utf-8" if self.enable_SMTPUTF8 else "ascii"
        return envelope

    # The connection's life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._transport = transport
        self._writer = asyncio.StreamWriter(transport, self, None, self.loop)  # type: ignore[arg-type]
        self.session = self._create_session()
        self.session.id = new_id()
        self.session.peer = transport.get_extra_info("peername")
        self._set_rset_state()
        self._phase_began = self.loop.time()
        self._timeout_handle = self.loop.call_later(self._timeout(), self._tick)
        self._handler_coroutine = self.loop.create_task(self._handle_client())

    def connection_lost(self, error: Exception | None) -> None:
        if self._timeout_handle is not None:
            self._timeout_handle.cancel()
        FlowControlMixin.connection_lost(self, error)
        if not self._closed.done():
            self._closed.set_result(None)
        self._inbox.close()
        self.transport = None
        if self._handler_coroutine is not None:
            self._handler_coroutine.cancel()

    def eof_received(self) -> bool | None:
        """The client is gone, or says no more: what runs for it is cancelled."""
        assert self._handler_coroutine is not None
        self._handler_coroutine.cancel()
        return self.session.ssl is None

    def data_received(self, data: bytes) -> None:
        if self._data is not None:
            rest = self._data.feed(data)
            if rest is None:
                return
            data = self._end_data(rest)
        if data:
            self._inbox.feed(data)
            if self._busy and len(self._inbox) > PAUSE_AT:
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
        if self._busy or waited < self._timeout() or (self._data is not None and self._is_fast_enough(waited)):
            left = self._timeout() if self._busy else max(self._timeout() - waited, 0.01)
            if self._data is not None and waited >= self._timeout():
                self._begin_phase()
                left = self._timeout()
            self._timeout_handle = self.loop.call_later(left, self._tick)
            return
        self._say(b"421 4.4.2 Error: timeout exceeded")
        self._hang_up()

    def _is_fast_enough(self, waited: float) -> bool:
        assert self._data is not None
        enough = self._data.received >= self._limits.min_data_rate * waited
        self._data.received = 0
        return enough

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

    def _hang_up(self) -> None:
        self._flush()
        self._writer.close()

    async def _more(self) -> None:
        """Wait for the client: first to read what we said, then to say more."""
        if self._paused:
            await self._drain_helper()
        await self._inbox.more()

    async def handle_exception(self, error: Exception) -> str | Reply:
        if hasattr(self.event_handler, "handle_exception"):
            status: str | Reply = await self.event_handler.handle_exception(error)
            return status
        log.exception("session %s: unexpected error", self.session.id)
        return Reply(451, "4.3.0", "Error: internal problem, try again later")

    # The command loop

    async def _handle_client(self) -> None:
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
                    continue
                if line is None:
                    await self._more()
                    continue
                await self._execute(line)
                self._begin_phase()
                if self._errors >= self._limits.max_errors or self._idle_commands > self._limits.max_idle_commands:
                    self._say(b"421 4.7.0 Error: too many errors or idle commands")
                    return self._hang_up()
        except (asyncio.CancelledError, ConnectionError):
            self._writer.close()
            raise
        except Exception:
            log.exception("session %s: ended by an unexpected error", self.session.id)
            self._writer.close()

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
            argument_text = self._argument.decode("utf-8", "surrogateescape") or None
            await method(self, argument_text)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            self._set_rset_state()
            await self._answer_exception(error)

    async def _answer_exception(self, error: Exception) -> None:
        try:
            await self.push(await self.handle_exception(error))
        except Exception:
            log.exception("session %s: the exception handler failed", self.session.id)
            self._reply(Reply(451, "4.3.0", "Error: internal problem, try again later"))

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
        left = self._call_limit.get(verb, self._call_limit_default)
        self._call_limit[verb] = left - 1
        return left >= 1

    def _unknown(self, line: bytes) -> None:
        if _HTTP.match(line):
            self._out.clear()
            return self._hang_up()
        self._say(b"500 5.5.2 Error: command not recognized")

    async def _read_proxy(self) -> bool:
        """The PROXY header, from a peer the handler trusts. False: hang up without a word."""
        handle = self.loop.call_later(self._proxy_timeout, self._transport.close)
        try:
            self.session.proxy_data = await _get_proxy(self._inbox)
        finally:
            handle.cancel()
        if self.session.proxy_data:
            status = await self._call_handler_hook("PROXY", self.session.proxy_data)
            if status is not MISSING and status:
                self._begin_phase()
                return True
        self._writer.close()
        return False

    # Greeting

    @syntax("HELO hostname")
    async def smtp_HELO(self, hostname: str | None) -> None:
        if not hostname:
            return self._say(b"501 5.5.4 Syntax: HELO hostname")
        self._set_rset_state()
        self.session.extended_smtp = False
        status = await self._call_handler_hook("HELO", hostname)
        if status is MISSING:
            self.session.host_name = hostname
            status = f"250 {self.hostname}"
        return await self.push(status)

    @syntax("EHLO hostname")
    async def smtp_EHLO(self, hostname: str | None) -> None:
        if not hostname:
            return self._say(b"501 5.5.4 Syntax: " + self._greeting_verb() + b" hostname")
        self._set_rset_state()
        self.session.extended_smtp = True
        self.command_size_limits["MAIL"] = self.command_size_limits["RCPT"] = self.command_size_limit + _EXTENDED
        lines = self._extensions()
        if self._ehlo_hook_ver is None:
            self.session.host_name = hostname
            lines.append("250 HELP")
        elif self._ehlo_hook_ver == "old":
            for line in lines:
                self._say(line.encode())
            lines = [await self._call_handler_hook("EHLO", hostname)]
        else:
            lines = await self._call_handler_hook("EHLO", hostname, [*lines, "250 HELP"])
        for line in lines:
            await self.push(line)
        return None

    def _greeting_verb(self) -> bytes:
        return b"EHLO"

    def _extensions(self) -> list[str]:
        lines = [self.hostname, "PIPELINING", "ENHANCEDSTATUSCODES", "DSN"]
        if self.data_size_limit:
            lines.append(f"SIZE {self.data_size_limit}")
        if not self._decode_data:
            lines.append("8BITMIME")
        if self.enable_SMTPUTF8:
            lines.append("SMTPUTF8")
        if self.tls_context and self.session.ssl is None:
            lines.append("STARTTLS")
        if self._has_auth and (not self._auth_require_tls or self.session.ssl is not None):
            lines.append("AUTH " + " ".join(sorted(self._auth_methods)))
        if self.trusted:
            lines.append("XFORWARD " + " ".join(xforward.XFORWARD_NAMES))
            lines.append("XCLIENT " + " ".join(xforward.XCLIENT_NAMES))
        return ["250-" + line for line in lines]

    # What a trusted mail server says of its client

    @syntax("XFORWARD attribute=value ...", when="trusted")
    async def smtp_XFORWARD(self, arg: str | None) -> None:
        client = self._told(self.forwarded or Client(), xforward.XFORWARD_NAMES)
        if client is not None:
            self.forwarded = client
            self._say(b"250 2.0.0 Ok")

    @syntax("XCLIENT attribute=value ...", when="trusted")
    async def smtp_XCLIENT(self, arg: str | None) -> None:
        client = self._told(self.client, xforward.XCLIENT_NAMES)
        if client is None:
            return
        self.client = client
        self.session.host_name = client.helo
        self.session.extended_smtp = client.protocol != "SMTP"
        self._set_rset_state()
        self._say(f"220 {self.hostname} {self.__ident__}".encode())

    def _told(self, client: Client, names: tuple[str, ...]) -> Client | None:
        """The client with the command's attributes, or None and a refusal said."""
        if not self.trusted:
            return self._say(b"550 5.7.0 Error: insufficient authorization")
        if self.envelope.mail_from is not None:
            return self._say(b"503 5.5.1 Error: MAIL transaction in progress")
        try:
            return xforward.apply(client, self._argument, names)
        except xforward.BadAttribute:
            return self._say(b"501 5.5.4 Error: bad attribute name or value")

    # The mail

    @syntax("MAIL FROM: <address>", extended=" [SP <mail-parameters>]")
    async def smtp_MAIL(self, arg: str | None) -> None:
        if await self.check_helo_needed(self.smtp_name) or await self.check_auth_needed("MAIL"):
            return
        path = self._path(b"FROM:", "Syntax: MAIL FROM: <address>")
        if isinstance(path, Reply):
            return self._reply(path)
        if self.envelope.mail_from is not None:
            return self._say(b"503 5.5.1 Error: nested MAIL command")
        refusal = self._refuse_mail_params(path)
        if refusal is not None:
            return self._reply(refusal)
        status = await self._call_handler_hook("MAIL", path.address, list(path.as_sent))
        if status is MISSING:
            self.envelope.mail_from = path.address
            self.envelope.mail_options.extend(path.as_sent)
            status = "250 2.1.0 OK"
        return await self.push(status)

    def _path(self, keyword: bytes, form: str) -> Path | Reply:
        if self.session.extended_smtp:
            form += " [SP <mail-parameters>]"
        if self._argument[: len(keyword)].upper() != keyword:
            return Reply(501, "5.5.4", form)
        path = parse_path(self._argument[len(keyword) :], syntax=form)
        if isinstance(path, Path) and path.params and not self.session.extended_smtp:
            return Reply(501, "5.5.4", form)
        return path

    def _refuse_mail_params(self, path: Path) -> Reply | None:
        params = dict(path.params)
        self.envelope.smtp_utf8 = "SMTPUTF8" in params
        for name, value in params.items():
            match name:
                case "SIZE" if value is None or not value.isdigit() or len(value) > 20:
                    return Reply(501, "5.5.4", "Syntax: MAIL FROM: <address> [SP <mail-parameters>]")
                case "SIZE" if self.data_size_limit and int(value or 0) > self.data_size_limit:
                    return Reply(552, "5.3.4", "Error: message size exceeds fixed maximum message size")
                case "BODY" if (value or "").upper() not in ("7BIT", "8BITMIME"):
                    return Reply(501, "5.5.4", "Error: BODY can only be one of 7BIT, 8BITMIME")
                case "SMTPUTF8" if value is not None:
                    return Reply(501, "5.5.4", "Error: SMTPUTF8 takes no arguments")
                case "SMTPUTF8" if not self.enable_SMTPUTF8:
                    return Reply(501, "5.5.4", "Error: SMTPUTF8 disabled")
                case "RET" if (value or "").upper() not in ("FULL", "HDRS"):
                    return Reply(501, "5.5.4", "Error: RET can only be one of FULL, HDRS")
                case "ENVID" | "AUTH" if value is None:
                    return Reply(501, "5.5.4", f"Error: {name} needs a value")
                case "SIZE" | "BODY" | "SMTPUTF8" | "RET" | "ENVID" | "AUTH":
                    continue
                case _:
                    return Reply(555, "5.5.4", "MAIL FROM parameters not recognized or not implemented")
        return self._refuse_utf8(path.address)

    def _refuse_utf8(self, address: str) -> Reply | None:
        if address.isascii() or self.envelope.smtp_utf8:
            return None
        return Reply(550, "5.6.7", "Error: a non-ASCII address needs SMTPUTF8")

    @syntax("RCPT TO: <address>", extended=" [SP <mail-parameters>]")
    async def smtp_RCPT(self, arg: str | None) -> None:
        if await self.check_helo_needed(self.smtp_name) or await self.check_auth_needed("RCPT"):
            return
        if self.envelope.mail_from is None:
            return self._say(b"503 5.5.1 Error: need MAIL command")
        path = self._path(b"TO:", "Syntax: RCPT TO: <address>")
        if isinstance(path, Reply):
            return self._reply(path)
        refusal = self._refuse_recipient(path)
        if refusal is not None:
            return self._reply(refusal)
        status = await self._call_handler_hook("RCPT", path.address, list(path.as_sent))
        if status is MISSING:
            self.envelope.rcpt_tos.append(path.address)
            self.envelope.rcpt_options.extend(path.as_sent)
            self.envelope.rcpt_params.append(path.as_sent)
            status = "250 2.1.5 OK"
        return await self.push(status)

    def _refuse_recipient(self, path: Path) -> Reply | None:
        if not path.address:
            return Reply(501, "5.1.3", "Syntax: RCPT TO: <address>")
        for name, value in path.params:
            if name not in ("NOTIFY", "ORCPT"):
                return Reply(555, "5.5.4", "RCPT TO parameters not recognized or not implemented")
            if value is None:
                return Reply(501, "5.5.4", f"Error: {name} needs a value")
        if len(self.envelope.rcpt_tos) >= self._limits.max_recipients:
            return Reply(452, "4.5.3", "Error: too many recipients")
        return self._refuse_utf8(path.address)

    @syntax("DATA")
    async def smtp_DATA(self, arg: str | None) -> None:
        if await self.check_helo_needed(self.smtp_name) or await self.check_auth_needed("DATA"):
            return
        if not self.envelope.rcpt_tos:
            return self._say(b"503 5.5.1 Error: need RCPT command")
        if arg:
            return self._say(b"501 5.5.4 Syntax: DATA")
        status = await self._call_handler_hook("PREDATA")
        if status is not MISSING:
            self._set_rset_state()
            return await self.push(status)
        self._say(b"354 End data with <CR><LF>.<CR><LF>")
        message = Message(self._spool)
        try:
            fault = await self._receive(message)
            recipients = len(self.envelope.rcpt_tos)
            self.envelope.message = message
            status = _FAULTS[fault] if fault is not None else await self._process()
        finally:
            message.close()
            self._busy = False
            self._set_rset_state()
        if len(self._inbox) > PAUSE_AT:
            self._transport.resume_reading()
        return await self._answer_data(status, recipients)

    async def _answer_data(self, status: str | Reply, recipients: int) -> None:
        await self.push(status)

    async def _process(self) -> Any:
        if self._decode_data and not self.enable_SMTPUTF8 and not (self.envelope.original_content or b"").isascii():
            return "500 5.6.1 Error: strict ASCII mode"
        self._busy = True
        if "DATA" in self._handle_hooks:
            status = await self._call_handler_hook("DATA")
        else:
            status = await self._call_process_message()
        return "250 2.0.0 OK" if status is MISSING else status

    async def _call_process_message(self) -> Any:
        """aiosmtpd's deprecated hook, which its own suite still tries."""
        hook = getattr(self.event_handler, "process_message", None)
        if hook is None:
            return MISSING
        envelope = self.envelope
        status = hook(self.session.peer, envelope.mail_from, envelope.rcpt_tos, envelope.content)
        status = await status if asyncio.iscoroutine(status) else status
        return MISSING if status is None else status

    async def _receive(self, message: Message) -> Fault | None:
        """From 354 to the final dot; blocks go from the socket into the message in data_received."""
        self._flush()
        reader = DataReader(message, self.data_size_limit)
        self._begin_phase()
        rest = reader.feed(self._inbox.take_all()) if len(self._inbox) else None
        if rest is not None:
            self._inbox.feed(rest)
            return reader.fault
        self._data, self._data_ended = reader, self.loop.create_future()
        self._timeout_handle.cancel()
        self._timeout_handle = self.loop.call_later(self._timeout(), self._tick)
        try:
            await self._data_ended
        finally:
            self._data = None
        return reader.fault

    def _end_data(self, rest: bytes) -> bytes:
        assert self._data_ended is not None
        self._data = None
        if not self._data_ended.done():
            self._data_ended.set_result(None)
        return rest

    def _set_rset_state(self) -> None:
        """A new envelope; XFORWARD's word was for the last mail only."""
        self.envelope = self._create_envelope()
        self.forwarded = None

    @syntax("RSET")
    async def smtp_RSET(self, arg: str | None) -> None:
        if arg:
            return self._say(b"501 5.5.4 Syntax: RSET")
        self._set_rset_state()
        status = await self._call_handler_hook("RSET")
        return await self.push("250 2.0.0 OK" if status is MISSING else status)

    @syntax("NOOP [ignored]")
    async def smtp_NOOP(self, arg: str | None) -> None:
        status = await self._call_handler_hook("NOOP", arg)
        await self.push("250 2.0.0 OK" if status is MISSING else status)

    @syntax("QUIT")
    async def smtp_QUIT(self, arg: str | None) -> None:
        if arg:
            return self._say(b"501 5.5.4 Syntax: QUIT")
        status = await self._call_handler_hook("QUIT")
        await self.push("221 2.0.0 Bye" if status is MISSING else status)
        self._hang_up()
        raise asyncio.CancelledError

    @syntax("STARTTLS", when="tls_context")
    async def smtp_STARTTLS(self, arg: str | None) -> None:
        if arg:
            return self._say(b"501 5.5.4 Syntax: STARTTLS")
        if not self.tls_context or self.session.ssl is not None:
            return self._say(b"454 4.7.0 TLS not available")
        self._say(b"220 2.0.0 Ready to start TLS")
        self._flush()
        self._inbox.take_all()  # RFC 3207 4.2: what came in the clear behind STARTTLS was never said
        try:
            transport = await self.loop.start_tls(
                self._transport, self, self.tls_context, server_side=True, ssl_handshake_timeout=_TLS_HANDSHAKE_S
            )
        except (OSError, ssl.SSLError) as error:
            log.info("session %s: TLS handshake failed: %s", self.session.id, type(error).__name__)
            self._writer.close()
            raise asyncio.CancelledError from error
        self._secured(transport)
        return None

    def _secured(self, transport: Any) -> None:
        """RFC 3207 4.2: after the handshake the session starts anew."""
        self.transport = self._transport = transport
        self._writer = asyncio.StreamWriter(transport, self, None, self.loop)  # type: ignore[arg-type]
        self._over_ssl = True
        old, self.session = self.session, self._create_session()
        self.session.id, self.session.peer, self.session.proxy_data = old.id, old.peer, old.proxy_data
        self.session.ssl = {"ssl_object": transport.get_extra_info("ssl_object")}
        self._set_rset_state()
        self.client = replace(self.client, helo=None)
        hook = self._handle_hooks.get("STARTTLS")
        self._tls_handshake_okay = True if hook is None else hook(self, self.session, self.envelope)


async def _get_proxy(inbox: Inbox) -> Any:
    from aiosmtpd.proxy_protocol import get_proxy

    return await get_proxy(inbox)
