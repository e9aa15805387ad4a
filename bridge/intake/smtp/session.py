"""The SMTP or LMTP session as a state machine: commands in, replies and effects out.

    command ──> a method ──> replies (collected in `replies`) and at most one Effect
                                Ask            let the handler decide, then continue with `then`
                                ReadContent    the client sends the mail now, up to the final dot
                                StartTls       make the TLS handshake, then call `secured`
                                Authenticate   let aiosmtpd run AUTH
                                Close          end the connection

Knows no socket, no event loop and no clock: `connection` performs the effects. `commands` recognises each command and
its arguments, and calls the methods here. Nor does it decide which mail is wanted: the handler's hooks do that
(`handle_MAIL`, `handle_RCPT`, `handle_PREDATA`, `handle_DATA`, ...). A hook that returns MISSING leaves the answer to
us; anything else is the reply, or for `handle_DATA` the filter's outcome. With `is_per_recipient`, that may be a tuple
of replies, one for each recipient.

Replies carry enhanced status codes, and XFORWARD and XCLIENT are accepted from trusted clients only. If this is wrong,
mail is lost, duplicated, or judged by the wrong client's address.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from aiosmtpd.smtp import MISSING
from aiosmtpd.smtp import Session as StockSession

from bridge.filter.outcome import Outcome
from bridge.filter.policy import BARE, NO_STORAGE, SATURATED
from bridge.intake.smtp import replies
from bridge.intake.smtp.data import DataReader, Fault
from bridge.intake.smtp.effects import Ask, Authenticate, Close, Effect, ReadContent, StartTls
from bridge.intake.smtp.ehlo import ehlo_reply, extensions
from bridge.intake.smtp.envelope import SmtpEnvelope
from bridge.intake.smtp.parameters import TOO_LARGE, declared_size, refuse_of_mail, refuse_of_rcpt
from bridge.intake.smtp.paths import Path
from bridge.intake.smtp.reply_per_recipient import replies_to_dot
from bridge.intake.smtp.session_settings import SessionSettings
from bridge.mail.address import LoggedAddress
from bridge.mail.envelope import max_recipient_bytes
from bridge.mail.reply import Reply
from bridge.mail.session import UNKNOWN_CLIENT, Client, Session
from bridge.mail.transaction import new_id

log = logging.getLogger(__name__)

_FAULTS = {
    Fault.BARE: BARE,
    Fault.TOO_LARGE: Reply(552, "5.3.4", "Error: Too much mail data"),
    Fault.SATURATED: SATURATED,
    Fault.STORAGE: NO_STORAGE,
}
_LIMITS = {Fault.TOO_LARGE: "max_message_size", Fault.SATURATED: "max_bytes_in_processing"}


CLOSE = Close()
_READ_CONTENT, _START_TLS = ReadContent(), StartTls()


class SmtpSession(StockSession):
    """One client's session: what it has said so far. Handlers written for aiosmtpd know it as their `session`."""

    __slots__ = (
        *("_excused", "_id", "calls_left", "client", "described", "envelope", "errors"),
        *("extended_smtp", "forwarded", "host_name", "idle_commands", "introduced", "is_for_others", "is_tls_accepted"),
        *("mails", "peer", "peer_address", "replies", "settings", "trusted"),
    )

    # aiosmtpd sets these on each session, but few sessions need them.
    ssl: dict[str, Any] | None = None
    proxy_data: Any = None
    auth_data: Any = None
    authenticated: bool | None = None
    _login_data: Any = None
    _own_client: Client | None = None  # before XCLIENT

    def __init__(self, settings: SessionSettings, peer: Any = None) -> None:
        self.settings = settings
        self.peer = peer  # as the transport names it
        self.peer_address: str | None = None  # its bare address; None on a unix socket
        self.replies: list[bytes] = []  # not yet written
        self.host_name: str | None = None  # from HELO; None until then
        self.extended_smtp = False
        self.envelope = SmtpEnvelope(settings.content_encoding)
        self.is_tls_accepted = True  # False: the handler refuses the client's certificate
        self.trusted = False  # may name its own clients; the handler sets this when a client connects
        self.client = UNKNOWN_CLIENT  # the client behind this connection, as far as we trust what we were told
        self.introduced = False  # `client` comes from XCLIENT
        self.forwarded: Client | None = None  # from XFORWARD, for one mail
        self.described: tuple[Any, Session] | None = None  # the handler's description of this session, and its source
        self.errors = 0
        self.is_for_others = False  # the last command passed on what others told the client, a mail server
        self.idle_commands = 0  # in a row
        self.mails = 0
        self._excused = 0  # 503s that a pipelining client could not avoid
        self.calls_left = None if settings.call_limits is None else dict(settings.call_limits)
        self._id = ""

    @property
    def id(self) -> str:
        """Made when it is first needed."""
        if not self._id:
            self._id = new_id()
        return self._id

    @property
    def is_per_recipient(self) -> bool:
        """Whether the final dot of the current mail is answered with one reply for each recipient."""
        return self.settings.is_lmtp or self.envelope.prdr

    @property
    def is_blamed(self) -> bool:
        """Whether a mistake in the last command is the client's own.

        A trusted mail server passes on what others tell it, and would take being cut off for an outage.
        """
        return not (self.is_for_others and self.trusted)

    # Replies

    def answer(self, status: str | bytes | Reply) -> None:
        """Add a reply: a Reply, or a line of text without CRLF."""
        if isinstance(status, Reply):
            self.replies.append(status.to_bytes())
            if 500 <= status.code <= 504 and self.is_blamed:  # the client's mistake
                self.errors += 1
        else:
            line = status.encode("utf-8") if isinstance(status, str) else status
            self.replies.append(line + b"\r\n")
            if line[:2] == b"50" and self.is_blamed:
                self.errors += 1

    def refuse(self, reply: Reply) -> Effect | None:
        """The reply is all that follows from a command."""
        self.answer(reply)
        return None

    def _refuse_out_of_order(self, reply: Reply) -> None:
        """For a command that needs an earlier one: not a mistake if that was refused while this was on its way."""
        errors = self.errors
        self.answer(reply)
        if self._excused:
            self._excused -= 1
            self.errors = errors

    def excuse(self, count: int) -> None:
        """Do not count the next `count` commands out of order: the client may have sent them already."""
        self._excused = max(self._excused, count)

    def strike(self) -> None:
        """Count a mistake of the client; too many end the session."""
        self.errors += 1

    # From the connection

    def greet(self, status: Any, _: object = ()) -> Effect | None:
        """The client has connected, and the handler said this about it."""
        if status is MISSING:
            self.replies.append(self.settings.banner)
            return None
        self.answer(status)
        return CLOSE

    def secured(self, ssl_object: Any) -> None:
        """RFC 3207 4.2: after the handshake, the session starts again."""
        self.host_name, self.extended_smtp = None, False
        self.auth_data = self.authenticated = self._login_data = None
        self.ssl = {"ssl_object": ssl_object}
        self.described = None
        self.reset()
        if self._own_client is not None:  # an attacker on the path could have inserted a plain-text XCLIENT
            self.client, self.introduced, self._own_client = self._own_client, False, None
        self.client = replace(self.client, helo=None)

    def reset(self) -> None:
        """A new envelope if the last one was used; what XFORWARD said was for the last mail only."""
        if self.envelope.mail_from is not None:
            self.envelope = SmtpEnvelope(self.settings.content_encoding)
        self.forwarded = None

    def check_patience(self) -> Effect | None:
        """After each command: has the client made too many mistakes, or sent too many commands without a mail?"""
        limits = self.settings.limits
        if self.errors >= limits.max_errors:
            limit = "max_errors"
        elif self.idle_commands > limits.max_idle_commands:
            limit = "idle_commands"
        else:
            return None
        self.settings.on_limit(limit)
        self.answer(replies.EXHAUSTED)
        return CLOSE

    def receive_long_line(self) -> None:
        """A line was so long that it was not kept."""
        self.settings.on_limit("line")
        self.answer(replies.LINE_TOO_LONG)

    # What must come before a command: these refuse it themselves

    def is_greeted(self) -> bool:
        """Has the client said HELO, and authenticated itself if it must?"""
        if self.host_name:
            return not self.settings.requires_auth or self.is_authenticated()
        self.answer(Reply(503, "5.5.1", f"Error: send {'LHLO' if self.settings.is_lmtp else 'HELO'} first"))
        return False

    def is_authenticated(self) -> bool:
        if not self.settings.requires_auth or self.authenticated:
            return True
        self.answer(replies.AUTH_FIRST)
        return False

    def has_sender(self) -> bool:
        if self.envelope.mail_from is not None:  # which was only possible after HELO
            return True
        if self.is_greeted():
            self._refuse_out_of_order(replies.NEEDS_MAIL)
        return False

    def has_recipients(self) -> bool:
        if self.envelope.rcpt_tos:
            return True
        if self.is_greeted():
            self._refuse_out_of_order(replies.NEEDS_RCPT)
        return False

    def may_name_client(self) -> bool:
        if not self.trusted:
            self.answer(replies.NOT_AUTHORIZED)
        elif self.envelope.mail_from is not None:
            self.answer(replies.IN_TRANSACTION)
        else:
            return True
        return False

    # Greeting

    def helo(self, hostname: str | None) -> Effect | None:
        if not hostname:
            return self.refuse(Reply(501, "5.5.4", "Syntax: HELO hostname"))
        self.reset()
        self.extended_smtp = False
        return Ask("HELO", SmtpSession._greet_back, (hostname,))

    def _greet_back(self, status: Any, arguments: tuple[str]) -> None:
        if status is MISSING:
            (self.host_name,) = arguments
            status = f"250 {self.settings.hostname}"
        self.answer(status)

    def ehlo(self, hostname: str | None) -> Effect | None:
        settings, is_secure = self.settings, self.ssl is not None
        if not hostname:
            return self.refuse(Reply(501, "5.5.4", f"Syntax: {'LHLO' if settings.is_lmtp else 'EHLO'} hostname"))
        self.reset()
        self.extended_smtp = True
        if settings.ehlo_hook is None:
            self.host_name = hostname
            self.replies.append(ehlo_reply(settings, is_secure=is_secure, is_trusted=self.trusted))
            return None
        lines = extensions(settings, is_secure=is_secure, is_trusted=self.trusted)
        if settings.ehlo_hook == "new":
            return Ask("EHLO", SmtpSession._announce, (hostname, [*lines, "250 HELP"]))
        self._announce(lines)
        return Ask("EHLO", SmtpSession._say, (hostname,))

    def _announce(self, lines: Iterable[str | Reply], _: object = ()) -> None:
        for line in lines:
            self.answer(line)

    def _say(self, line: str | Reply, _: object) -> None:
        self.answer(line)

    def say_lmtp(self, _: str | None) -> Effect | None:
        return self.refuse(replies.IS_LMTP)

    # What a trusted mail server says about its client

    def xforward(self, client: Client) -> None:
        self.forwarded = client
        self.answer(b"250 2.0.0 Ok")

    def xclient(self, client: Client) -> None:
        if not self.introduced:
            self._own_client = self.client
        self.client, self.introduced = client, True
        self.host_name = client.helo
        self.extended_smtp = client.protocol != "SMTP"
        self.reset()
        self.replies.append(self.settings.banner)

    # The mail. `unchecked`: the path whose parameters must be checked; None if the fast path has recognised the line

    def mail(self, address: str, options: list[str], unchecked: Path | None = None) -> Effect | None:
        envelope = self.envelope
        if envelope.mail_from is not None:
            return self.refuse(replies.NESTED_MAIL)
        if unchecked is None:
            envelope.smtp_utf8 = envelope.prdr = False
        elif (refusal := self._take_parameters(unchecked)) is not None:
            if refusal is TOO_LARGE:
                return Ask("OVERSIZE", SmtpSession._refuse_oversize, (address, declared_size(unchecked)))
            return self.refuse(refusal)
        return Ask("MAIL", SmtpSession._begin_mail, (address, options))

    def _take_parameters(self, path: Path) -> Reply | None:
        """Note what the parameters of MAIL ask for. Returns the refusal if one of them cannot be accepted."""
        settings, names = self.settings, [name for name, _ in path.params]
        self.envelope.smtp_utf8 = "SMTPUTF8" in names
        self.envelope.prdr = "PRDR" in names
        refusal = refuse_of_mail(path, settings.hidden, settings.max_message_size, settings.takes_utf8)
        if refusal is TOO_LARGE:
            settings.on_limit("max_message_size")
        return refusal or self._refuse_utf8(path)

    def _refuse_oversize(self, status: Any, _: object) -> None:
        self.answer(TOO_LARGE if status is MISSING else status)

    def _refuse_utf8(self, path: Path) -> Reply | None:
        return None if self.envelope.smtp_utf8 or path.is_ascii else replies.NEEDS_SMTPUTF8

    def _begin_mail(self, status: Any, arguments: tuple[str, list[str]]) -> None:
        if status is MISSING:
            envelope = self.envelope
            envelope.mail_from, options = arguments
            if envelope.prdr:  # concerns only this client and us, not the next hop
                options = [option for option in options if option.upper() != "PRDR"]
            envelope.mail_options = options
            return self.replies.append(b"250 2.1.0 OK\r\n")
        if isinstance(status, Reply) and status.is_temporary:
            self._excused = self.settings.limits.max_recipients + 1  # its RCPTs and DATA may be on their way
        return self.answer(status)

    def rcpt(self, address: str, options: list[str], unchecked: Path | None = None) -> Effect | None:
        refusal = self._refuse_rcpt(address, unchecked)
        if refusal is not None:
            return self.refuse(refusal)
        return Ask("RCPT", SmtpSession._add_recipient, (address, options))

    def _refuse_rcpt(self, address: str, unchecked: Path | None) -> Reply | None:
        if unchecked is not None:
            if not unchecked.address:
                return replies.EMPTY_RECIPIENT
            if unchecked.params and (refusal := refuse_of_rcpt(unchecked, self.settings.hidden)) is not None:
                return refusal
        most = self.settings.limits.max_recipients
        if len(self.envelope.rcpt_tos) >= most or self.envelope.rcpt_bytes >= max_recipient_bytes(most):
            self.settings.on_limit("max_recipients")
            log.info("session %s: recipient <%s> refused: max_recipients", self.id, LoggedAddress(address))
            return replies.TOO_MANY_RECIPIENTS
        return None if unchecked is None else self._refuse_utf8(unchecked)

    def _add_recipient(self, status: Any, arguments: tuple[str, list[str]]) -> None:
        if status is not MISSING:
            return self.answer(status)
        (address, options), envelope = arguments, self.envelope
        envelope.rcpt_tos.append(address)
        envelope.rcpt_params.append(tuple(options))
        envelope.rcpt_bytes += len(address) + sum(map(len, options))
        return self.replies.append(b"250 2.1.5 OK\r\n")

    def data(self) -> Effect | None:
        return _ASK_BEFORE_CONTENT

    def _begin_content(self, status: Any, _: object) -> Effect | None:
        if status is not MISSING:
            self.reset()
            return self.refuse(status)
        self.replies.append(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        return _READ_CONTENT

    def receive_content(self, content: DataReader) -> Ask | Reply:
        """The final dot has come: the question to the handler, or the refusal; then call `answer_mail`."""
        self.mails += 1
        self.envelope.message = content.message
        if content.fault is not None:
            if (limit := _LIMITS.get(content.fault)) is not None:
                self.settings.on_limit(limit)
            refusal = _FAULTS[content.fault]
            return Ask("REFUSED", SmtpSession.answer_mail, (refusal, content.total))
        if self.settings.content_encoding == "ascii" and not (self.envelope.original_content or b"").isascii():
            return replies.STRICT_ASCII_CONTENT
        self.errors = 0  # a client that brings mail may make a mistake now and then
        return _ASK_ABOUT_CONTENT

    def answer_mail(self, status: Any, arguments: tuple[Reply, int] | tuple[()] = ()) -> None:
        """Answer with what the handler decided; then this mail is over."""
        envelope, is_per_recipient = self.envelope, self.is_per_recipient
        self.reset()
        if isinstance(status, Outcome):
            status = status.replies or status.reply
        elif status is MISSING:
            status = arguments[0] if arguments else replies.OK
        if is_per_recipient:
            self._announce(replies_to_dot(status, len(envelope.rcpt_tos), is_prdr=envelope.prdr))
        else:
            assert not isinstance(status, tuple)
            self.answer(status)

    # Other commands

    def rset(self) -> Effect | None:
        self.reset()
        return Ask("RSET", SmtpSession._agree)

    def noop(self, text: str | None) -> Effect | None:
        return Ask("NOOP", SmtpSession._agree, (text,))

    def _agree(self, status: Any, _: object) -> None:
        self.answer(replies.OK if status is MISSING else status)

    def quit(self) -> Effect | None:
        return _ASK_AT_QUIT

    def _say_bye(self, status: Any, _: object) -> Effect | None:
        self.answer(replies.BYE if status is MISSING else status)
        return CLOSE

    def vrfy(self, address: str) -> Effect | None:
        return Ask("VRFY", SmtpSession._verify, (address,))

    def _verify(self, status: Any, _: object) -> None:
        self.answer(replies.NOT_VERIFIED if status is MISSING else status)

    def bdat(self, _: str | None) -> Effect | None:
        """A proxy that announces CHUNKING on its own lets clients send it. We would take its content for commands."""
        self.answer(replies.NO_BDAT)
        return CLOSE

    def expn(self, _: str | None) -> Effect | None:
        return self.refuse(replies.NO_EXPN)

    def auth(self, argument: str | None) -> Effect | None:
        return Authenticate(argument) if self.settings.auth_mechanisms is not None else self.refuse(replies.NO_AUTH)

    def starttls(self) -> Effect | None:
        if not self.settings.offers_tls or self.ssl is not None:
            return self.refuse(replies.NO_TLS)
        self.answer(replies.READY_FOR_TLS)
        return _START_TLS


# The effects of every mail that have no arguments are made only once.
_ASK_BEFORE_CONTENT = Ask("PREDATA", SmtpSession._begin_content)
_ASK_ABOUT_CONTENT = Ask("DATA", SmtpSession.answer_mail)
_ASK_AT_QUIT = Ask("QUIT", SmtpSession._say_bye)
