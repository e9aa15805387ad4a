"""SMTP and LMTP as our clients speak it: what each command means.

Addresses are parsed on the raw bytes, replies carry enhanced status codes, XFORWARD and XCLIENT
are believed from trusted clients only. Which mail is wanted is not known here: the handler's
hooks say so (`handle_CONNECT`, `handle_MAIL`, `handle_RCPT`, `handle_PREDATA`, `handle_DATA`). A hook that
returns MISSING leaves it to the default; anything else is the reply, of `handle_DATA` also the filter's outcome.
Where `answers_each`, it may return a tuple of replies, one for each recipient.
"""

from __future__ import annotations

import asyncio
from types import CoroutineType
from typing import Any

from aiosmtpd.smtp import MISSING, syntax

from bridge.filter.outcome import Outcome
from bridge.filter.policy import NO_STORAGE, SATURATED
from bridge.intake.smtp import xforward
from bridge.intake.smtp.connection import Connection
from bridge.intake.smtp.data import DataReader, Fault
from bridge.intake.smtp.envelope import SmtpEnvelope
from bridge.intake.smtp.fast_path import MAX_SIZE, ordinary
from bridge.intake.smtp.parameters import TOO_LARGE, refuse_of_mail, refuse_of_rcpt
from bridge.intake.smtp.paths import Path, parse_path
from bridge.mail.reply import Reply, weightiest
from bridge.mail.session import Client

_PARAMETERS = " [SP <mail-parameters>]"
_BYE = Reply(221, "2.0.0", "Bye")
_PRDR_BEGINS = Reply(353, "", "One reply for each recipient follows")
_ORDINARY_EXTENSIONS = frozenset({"DSN", "8BITMIME"})  # whose parameters an ordinary line may have

_FAULTS = {
    Fault.BARE: Reply(550, "5.5.2", "Error: a CR, LF or NUL outside a line end is not accepted"),
    Fault.TOO_LARGE: Reply(552, "5.3.4", "Error: Too much mail data"),
    Fault.SATURATED: SATURATED,
    Fault.STORAGE: NO_STORAGE,
}
_LIMITS = {Fault.TOO_LARGE: "max_message_size", Fault.SATURATED: "max_bytes_in_processing"}


