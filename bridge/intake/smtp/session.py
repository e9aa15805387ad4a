"""The SMTP or LMTP session as a state machine: command lines in, replies and effects out.

    line ──> receive_line ──> replies (collected in `replies`) and at most one Effect
                                Ask            let the handler decide, then continue with `then`
                                ReadContent    the client sends the mail now, up to the final dot
                                StartTls       make the TLS handshake, then call `secured`
                                Authenticate   let aiosmtpd run AUTH
                                Close          end the connection

Knows no socket, no event loop and no clock: `connection` performs the effects. Which mail is wanted is not decided
here either: the handler's hooks do that (`handle_MAIL`, `handle_RCPT`, `handle_PREDATA`, `handle_DATA`, ...). A hook
that returns MISSING leaves the answer to us; anything else is the reply, or for `handle_DATA` the filter's outcome.
Where `answers_each`, that may be a tuple of replies, one for each recipient.

The commands are a table at the end of this file. Addresses are parsed on the raw bytes, replies carry enhanced status
codes, and XFORWARD and XCLIENT are accepted from trusted clients only. If this is wrong, mail is lost, doubled,
or judged by the wrong client's address.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aiosmtpd.smtp import MISSING
from aiosmtpd.smtp import Session as StockSession

from bridge.filter.outcome import Outcome
from bridge.filter.policy import BARE, NO_STORAGE, SATURATED
from bridge.intake.smtp import replies, xforward
from bridge.intake.smtp.data import DataReader, Fault
from bridge.intake.smtp.effects import Ask, Authenticate, Close, Effect, ReadContent, StartTls
from bridge.intake.smtp.envelope import SmtpEnvelope
from bridge.intake.smtp.fast_path import recognise
from bridge.intake.smtp.parameters import TOO_LARGE, declared_size, refuse_of_mail, refuse_of_rcpt
from bridge.intake.smtp.paths import Path, parse_path
from bridge.intake.smtp.rules import SessionRules
from bridge.mail.reply import Reply, weightiest
from bridge.mail.session import Client, Session
from bridge.mail.transaction import new_id

log = logging.getLogger(__name__)

_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|TRACE) \S+ HTTP/|PRI \* HTTP/2")
_BEFORE_TLS = frozenset({"NOOP", "EHLO", "LHLO", "STARTTLS", "QUIT"})  # RFC 3207 4
_NUL, _CR, _LF = b"\0\r\n"  # as numbers, for `in` (see data.py)
_NOBODY = Client()


_PARAMETERS = " [SP <mail-parameters>]"
_FAULTS = {
    Fault.BARE: BARE,
    Fault.TOO_LARGE: Reply(552, "5.3.4", "Error: Too much mail data"),
    Fault.SATURATED: SATURATED,
    Fault.STORAGE: NO_STORAGE,
}
_LIMITS = {Fault.TOO_LARGE: "max_message_size", Fault.SATURATED: "max_bytes_in_processing"}


_READ_CONTENT, _START_TLS, _CLOSE = ReadContent(), StartTls(), Close()


class SmtpSession(StockSession):
    """One client's session: what it has said so far. Handlers written for aiosmtpd know it as their `session`."""

    __slots__ = (
        *("_calls_left", "_commands", "_excused", "_id", "client", "described", "envelope", "errors"),
        *("extended_smtp", "forwarded", "host_name", "idle_commands", "introduced", "is_tls_accepted", "mails"),
        *("peer", "peer_address", "replies", "rules", "trusted"),
    )

    # aiosmtpd sets these on each session, but few sessions need them.
    ssl: dict[str, Any] | None = None
    proxy_data: Any = None
    auth_data: Any = None
    authenticated: bool | None = None
    _login_data: Any = None

    def __init__(self, rules: SessionRules, peer: Any = None) -> None:
        self.rules = rules
        self.peer = peer  # as the transport names it
        self.peer_address: str | None = None  # its bare address; None on a unix socket
        self.replies: list[bytes] = []  # not yet written
        self.host_name: str | None = None  # from HELO; None until then
        self.extended_smtp = False
        self.envelope = SmtpEnvelope(rules.content_encoding)
        self.is_tls_accepted = True  # False: the handler refuses the client's certificate
        self.trusted = False  # may name its own clients; the handler sets this when a client connects
        self.client = _NOBODY  # the client behind this connection, as far as we trust what we were told
        self.introduced = False  # `client` comes from XCLIENT
        self.forwarded: Client | None = None  # from XFORWARD, for one mail
        self.described: tuple[Any, Session] | None = None  # the handler's description of this session, and its source
        self.errors = 0
        self.idle_commands = 0  # in a row
        self.mails = 0
        self._excused = 0  # 503s that a pipelining client could not avoid
        self._commands = _LMTP_COMMANDS if rules.is_lmtp else _SMTP_COMMANDS
        self._calls_left = None if rules.call_limits is None else dict(rules.call_limits)
        self._id = ""

    @property
    def id(self) -> str:
        """Made when it is first needed."""
        if not self._id:
            self._id = new_id()
        return self._id

    @property
    def answers_each(self) -> bool:
        """Whether the final dot of the current mail is answered with one reply for each recipient."""
        return self.rules.is_lmtp or self.envelope.prdr

    # Replies

    def answer(self, status: str | bytes | Reply) -> None:
        """Add a reply: a Reply, or a line of text without CRLF."""
        if isinstance(status, Reply):
            self.replies.append(status.to_bytes())
            if 500 <= status.code <= 504:  # the client's mistake
                self.errors += 1
        else:
            line = status.encode("utf-8") if isinstance(status, str) else status
            self.replies.append(line + b"\r\n")
            if line[:2] == b"50":
                self.errors += 1

    def _refuse(self, reply: Reply) -> Effect | None:
        """The reply is all that follows from a command."""
        self.answer(reply)
        return None

    def _refuse_out_of_order(self, reply: Reply) -> None:
        """For a command that needs an earlier one: no mistake if that was refused with this already on its way."""
        self.answer(reply)
        if self._excused:
            self._excused -= 1
            self.errors -= 1

    def excuse(self, count: int) -> None:
        """Do not count the next `count` commands out of order: the client may have sent them already."""
        self._excused = max(self._excused, count)

    def strike(self) -> None:
        """Count a mistake of the client; too many end the session."""
        self.errors += 1

    # From the connection

    def greet(self, status: Any) -> Effect | None:
        """The client has connected, and the handler said this of it."""
        if status is MISSING:
            self.replies.append(self.rules.banner)
            return None
        self.answer(status)
        return _CLOSE

    def secured(self, ssl_object: Any) -> None:
        """RFC 3207 4.2: after the handshake the session starts again."""
        self.host_name, self.extended_smtp = None, False
        self.auth_data = self.authenticated = self._login_data = None
        self.ssl = {"ssl_object": ssl_object}
        self.described = None
        self.reset()
        self.client = replace(self.client, helo=None)

    def reset(self) -> None:
        """A new envelope if the last one was used; what XFORWARD said was for the last mail only."""
        if self.envelope.mail_from is not None:
            self.envelope = SmtpEnvelope(self.rules.content_encoding)
        self.forwarded = None

    def check_patience(self) -> Effect | None:
        """After each command: has the client made too many mistakes, or too many commands without a mail?"""
        limits = self.rules.limits
        if self.errors >= limits.max_errors:
            limit = "max_errors"
        elif self.idle_commands > limits.max_idle_commands:
            limit = "idle_commands"
        else:
            return None
        self.rules.on_limit(limit)
        self.answer(replies.EXHAUSTED)
        return _CLOSE

    def receive_long_line(self) -> None:
        """A line was so long that it was not kept."""
        self.rules.on_limit("line")
        self.answer(replies.LINE_TOO_LONG)

    # The dispatcher

    def receive_line(self, line: bytes) -> Effect | None:
        """Execute one command line, without its CRLF."""
        rules, commands = self.rules, self._commands
        arguments: tuple[Any, ...] | None = None
        ordinary = recognise(line) if rules.uses_fast_path else None
        if ordinary is not None and (not ordinary[2] or (self.extended_smtp and rules.fast_path_takes_parameters)):
            verb, arguments, _ = ordinary
            command = commands[verb]
        else:
            verb, _, argument = line.partition(b" ")
            command = commands.get(verb) or commands.get(verb.upper(), _UNKNOWN)
            refusal = self._refuse_line(command, verb, line)
            if refusal is not None:
                return self._refuse(refusal)
            if self._calls_left is not None and not self._is_within_call_limit(verb):
                self.answer(b"421 4.7.0 %b sent too many times" % verb.upper())
                return _CLOSE
        if self.mails >= rules.limits.max_mails and command.name != "QUIT":
            rules.on_limit("max_mails_per_connection")
            self.answer(replies.TOO_MANY_MAILS)
            return _CLOSE
        if command is _UNKNOWN:
            return self._refuse_unknown(line)
        self.idle_commands = self.idle_commands + 1 if command.is_idle else 0
        if not command.is_allowed(self):
            return None
        if arguments is None:
            parsed = command.parse(self, argument.strip(b" \t"))
            if isinstance(parsed, Reply):
                return self._refuse(parsed)
            arguments = parsed
        return command.execute(self, *arguments)

    def _refuse_line(self, command: Command, word: bytes, line: bytes) -> Reply | None:
        """What is wrong with the line, whatever the command means."""
        if not line.isascii() and not self.rules.takes_utf8:
            return replies.STRICT_ASCII if word.isascii() else replies.BAD_SYNTAX
        if not line or not word.isascii():
            return replies.BAD_SYNTAX
        if (_NUL in line or _CR in line or _LF in line) and not command.parses_any_byte:
            return replies.BARE_BYTE
        if len(line) > self.rules.max_line(command.name, is_extended=self.extended_smtp):
            self.rules.on_limit("command")
            return replies.LINE_TOO_LONG
        if not self.is_tls_accepted and command.name != "QUIT":
            return replies.INSECURE
        if self.rules.requires_tls and self.ssl is None and command.name not in _BEFORE_TLS:
            return replies.STARTTLS_FIRST
        return None

    def _is_within_call_limit(self, word: bytes) -> bool:
        assert self._calls_left is not None
        verb = word.upper().decode("ascii")
        left = self._calls_left.get(verb, self.rules.default_call_limit)
        self._calls_left[verb] = left - 1
        return left >= 1

    def _refuse_unknown(self, line: bytes) -> Effect | None:
        if _HTTP.match(line):
            return Close(discards_replies=True)
        return self._refuse(replies.UNKNOWN_COMMAND)

    # What must come before a command: these refuse it themselves

    def _is_greeted(self) -> bool:
        """Has the client said HELO, and authenticated itself if it must?"""
        if self.host_name:
            return not self.rules.requires_auth or self._is_authenticated()
        self.answer(Reply(503, "5.5.1", f"Error: send {'LHLO' if self.rules.is_lmtp else 'HELO'} first"))
        return False

    def _is_authenticated(self) -> bool:
        if not self.rules.requires_auth or self.authenticated:
            return True
        self.answer(replies.AUTH_FIRST)
        return False

    def _has_sender(self) -> bool:
        if self.envelope.mail_from is not None:  # which was only possible after HELO
            return True
        if self._is_greeted():
            self._refuse_out_of_order(replies.NEEDS_MAIL)
        return False

    def _has_recipients(self) -> bool:
        if self.envelope.rcpt_tos:
            return True
        if self._is_greeted():
            self._refuse_out_of_order(replies.NEEDS_RCPT)
        return False

    def _may_name_client(self) -> bool:
        if not self.trusted:
            self.answer(replies.NOT_AUTHORIZED)
        elif self.envelope.mail_from is not None:
            self.answer(replies.IN_TRANSACTION)
        else:
            return True
        return False

    # Arguments

    def _text(self, argument: bytes) -> tuple[str | None]:
        return (argument.decode("utf-8", "replace") or None,)

    def _mail_path(self, argument: bytes) -> tuple[str, list[str], Path] | Reply:
        return self._path(b"FROM:", argument, "Syntax: MAIL FROM: <address>")

    def _rcpt_path(self, argument: bytes) -> tuple[str, list[str], Path] | Reply:
        return self._path(b"TO:", argument, "Syntax: RCPT TO: <address>")

    def _path(self, keyword: bytes, argument: bytes, form: str) -> tuple[str, list[str], Path] | Reply:
        syntax = form + _PARAMETERS if self.extended_smtp else form
        if argument[: len(keyword)].upper() != keyword:
            return Reply(501, "5.5.4", syntax)
        path = parse_path(argument[len(keyword) :], syntax=syntax)
        if isinstance(path, Reply):
            return path
        if path.params and not self.extended_smtp:
            return Reply(501, "5.5.4", form)
        limit = self.rules.local_part_limit
        if limit and len(path.address.rpartition("@")[0]) > limit:
            return replies.MALFORMED_ADDRESS
        return path.address, list(path.as_sent), path

    def _client_from(self, client: Client, argument: bytes, names: tuple[str, ...]) -> tuple[Client] | Reply:
        try:
            return (xforward.apply(client, argument, names),)
        except xforward.BadAttribute:
            return replies.BAD_ATTRIBUTE

    def _forwarded_client(self, argument: bytes) -> tuple[Client] | Reply:
        return self._client_from(self.forwarded or _NOBODY, argument, xforward.XFORWARD_NAMES)

    def _introduced_client(self, argument: bytes) -> tuple[Client] | Reply:
        return self._client_from(self.client, argument, xforward.XCLIENT_NAMES)

    def _verified_address(self, argument: bytes) -> tuple[str] | Reply:
        if not argument:
            return Reply(501, "5.5.4", "Syntax: VRFY <address>")
        path = parse_path(argument, syntax="Could not VRFY")
        return replies.CANNOT_VERIFY if isinstance(path, Reply) or not path.address else (path.address,)

    # Greeting

    def _helo(self, hostname: str | None) -> Effect | None:
        if not hostname:
            return self._refuse(Reply(501, "5.5.4", "Syntax: HELO hostname"))
        self.reset()
        self.extended_smtp = False
        return Ask("HELO", self._greet_back, (hostname,))

    def _greet_back(self, status: Any, hostname: str) -> None:
        if status is MISSING:
            self.host_name = hostname
            status = f"250 {self.rules.hostname}"
        self.answer(status)

    def _ehlo(self, hostname: str | None) -> Effect | None:
        rules, is_secure = self.rules, self.ssl is not None
        if not hostname:
            return self._refuse(Reply(501, "5.5.4", f"Syntax: {'LHLO' if rules.is_lmtp else 'EHLO'} hostname"))
        self.reset()
        self.extended_smtp = True
        if rules.ehlo_hook is None:
            self.host_name = hostname
            self.replies.append(rules.ehlo_reply(is_secure=is_secure, is_trusted=self.trusted))
            return None
        lines = rules.extensions(is_secure=is_secure, is_trusted=self.trusted)
        if rules.ehlo_hook == "new":
            return Ask("EHLO", self._announce, (hostname, [*lines, "250 HELP"]))
        self._announce(lines)
        return Ask("EHLO", lambda line, _: self.answer(line), (hostname,))

    def _announce(self, lines: Iterable[str | Reply], *_: Any) -> None:
        for line in lines:
            self.answer(line)

    def _say_lmtp(self, _: str | None) -> Effect | None:
        return self._refuse(replies.IS_LMTP)

    # What a trusted mail server says about its client

    def _xforward(self, client: Client) -> None:
        self.forwarded = client
        self.answer(b"250 2.0.0 Ok")

    def _xclient(self, client: Client) -> None:
        self.client, self.introduced = client, True
        self.host_name = client.helo
        self.extended_smtp = client.protocol != "SMTP"
        self.reset()
        self.replies.append(self.rules.banner)

    # The mail. `unchecked` is None if the fast path recognised the line: its parameters are correct

    def _mail(self, address: str, options: list[str], unchecked: Path | None = None) -> Effect | None:
        envelope = self.envelope
        if envelope.mail_from is not None:
            return self._refuse(replies.NESTED_MAIL)
        if unchecked is None:
            envelope.smtp_utf8 = envelope.prdr = False
        elif (refusal := self._refuse_mail(unchecked)) is not None:
            if refusal is TOO_LARGE:
                return Ask("OVERSIZE", self._refuse_oversize, (address, declared_size(unchecked)))
            return self._refuse(refusal)
        return Ask("MAIL", self._begin_mail, (address, options))

    def _refuse_mail(self, path: Path) -> Reply | None:
        rules, names = self.rules, [name for name, _ in path.params]
        self.envelope.smtp_utf8 = "SMTPUTF8" in names
        self.envelope.prdr = "PRDR" in names
        refusal = refuse_of_mail(path, rules.hidden, rules.max_message_size, rules.takes_utf8)
        if refusal is TOO_LARGE:
            rules.on_limit("max_message_size")
        return refusal or self._refuse_utf8(path)

    def _refuse_oversize(self, status: Any, *_: Any) -> None:
        self.answer(TOO_LARGE if status is MISSING else status)

    def _refuse_utf8(self, path: Path) -> Reply | None:
        return None if self.envelope.smtp_utf8 or path.is_ascii else replies.NEEDS_SMTPUTF8

    def _begin_mail(self, status: Any, sender: str, options: list[str]) -> None:
        if status is MISSING:
            envelope = self.envelope
            envelope.mail_from = sender
            if envelope.prdr:  # concerns only this client and us, not the next hop
                options = [option for option in options if option.upper() != "PRDR"]
            envelope.mail_options = options
            return self.replies.append(b"250 2.1.0 OK\r\n")
        if isinstance(status, Reply) and status.is_temporary:
            self._excused = self.rules.limits.max_recipients + 1  # its RCPTs and DATA may be on their way
        return self.answer(status)

    def _rcpt(self, address: str, options: list[str], unchecked: Path | None = None) -> Effect | None:
        refusal = self._refuse_rcpt(address, unchecked)
        if refusal is not None:
            return self._refuse(refusal)
        return Ask("RCPT", self._add_recipient, (address, options))

    def _refuse_rcpt(self, address: str, unchecked: Path | None) -> Reply | None:
        if unchecked is not None:
            if not unchecked.address:
                return replies.EMPTY_RECIPIENT
            if unchecked.params and (refusal := refuse_of_rcpt(unchecked, self.rules.hidden)) is not None:
                return refusal
        if len(self.envelope.rcpt_tos) >= self.rules.limits.max_recipients:
            self.rules.on_limit("max_recipients")
            log.info("session %s: recipient <%s> refused: max_recipients", self.id, address)
            return replies.TOO_MANY_RECIPIENTS
        return None if unchecked is None else self._refuse_utf8(unchecked)

    def _add_recipient(self, status: Any, address: str, options: list[str]) -> None:
        if status is not MISSING:
            return self.answer(status)
        self.envelope.rcpt_tos.append(address)
        self.envelope.rcpt_params.append(tuple(options))
        return self.replies.append(b"250 2.1.5 OK\r\n")

    def _data(self) -> Effect | None:
        return Ask("PREDATA", self._begin_content)

    def _begin_content(self, status: Any) -> Effect | None:
        if status is not MISSING:
            self.reset()
            return self._refuse(status)
        self.replies.append(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        return _READ_CONTENT

    def receive_content(self, content: DataReader) -> Ask | Reply:
        """The final dot has come: the question to the handler, or the refusal; then call `answer_mail`."""
        self.mails += 1
        self.envelope.message = content.message
        if content.fault is not None:
            if (limit := _LIMITS.get(content.fault)) is not None:
                self.rules.on_limit(limit)
            refusal = _FAULTS[content.fault]
            return Ask("REFUSED", self.answer_mail, (refusal, content.total))
        if self.rules.content_encoding == "ascii" and not (self.envelope.original_content or b"").isascii():
            return replies.STRICT_ASCII_CONTENT
        self.errors = 0  # a client that brings mail may make a mistake now and then
        return Ask("DATA", self.answer_mail)

    def answer_mail(self, status: Any, default: Reply = replies.OK, *_: Any) -> None:
        """With what the handler decided; then this mail is over."""
        recipients, is_prdr = len(self.envelope.rcpt_tos), self.envelope.prdr
        self.reset()
        if isinstance(status, Outcome):
            status = status.replies or status.reply
        elif status is MISSING:
            status = default
        if is_prdr:
            self._answer_prdr(status, recipients)
        elif self.rules.is_lmtp:
            self._announce(status if isinstance(status, tuple) else (status,) * recipients)
        else:
            assert not isinstance(status, tuple)
            self.answer(status)

    def _answer_prdr(self, status: str | Reply | tuple[Reply, ...], recipients: int) -> None:
        """draft-hall-prdr: 353, one reply for each accepted recipient, one for the whole mail."""
        self.answer(replies.PRDR_BEGINS)
        if isinstance(status, tuple):
            self._announce((*status, _summary(status)))
        else:
            self._announce((status,) * (recipients + 1))

    # Other commands

    def _rset(self) -> Effect | None:
        self.reset()
        return Ask("RSET", self._agree)

    def _noop(self, text: str | None) -> Effect | None:
        return Ask("NOOP", self._agree, (text,))

    def _agree(self, status: Any, *_: Any) -> None:
        self.answer(replies.OK if status is MISSING else status)

    def _quit(self) -> Effect | None:
        return Ask("QUIT", self._say_bye)

    def _say_bye(self, status: Any) -> Effect | None:
        self.answer(replies.BYE if status is MISSING else status)
        return _CLOSE

    def _vrfy(self, address: str) -> Effect | None:
        return Ask("VRFY", self._verify, (address,))

    def _verify(self, status: Any, _: str) -> None:
        self.answer(replies.NOT_VERIFIED if status is MISSING else status)

    def _expn(self, _: str | None) -> Effect | None:
        return self._refuse(replies.NO_EXPN)

    def _help(self, verb: str | None) -> None:
        listed = {
            command.name: command for command in self._commands.values() if command.syntax and command.is_listed(self)
        }
        command = listed.get((verb or "").upper())
        if command is not None:
            syntax = command.syntax + (command.extended_syntax if self.extended_smtp else "")
            self.answer(Reply(250, "2.0.0", f"Syntax: {syntax}"))
        else:
            names = "Supported commands: " + " ".join(sorted(listed))
            self.answer(Reply(501, "5.5.4", names) if verb else Reply(250, "2.0.0", names))

    def _auth(self, argument: str | None) -> Effect | None:
        return Authenticate(argument) if self.rules.auth_mechanisms is not None else self._refuse(replies.NO_AUTH)

    def _starttls(self) -> Effect | None:
        if not self.rules.offers_tls or self.ssl is not None:
            return self._refuse(replies.NO_TLS)
        self.answer(replies.READY_FOR_TLS)
        return _START_TLS


def _summary(each: tuple[Reply, ...]) -> Reply:
    """PRDR's last reply. Exim takes a refusal here as one for all recipients, so one acceptance is enough."""
    accepted = sum(reply.is_success for reply in each)
    if 0 < accepted < len(each):
        return Reply(250, "2.0.0", f"Ok: accepted for {accepted} of {len(each)} recipients")
    return weightiest(each) or each[0]


# The command table


def _no_argument(verb: str) -> Callable[[SmtpSession, bytes], tuple[()] | Reply]:
    refusal = Reply(501, "5.5.4", f"Syntax: {verb}")
    return lambda _, argument: refusal if argument else ()


def _always(_: SmtpSession) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Command:
    """One verb. In this order: `is_allowed`, `parse` (skipped on the fast path), `execute` with what it returned."""

    name: str
    execute: Callable[..., Effect | None]
    parse: Callable[[SmtpSession, bytes], tuple[Any, ...] | Reply] = SmtpSession._text
    is_allowed: Callable[[SmtpSession], bool] = _always  # says itself why not
    syntax: str = ""  # for HELP; "": not listed
    extended_syntax: str = ""
    is_listed: Callable[[SmtpSession], bool] = _always
    is_idle: bool = True  # brings no mail closer
    parses_any_byte: bool = False  # its own parser refuses CR, LF and NUL, with a better reply


_S = SmtpSession
_BOTH = (
    Command(
        *("MAIL", _S._mail, _S._mail_path, _S._is_greeted, "MAIL FROM: <address>", _PARAMETERS),
        is_idle=False,
        parses_any_byte=True,
    ),
    Command(
        *("RCPT", _S._rcpt, _S._rcpt_path, _S._has_sender, "RCPT TO: <address>", _PARAMETERS),
        is_idle=False,
        parses_any_byte=True,
    ),
    Command("DATA", _S._data, _no_argument("DATA"), _S._has_recipients, "DATA", is_idle=False),
    Command("QUIT", _S._quit, _no_argument("QUIT"), syntax="QUIT", is_idle=False),
    Command("RSET", _S._rset, _no_argument("RSET"), syntax="RSET"),
    Command("NOOP", _S._noop, syntax="NOOP [ignored]"),
    Command("VRFY", _S._vrfy, _S._verified_address, _S._is_authenticated, "VRFY <address>"),
    Command("EXPN", _S._expn),
    Command("HELP", _S._help, is_allowed=_S._is_authenticated, syntax="HELP [command]"),
    Command("AUTH", _S._auth, syntax="AUTH <mechanism>"),
    Command(
        *("STARTTLS", _S._starttls, _no_argument("STARTTLS")),
        syntax="STARTTLS",
        is_listed=lambda session: session.rules.offers_tls,
    ),
    Command(
        *("XFORWARD", _S._xforward, _S._forwarded_client, _S._may_name_client, "XFORWARD attribute=value ..."),
        is_listed=lambda session: session.trusted,
    ),
    Command(
        *("XCLIENT", _S._xclient, _S._introduced_client, _S._may_name_client, "XCLIENT attribute=value ..."),
        is_listed=lambda session: session.trusted,
    ),
)
_SMTP = (
    Command("HELO", _S._helo, syntax="HELO hostname"),
    Command("EHLO", _S._ehlo, syntax="EHLO hostname"),
)
_LMTP = (  # RFC 2033: LHLO greets
    Command("LHLO", _S._ehlo, syntax="LHLO hostname"),
    Command("HELO", _S._say_lmtp),
    Command("EHLO", _S._say_lmtp),
)
_UNKNOWN = Command("", _S._refuse_unknown)


def _by_verb(*commands: Command) -> Mapping[bytes, Command]:
    return {command.name.encode(): command for command in commands}


_SMTP_COMMANDS, _LMTP_COMMANDS = _by_verb(*_BOTH, *_SMTP), _by_verb(*_BOTH, *_LMTP)
