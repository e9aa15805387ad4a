"""The SMTP session as a state machine: tables of lines, replies and effects, without a socket or an event loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiosmtpd.smtp import MISSING

from bridge.intake.smtp.commands import receive_line
from bridge.intake.smtp.data import DataReader
from bridge.intake.smtp.effects import Ask, Authenticate, Close, Effect, ReadContent, StartTls
from bridge.intake.smtp.parameters import TOO_LARGE
from bridge.intake.smtp.session import SmtpSession
from bridge.intake.smtp.session_settings import SessionLimits, SessionSettings
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client

SETTINGS = SessionSettings("bridge.example", "ESMTP test", max_message_size=50_000_000)
LMTP = replace(SETTINGS, is_lmtp=True)
FULL = Reply(451, "4.3.2", "Full")
GREETED = [b"EHLO client.example"]
MAIL = [*GREETED, b"MAIL FROM:<a@b.example>"]
RCPT = [*MAIL, b"RCPT TO:<c@d.example>"]


def play(session: SmtpSession, lines: list[bytes], answers: dict[str, Any] | None = None) -> Effect | None:
    """Send lines, answer every Ask (with MISSING by default), and return the effect of the last line."""
    effect = None
    for line in lines:
        effect = receive_line(session, line)
        while isinstance(effect, Ask):
            effect = effect.then(session, (answers or {}).get(effect.hook, MISSING), effect.arguments)
    return effect


def taken(session: SmtpSession) -> list[bytes]:
    """The replies since the last call."""
    replies = b"".join(session.replies).split(b"\r\n")[:-1]
    session.replies.clear()
    return replies


def content(data: bytes = b"x\r\n.\r\n") -> DataReader:
    reader = DataReader(Message(Spool(1 << 20)), 50_000_000)
    assert reader.feed(data) == b""
    return reader


@pytest.mark.parametrize(
    ("before", "line", "hook", "arguments"),
    [
        ([], b"HELO client.example", "HELO", ("client.example",)),
        (GREETED, b"MAIL FROM:<a@b.example>", "MAIL", ("a@b.example", [])),
        (GREETED, b"mail from: <a@b.example> ret=HDRS", "MAIL", ("a@b.example", ["RET=HDRS"])),
        (GREETED, b"MAIL FROM:<> SIZE=5", "MAIL", ("", ["SIZE=5"])),
        (MAIL, b"RCPT TO:<c@d.example>", "RCPT", ("c@d.example", [])),
        (MAIL, b"RCPT TO:<c@d.example> NOTIFY=NEVER", "RCPT", ("c@d.example", ["NOTIFY=NEVER"])),
        (RCPT, b"DATA", "PREDATA", ()),
        (RCPT, b"data", "PREDATA", ()),
        (RCPT, b"RSET", "RSET", ()),
        ([], b"NOOP hello", "NOOP", ("hello",)),
        ([], b"NOOP", "NOOP", (None,)),
        ([], b"VRFY <c@d.example>", "VRFY", ("c@d.example",)),
        ([], b"QUIT", "QUIT", ()),
    ],
)
def test_handler_is_asked(before: list[bytes], line: bytes, hook: str, arguments: tuple[Any, ...]) -> None:
    """A correct command becomes a question to the handler, and nothing is replied before its answer."""
    session = SmtpSession(SETTINGS)
    play(session, before)
    taken(session)
    effect = receive_line(session, line)
    assert isinstance(effect, Ask) and (effect.hook, effect.arguments) == (hook, arguments)
    assert taken(session) == []


@pytest.mark.parametrize(
    ("before", "line", "reply", "effect"),
    [
        ([], b"HELO client.example", b"250 bridge.example", None),
        (GREETED, b"MAIL FROM:<a@b.example>", b"250 2.1.0 OK", None),
        (MAIL, b"RCPT TO:<c@d.example>", b"250 2.1.5 OK", None),
        (RCPT, b"DATA", b"354 End data with <CR><LF>.<CR><LF>", ReadContent()),
        (RCPT, b"RSET", b"250 2.0.0 OK", None),
        ([], b"NOOP", b"250 2.0.0 OK", None),
        ([], b"QUIT", b"221 2.0.0 Bye", Close()),
        ([], b"VRFY c", b"252 2.0.0 Cannot VRFY user, but will accept message and attempt delivery", None),
        ([], b"EXPN c", b"502 5.5.1 EXPN not implemented", None),
        ([], b"BDAT 60 LAST", b"502 5.5.1 Error: BDAT is not offered", Close()),
        ([], b"AUTH PLAIN", b"502 5.5.1 Error: authentication is not offered", None),
        ([], b"STARTTLS", b"454 4.7.0 TLS not available", None),
        ([], b"HELP NOOP", b"250 2.0.0 Syntax: NOOP [ignored]", None),
        (GREETED, b"HELP MAIL", b"250 2.0.0 Syntax: MAIL FROM: <address> [SP <mail-parameters>]", None),
        ([], b"XFORWARD ADDR=192.0.2.1", b"550 5.7.0 Error: insufficient authorization", None),
        # Out of order
        ([], b"MAIL FROM:<a@b.example>", b"503 5.5.1 Error: send HELO first", None),
        ([], b"MAIL nonsense", b"503 5.5.1 Error: send HELO first", None),
        ([], b"RCPT TO:<c@d.example>", b"503 5.5.1 Error: send HELO first", None),
        ([], b"DATA", b"503 5.5.1 Error: send HELO first", None),
        (GREETED, b"RCPT TO:<c@d.example>", b"503 5.5.1 Error: need MAIL command", None),
        (MAIL, b"DATA", b"503 5.5.1 Error: need RCPT command", None),
        (MAIL, b"MAIL FROM:<a@b.example>", b"503 5.5.1 Error: nested MAIL command", None),
        (MAIL, b"mail from: a@b.example", b"503 5.5.1 Error: nested MAIL command", None),
        # Malformed
        ([], b"", b"500 5.5.2 Error: bad syntax", None),
        ([], b"FROB", b"500 5.5.2 Error: command not recognized", None),
        ([], b"N\xc3\xb6OP", b"500 5.5.2 Error: bad syntax", None),
        ([], b"NOOP \0", b"501 5.5.2 Error: NUL, CR or LF inside a command", None),
        ([], b"NOOP " + b"x" * 508, b"500 5.5.2 Command line too long", None),
        ([], b"HELO", b"501 5.5.4 Syntax: HELO hostname", None),
        ([], b"EHLO", b"501 5.5.4 Syntax: EHLO hostname", None),
        (RCPT, b"DATA now", b"501 5.5.4 Syntax: DATA", None),
        ([], b"QUIT now", b"501 5.5.4 Syntax: QUIT", None),
        ([], b"STARTTLS now", b"501 5.5.4 Syntax: STARTTLS", None),
        (MAIL, b"RCPT TO:<>", b"501 5.1.3 Syntax: RCPT TO: <address>", None),
        (GREETED, b"MAIL FROM:<a@b> SIZE=99999999", TOO_LARGE.to_bytes()[:-2], None),
        (GREETED, b"MAIL FROM:<\xc3\xa4@b>", b"550 5.6.7 Error: a non-ASCII address needs SMTPUTF8", None),
        ([b"HELO x"], b"MAIL FROM:<a@b.example> SIZE=1", b"501 5.5.4 Syntax: MAIL FROM: <address>", None),
    ],
)  # fmt: skip
def test_each_command_has_its_reply_and_its_effect(
    before: list[bytes], line: bytes, reply: bytes, effect: Effect | None
) -> None:
    """With a handler that leaves every answer to us."""
    session = SmtpSession(SETTINGS)
    play(session, before)
    taken(session)
    assert play(session, [line]) == effect
    assert taken(session) == [reply]
    assert session.errors == reply.startswith((b"500", b"501", b"502", b"503", b"504"))


@pytest.mark.parametrize(
    ("before", "line", "hook"),
    [
        (GREETED, b"MAIL FROM:<a@b.example>", "MAIL"),
        (MAIL, b"RCPT TO:<c@d.example>", "RCPT"),
        (RCPT, b"DATA", "PREDATA"),
    ],
)
def test_reply_of_a_handler_that_refuses_is_sent(before: list[bytes], line: bytes, hook: str) -> None:
    """The command has no other effect."""
    session = SmtpSession(SETTINGS)
    play(session, before)
    taken(session)
    assert play(session, [line], {hook: FULL}) is None
    assert taken(session) == [b"451 4.3.2 Full"]


def test_commands_pipelined_after_a_refusal_are_not_errors() -> None:
    """A pipelining client has sent RCPT and DATA before it reads the refusal of MAIL."""
    session = SmtpSession(SETTINGS)
    play(session, [*MAIL, b"RCPT TO:<c@d.example>", b"DATA"], {"MAIL": FULL})
    assert taken(session)[-2:] == [b"503 5.5.1 Error: need MAIL command", b"503 5.5.1 Error: need RCPT command"]
    assert session.errors == 0


def test_http_client_is_cut_off_without_a_reply() -> None:
    """A browser that was tricked into speaking to us must not see its commands answered."""
    assert play(SmtpSession(SETTINGS), [b"GET / HTTP/1.1"]) == Close(discards_replies=True)


def test_tls_resets_the_session() -> None:
    """RFC 3207 4.2: everything received in plain text is forgotten, and STARTTLS is not offered again."""
    session = SmtpSession(replace(SETTINGS, offers_tls=True))
    play(session, RCPT)
    assert any(b"STARTTLS" in line for line in taken(session))
    assert play(session, [b"STARTTLS"]) == StartTls()
    assert taken(session) == [b"220 2.0.0 Ready to start TLS"]
    session.secured(object())
    assert play(session, [b"MAIL FROM:<a@b.example>"]) is None
    assert taken(session) == [b"503 5.5.1 Error: send HELO first"]
    play(session, GREETED)
    assert not any(b"STARTTLS" in line for line in taken(session)) and session.envelope.mail_from is None


def test_required_tls_comes_first() -> None:
    """Before STARTTLS only a few commands are allowed; a refused certificate leaves only QUIT."""
    session = SmtpSession(replace(SETTINGS, offers_tls=True, requires_tls=True))
    play(session, MAIL)
    assert taken(session)[-1] == b"530 5.7.0 Must issue a STARTTLS command first"
    session.secured(object())
    session.is_tls_accepted = False
    play(session, GREETED)
    assert taken(session) == [b"554 5.7.0 Command refused due to lack of security"]
    assert play(session, [b"QUIT"]) == Close()


def test_auth_is_left_to_aiosmtpd() -> None:
    """If it is offered at all."""
    session = SmtpSession(replace(SETTINGS, auth_mechanisms=("PLAIN",), auth_requires_tls=False))
    assert play(session, [*GREETED, b"AUTH PLAIN x"]) == Authenticate("PLAIN x")
    assert b"250-AUTH PLAIN" in taken(session)


def test_trusted_client_names_its_own_clients() -> None:
    """XFORWARD applies to one mail, XCLIENT to the rest of the session; neither is allowed within a mail."""
    session = SmtpSession(SETTINGS)
    session.trusted = True
    play(session, [*GREETED, b"XFORWARD ADDR=192.0.2.1"])
    assert session.forwarded == Client(address="192.0.2.1")
    play(session, [b"MAIL FROM:<>", b"XFORWARD ADDR=192.0.2.2", b"RSET"])
    assert b"503 5.5.1 Error: MAIL transaction in progress" in taken(session) and session.forwarded is None
    play(session, [b"XCLIENT ADDR=192.0.2.3 HELO=x"])
    assert taken(session) == [b"220 bridge.example ESMTP test"]
    assert session.client.address == "192.0.2.3" and session.introduced and session.host_name == "x"


@pytest.mark.parametrize(
    ("limits", "lines", "limit"),
    [
        (SessionLimits(max_errors=3), [b"FROB"] * 3, "max_errors"),
        (SessionLimits(max_idle_commands=3), [b"NOOP"] * 4, "idle_commands"),
    ],
)
def test_too_many_errors_or_idle_commands_end_the_session(
    limits: SessionLimits, lines: list[bytes], limit: str
) -> None:
    """The last of these lines ends it, not an earlier one; the limit is reported."""
    hit: list[str] = []
    session = SmtpSession(replace(SETTINGS, limits=limits, on_limit=hit.append))
    for number, line in enumerate(lines, 1):
        play(session, [line])
        assert session.check_patience() == (Close() if number == len(lines) else None)
    assert hit == [limit]
    assert taken(session)[-1] == b"421 4.7.0 Error: too many errors or idle commands"


def test_refusals_of_the_next_hop_do_not_cut_off_a_mail_server() -> None:
    """Postfix takes a lost connection for an outage, and defers all mail."""
    session = SmtpSession(LMTP)
    session.trusted = True
    play(session, [b"LHLO mx.example", b"MAIL FROM:<a@b.example>", *[b"RCPT TO:<c@d.example>"] * 30, b"DATA"])
    session.receive_content(content())
    session.answer_mail((Reply(501, "5.1.3", "Bad address"),) * 30)
    assert session.check_patience() is None
    play(session, [b"FROB"] * 20)
    assert session.check_patience() == Close()


def test_recipients_and_mails_over_the_limit_are_refused() -> None:
    """Recipients per mail and mails per connection, with and without the fast path."""
    hit: list[str] = []
    session = SmtpSession(replace(SETTINGS, limits=SessionLimits(max_recipients=1, max_mails=1), on_limit=hit.append))
    play(session, [*RCPT, b"RCPT TO:<e@f.example>", b"rcpt to:<e@f.example>"])
    assert taken(session)[-2:] == [b"452 4.5.3 Error: too many recipients"] * 2
    ask = session.receive_content(content())
    assert isinstance(ask, Ask) and ask.hook == "DATA"
    session.answer_mail(MISSING)
    assert play(session, [b"MAIL FROM:<a@b.example>"]) == Close()
    assert taken(session)[-2:] == [b"250 2.0.0 OK", b"421 4.7.0 Too many mails on this connection, open a new one"]
    assert play(session, [b"QUIT"]) == Close() and taken(session) == [b"221 2.0.0 Bye"]
    assert hit == ["max_recipients", "max_recipients", "max_mails_per_connection"]


OK, NO = Reply(250, "2.0.0", "Ok"), Reply(550, "5.1.1", "Nobody")


@pytest.mark.parametrize(
    ("settings", "parameter", "status", "replies"),
    [
        (SETTINGS, b"", OK, [b"250 2.0.0 Ok"]),
        (SETTINGS, b"", "250 own text", [b"250 own text"]),
        (SETTINGS, b"", MISSING, [b"250 2.0.0 OK"]),
        (LMTP, b"", OK, [b"250 2.0.0 Ok"] * 2),
        (LMTP, b"", (OK, NO), [b"250 2.0.0 Ok", b"550 5.1.1 Nobody"]),
        (SETTINGS, b" PRDR", NO, [b"353 One reply for each recipient follows", *[b"550 5.1.1 Nobody"] * 3]),
        (SETTINGS, b" PRDR", (OK, NO), [b"353 One reply for each recipient follows", b"250 2.0.0 Ok",
                                        b"550 5.1.1 Nobody", b"250 2.0.0 Ok: accepted for 1 of 2 recipients"]),
    ],
)  # fmt: skip
def test_final_dot_has_one_reply_or_one_for_each_recipient(
    settings: SessionSettings, parameter: bytes, status: Any, replies: list[bytes]
) -> None:
    """LMTP and PRDR: one for each recipient. Afterwards the envelope is empty."""
    session = SmtpSession(settings)
    greeting = b"LHLO x" if settings.is_lmtp else b"EHLO x"
    play(session, [greeting, b"MAIL FROM:<a@b>" + parameter, b"RCPT TO:<c@d>", b"RCPT TO:<e@f>", b"DATA"])
    assert session.is_per_recipient == (len(replies) > 1)
    assert "PRDR" not in session.envelope.mail_options
    taken(session)
    ask = session.receive_content(content())
    assert isinstance(ask, Ask) and (ask.hook, ask.arguments) == ("DATA", ())
    session.answer_mail(status, ask.arguments)
    assert taken(session) == replies
    assert session.envelope.mail_from is None and session.envelope.rcpt_tos == [] and session.mails == 1


def test_content_with_a_bare_line_end_is_refused() -> None:
    """The handler is called, and can give another reply."""
    session = SmtpSession(SETTINGS)
    play(session, [*RCPT, b"DATA"])
    taken(session)
    ask = session.receive_content(content(b"a\nb\r\n.\r\n"))
    assert isinstance(ask, Ask) and ask.hook == "REFUSED" and ask.arguments[1] == 8
    session.answer_mail(MISSING, ask.arguments)
    assert taken(session) == [b"550 5.5.2 Error: a CR, LF or NUL outside a line end is not accepted"]


def test_lmtp_greets_with_lhlo_only() -> None:
    """RFC 2033 4.1."""
    session = SmtpSession(LMTP)
    play(session, [b"EHLO x", b"HELO x", b"MAIL FROM:<>"])
    refused = b"500 5.5.1 Error: this is LMTP, send LHLO"
    assert taken(session) == [refused, refused, b"503 5.5.1 Error: send LHLO first"]
    play(session, [b"LHLO x"])
    assert not any(b"PRDR" in line for line in taken(session))