class BridgeSMTP(Connection):
    """The commands of one SMTP session."""

    greeting = "HELO"  # the word of the reply that asks for one
    hidden: frozenset[str] = frozenset()  # extensions that are neither announced nor taken

    def __init__(self, handler: Any, **settings: Any) -> None:
        super().__init__(handler, **settings)
        # Nothing is asked of a client before MAIL, or of every line, that only the commands' own code asks for.
        self._sees_ordinary = (self.data_size_limit or MAX_SIZE) >= MAX_SIZE and not (
            self._auth_required or self._enforce_call_limit or self.local_part_limit or self.require_starttls
        )

    @property
    def answers_each(self) -> bool:
        """Whether the final dot of the mail in progress has one reply for each recipient."""
        return bool(self.envelope.prdr)

    def _create_envelope(self) -> SmtpEnvelope:
        envelope = SmtpEnvelope()
        if self._decode_data:
            envelope._decode = "utf-8" if self.enable_SMTPUTF8 else "ascii"
        return envelope

    # Greeting

    @syntax("HELO hostname")
    def smtp_HELO(self, hostname: str | None) -> None:
        if not hostname:
            return self._say(b"501 5.5.4 Syntax: HELO hostname")
        self._set_rset_state()
        self.session.extended_smtp = False
        return self._ask("HELO", self._greet_back, hostname)

    def _greet_back(self, status: Any, hostname: str) -> None:
        if status is MISSING:
            self.session.host_name = hostname
            status = f"250 {self.hostname}"
        self._answer(status)

    @syntax("EHLO hostname")
    def smtp_EHLO(self, hostname: str | None) -> None:
        if not hostname:
            return self._say(b"501 5.5.4 Syntax: %b hostname" % (b"LHLO" if self.greeting == "LHLO" else b"EHLO"))
        self._set_rset_state()
        self.session.extended_smtp = True
        if self._ehlo_hook_ver is None:
            self.session.host_name = hostname
            self._out.append(self._ehlo_reply())
            return None
        lines = self._extensions()
        if self._ehlo_hook_ver == "old":
            for line in lines:
                self._say(line.encode())
            return self._ask("EHLO", lambda line, *_: self._answer(line), hostname)
        return self._ask("EHLO", self._announce, hostname, [*lines, "250 HELP"])

    def _announce(self, lines: list[str], *_: Any) -> None:
        for line in lines:
            self._answer(line)

    def _ehlo_reply(self) -> bytes:
        """The same for all sessions in the same circumstances, so it is made once for each."""
        circumstances = (self.session.ssl is not None, self.trusted)
        reply = self._ehlo_replies.get(circumstances)
        if reply is None:
            reply = "".join(f"{line}\r\n" for line in [*self._extensions(), "250 HELP"]).encode()
            self._ehlo_replies[circumstances] = reply
        return reply

    def _extensions(self) -> list[str]:
        lines = [self.hostname, "PIPELINING", "ENHANCEDSTATUSCODES", "DSN"]
        if self.data_size_limit:
            lines.append(f"SIZE {self.data_size_limit}")
        if not self._decode_data:
            lines.append("8BITMIME")
        if self.enable_SMTPUTF8:
            lines.append("SMTPUTF8")
        lines.append("PRDR")
        if self.tls_context and self.session.ssl is None:
            lines.append("STARTTLS")
        if self._has_auth and (not self._auth_require_tls or self.session.ssl is not None):
            lines.append("AUTH " + " ".join(sorted(self._auth_methods)))
        if self.trusted:
            lines.append("XFORWARD " + " ".join(xforward.XFORWARD_NAMES))
            lines.append("XCLIENT " + " ".join(xforward.XCLIENT_NAMES))
        return ["250-" + line for line in lines if line not in self.hidden]

    # What a trusted mail server says of its client

    @syntax("XFORWARD attribute=value ...", when="trusted")
    def smtp_XFORWARD(self, arg: str | None) -> None:
        client = self._told(self.forwarded or Client(), xforward.XFORWARD_NAMES)
        if client is not None:
            self.forwarded = client
            self._say(b"250 2.0.0 Ok")

    @syntax("XCLIENT attribute=value ...", when="trusted")
    def smtp_XCLIENT(self, arg: str | None) -> None:
        client = self._told(self.client, xforward.XCLIENT_NAMES)
        if client is None:
            return
        self.client, self.introduced = client, True
        self.session.host_name = client.helo
        self.session.extended_smtp = client.protocol != "SMTP"
        self._set_rset_state()
        self._out.append(self._banner)

    def _told(self, client: Client, names: tuple[str, ...]) -> Client | None:
        """The client with the command's attributes, or None and a refusal said."""
        if not self.trusted:
            self._say(b"550 5.7.0 Error: insufficient authorization")
        elif self.envelope.mail_from is not None:
            self._say(b"503 5.5.1 Error: MAIL transaction in progress")
        else:
            try:
                return xforward.apply(client, self._argument, names)
            except xforward.BadAttribute:
                self._say(b"501 5.5.4 Error: bad attribute name or value")
        return None

    # The mail

    def _take_ordinary(self, data: bytes) -> int:
        """Ordinary lines, until one needs a closer look."""
        if not self.session.host_name or not self._sees_ordinary:
            return 0
        taken = 0
        try:
            while (line := ordinary(data, taken)) is not None:
                envelope = self.envelope  # another one, once DATA was refused
                sender, mail_params, recipient, rcpt_params, verb = line.groups()
                if (mail_params or rcpt_params) and not self._takes_ordinary_params():
                    break
                if sender is not None:
                    if envelope.mail_from is not None or self._mails >= self._limits.max_mails:
                        break
                    taken = line.end()
                    envelope.smtp_utf8 = envelope.prdr = False
                    options = mail_params.decode("ascii").split() if mail_params else []
                    self._ask("MAIL", self._begin_mail, sender.decode("ascii"), options)
                elif recipient is not None:
                    if envelope.mail_from is None or len(envelope.rcpt_tos) >= self._limits.max_recipients:
                        break
                    taken = line.end()
                    options = rcpt_params.decode("ascii").split() if rcpt_params else []
                    self._ask("RCPT", self._add_recipient, recipient.decode("ascii"), options)
                elif verb == b"QUIT":
                    taken = line.end()
                    self._ask("QUIT", self._say_bye)
                elif envelope.rcpt_tos:
                    taken = line.end()
                    self._ask("PREDATA", self._begin_data)
                else:
                    break
                self._idle_commands = 0
                if self._errors:
                    self._end_command()
                if taken == len(data) or self._data is not None or self._task is not None or self.transport is None:
                    break
        except Exception as error:
            self._start(self._fail, error)
        self._phase_began = self.loop.time()
        return taken

    def _takes_ordinary_params(self) -> bool:
        return bool(self.session.extended_smtp) and self.hidden.isdisjoint(_ORDINARY_EXTENSIONS)

    @syntax("MAIL FROM: <address>", extended=" [SP <mail-parameters>]")
    def smtp_MAIL(self, arg: str | None) -> None:
        if self._is_too_early():
            return None
        path = self._path(b"FROM:", "Syntax: MAIL FROM: <address>")
        if isinstance(path, Reply):
            return self._reply(path)
        if self.envelope.mail_from is not None:
            return self._say(b"503 5.5.1 Error: nested MAIL command")
        refusal = self._refuse_mail_params(path)
        if refusal is not None:
            return self._reply(refusal)
        return self._ask("MAIL", self._begin_mail, path.address, list(path.as_sent))

    def _begin_mail(self, status: Any, sender: str, options: list[str]) -> None:
        if status is MISSING:
            self.envelope.mail_from = sender
            if self.envelope.prdr:  # between this client and us
                options = [one for one in options if one.upper() != "PRDR"]
            self.envelope.mail_options = options
            return self._out.append(b"250 2.1.0 OK\r\n")
        if isinstance(status, Reply) and status.is_temporary:
            self._excused = self._limits.max_recipients + 1  # its RCPTs and DATA may be on their way
        return self._answer(status)

    def _path(self, keyword: bytes, form: str) -> Path | Reply:
        extended = self.session.extended_smtp
        if self._argument[: len(keyword)].upper() != keyword:
            return Reply(501, "5.5.4", form + _PARAMETERS if extended else form)
        path = parse_path(self._argument[len(keyword) :], syntax=form + _PARAMETERS if extended else form)
        if isinstance(path, Reply):
            return path
        if path.params and not extended:
            return Reply(501, "5.5.4", form)
        if self.local_part_limit and len(path.address.rpartition("@")[0]) > self.local_part_limit:
            return Reply(553, "5.1.3", "Error: malformed address")
        return path

    def _refuse_mail_params(self, path: Path) -> Reply | None:
        names = [name for name, _ in path.params]
        self.envelope.smtp_utf8 = "SMTPUTF8" in names
        self.envelope.prdr = "PRDR" in names
        refusal = refuse_of_mail(path, self.hidden, self.data_size_limit, self.enable_SMTPUTF8)
        if refusal is TOO_LARGE:
            self._hit("max_message_size")
        return refusal or self._refuse_utf8()

    def _refuse_utf8(self) -> Reply | None:
        if self._argument.isascii() or self.envelope.smtp_utf8:
            return None
        return Reply(550, "5.6.7", "Error: a non-ASCII address needs SMTPUTF8")

    @syntax("RCPT TO: <address>", extended=" [SP <mail-parameters>]")
    def smtp_RCPT(self, arg: str | None) -> None:
        if self._is_too_early():
            return None
        if self.envelope.mail_from is None:
            return self._out_of_order(b"503 5.5.1 Error: need MAIL command")
        path = self._path(b"TO:", "Syntax: RCPT TO: <address>")
        if isinstance(path, Reply):
            return self._reply(path)
        refusal = self._refuse_recipient(path)
        if refusal is not None:
            return self._reply(refusal)
        return self._ask("RCPT", self._add_recipient, path.address, list(path.as_sent))

    def _add_recipient(self, status: Any, address: str, options: list[str]) -> None:
        if status is not MISSING:
            return self._answer(status)
        self.envelope.rcpt_tos.append(address)
        self.envelope.rcpt_params.append(tuple(options))
        return self._out.append(b"250 2.1.5 OK\r\n")

    def _refuse_recipient(self, path: Path) -> Reply | None:
        if not path.address:
            return Reply(501, "5.1.3", "Syntax: RCPT TO: <address>")
        if path.params and (refusal := refuse_of_rcpt(path, self.hidden)) is not None:
            return refusal
        if len(self.envelope.rcpt_tos) >= self._limits.max_recipients:
            self._hit("max_recipients")
            return Reply(452, "4.5.3", "Error: too many recipients")
        return self._refuse_utf8()

    @syntax("DATA")
    def smtp_DATA(self, arg: str | None) -> None:
        if self._is_too_early():
            return None
        if not self.envelope.rcpt_tos:
            return self._out_of_order(b"503 5.5.1 Error: need RCPT command")
        if arg:
            return self._say(b"501 5.5.4 Syntax: DATA")
        return self._ask("PREDATA", self._begin_data)

    def _begin_data(self, status: Any) -> None:
        if status is not MISSING:
            self._set_rset_state()
            return self._answer(status)
        self._out.append(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        return self._receive()

    async def _take_mail(self) -> None:
        reader, self._whole = self._whole, None
        assert reader is not None
        self._mails += 1
        recipients, prdr = len(self.envelope.rcpt_tos), self.envelope.prdr
        message = self.envelope.message = reader.message
        fault = reader.fault
        try:
            status = self._judge(reader)
            del reader  # thousands may wait here: each keeps only what is needed
            if isinstance(status, CoroutineType):
                status = await status
        except Exception as error:
            status = await self.handle_exception(error)
        finally:
            message.close()
            self._busy = False
            self._set_rset_state()
        if isinstance(status, Outcome):
            status = status.replies or status.reply
        elif status is MISSING:
            status = "250 2.0.0 OK" if fault is None else _FAULTS[fault]
        if prdr:
            self._answer_prdr(status, recipients)
        else:
            self._answer_data(status, recipients)
        if self._farewell is not None:
            self.goodbye(self._farewell)

    def _judge(self, reader: DataReader) -> Any:
        """The hook's answer to the mail, or what is to be awaited for it."""
        if reader.fault is not None:
            if (limit := _LIMITS.get(reader.fault)) is not None:
                self._hit(limit)
            return self._call_hook("REFUSED", _FAULTS[reader.fault], reader.total)
        if self._decode_data and not self.enable_SMTPUTF8 and not (self.envelope.original_content or b"").isascii():
            return "500 5.6.1 Error: strict ASCII mode"
        self._errors = 0  # a client that brings mail may err now and then
        if "DATA" in self._handle_hooks:
            return self._call_hook("DATA")
        return self._call_process_message()

    def _answer_data(self, status: str | Reply | tuple[Reply, ...], recipients: int) -> None:
        assert not isinstance(status, tuple)
        self._answer(status)

    def _answer_prdr(self, status: str | Reply | tuple[Reply, ...], recipients: int) -> None:
        """draft-hall-prdr: 353, one reply for each accepted recipient, one for the mail as a whole."""
        each = status if isinstance(status, tuple) else (status,) * recipients
        self._reply(_PRDR_BEGINS)
        for one in each:
            self._answer(one)
        self._answer(_as_a_whole(status) if isinstance(status, tuple) else status)

    async def _call_process_message(self) -> Any:
        """aiosmtpd's deprecated hook, which its own suite still tries."""
        hook = getattr(self.event_handler, "process_message", None)
        if hook is None:
            return MISSING
        envelope = self.envelope
        status = hook(self.session.peer, envelope.mail_from, envelope.rcpt_tos, envelope.content)
        status = await status if asyncio.iscoroutine(status) else status
        return MISSING if status is None else status

    def _is_too_early(self) -> bool:
        """Whether the client must greet, or authenticate, before this command; then it has been told."""
        if self.session.host_name:
            return self._auth_required and self._lacks_auth()
        self._say(b"503 5.5.1 Error: send %b first" % self.greeting.encode())
        return True

    def _lacks_auth(self) -> bool:
        if not self._auth_required or self.session.authenticated:
            return False
        self._say(b"530 5.7.0 Authentication required")
        return True

    async def check_helo_needed(self, helo: str = "HELO") -> bool:
        if self.session.host_name:
            return False
        self._say(b"503 5.5.1 Error: send %b first" % helo.encode())
        return True

    def _set_rset_state(self) -> None:
        """A new envelope, if the last one was used; XFORWARD's word was for the last mail only."""
        if self.envelope is None or self.envelope.mail_from is not None:
            self.envelope = self._create_envelope()
        self.forwarded = None

    @syntax("RSET")
    def smtp_RSET(self, arg: str | None) -> None:
        if arg:
            return self._say(b"501 5.5.4 Syntax: RSET")
        self._set_rset_state()
        return self._ask("RSET", self._agree)

    def _agree(self, status: Any, *_: Any) -> None:
        self._answer("250 2.0.0 OK" if status is MISSING else status)

    @syntax("NOOP [ignored]")
    def smtp_NOOP(self, arg: str | None) -> None:
        self._ask("NOOP", self._agree, arg)

    @syntax("QUIT")
    def smtp_QUIT(self, arg: str | None) -> None:
        if arg:
            return self._say(b"501 5.5.4 Syntax: QUIT")
        return self._ask("QUIT", self._say_bye)

    def _say_bye(self, status: Any) -> None:
        self._answer(_BYE if status is MISSING else status)
        self._hang_up()

    @syntax("VRFY <address>")
    def smtp_VRFY(self, arg: str | None) -> None:
        if self._lacks_auth():
            return None
        if not arg:
            return self._say(b"501 5.5.4 Syntax: VRFY <address>")
        path = parse_path(self._argument, syntax="Could not VRFY")
        if isinstance(path, Reply) or not path.address:
            return self._say(b"502 5.5.1 Could not VRFY")
        return self._ask("VRFY", self._verify, path.address)

    def _verify(self, status: Any, _: str) -> None:
        default = "252 2.0.0 Cannot VRFY user, but will accept message and attempt delivery"
        self._answer(default if status is MISSING else status)

    def smtp_EXPN(self, arg: str | None) -> None:
        self._say(b"502 5.5.1 EXPN not implemented")

    @syntax("HELP [command]")
    def smtp_HELP(self, arg: str | None) -> None:
        if self._lacks_auth():
            return None
        known = {name: method for name, method in self._smtp_methods.items() if self._syntax_available(method)}
        method = known.get((arg or "").upper())
        if method is None:
            names = " ".join(sorted(known))
            return self._say(f"{'501 5.5.4' if arg else '250 2.0.0'} Supported commands: {names}".encode())
        form = method.__smtp_syntax__
        if self.session.extended_smtp and method.__smtp_syntax_extended__:
            form += method.__smtp_syntax_extended__
        return self._say(f"250 2.0.0 Syntax: {form}".encode())

    @syntax("AUTH <mechanism>")
    async def smtp_AUTH(self, arg: str | None) -> None:
        if not self._has_auth:
            return self._say(b"502 5.5.1 Error: authentication is not offered")
        return await super().smtp_AUTH(arg)  # type: ignore[no-any-return]

    @syntax("STARTTLS", when="tls_context")
    async def smtp_STARTTLS(self, arg: str | None) -> None:
        if arg:
            return self._say(b"501 5.5.4 Syntax: STARTTLS")
        if not self.tls_context or self.session.ssl is not None:
            return self._say(b"454 4.7.0 TLS not available")
        self._say(b"220 2.0.0 Ready to start TLS")
        return await self.start_tls()


def _as_a_whole(each: tuple[Reply, ...]) -> Reply:
    """For PRDR's last reply. Exim takes a refusal here as one of all recipients, so one acceptance is enough."""
    accepted = sum(one.is_success for one in each)
    if 0 < accepted < len(each):
        return Reply(250, "2.0.0", f"Ok: accepted for {accepted} of {len(each)} recipients")
    return weightiest(each) or each[0]


class BridgeLMTP(BridgeSMTP):
    """LMTP (RFC 2033): LHLO greets, and the final dot has one reply per accepted recipient."""

    greeting = "LHLO"
    hidden = frozenset({"PRDR"})
    answers_each = True

    @syntax("LHLO hostname")
    def smtp_LHLO(self, hostname: str | None) -> None:
        super().smtp_EHLO(hostname)

    def smtp_HELO(self, hostname: str | None) -> None:
        self._say(b"500 5.5.1 Error: this is LMTP, send LHLO")

    def smtp_EHLO(self, hostname: str | None) -> None:
        self._say(b"500 5.5.1 Error: this is LMTP, send LHLO")

    def _answer_data(self, status: str | Reply | tuple[Reply, ...], recipients: int) -> None:
        for one in status if isinstance(status, tuple) else (status,) * recipients:
            self._answer(one)
