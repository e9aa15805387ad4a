"""The commands of SMTP and LMTP: one table, and the dispatcher that finds each line's command in it.

A line that is wrong whatever it means (`command_line_checks`) is refused first, then a command out of order, then
arguments that do not parse; only then does the session (`session`) execute the command. The table is at the end of this
file. If this is wrong, a line means something else to us than to its sender.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.intake.smtp import replies, xforward
from bridge.intake.smtp.command_line_checks import refuse_line
from bridge.intake.smtp.effects import Close, Effect
from bridge.intake.smtp.fast_path import recognise
from bridge.intake.smtp.parameters import shortened
from bridge.intake.smtp.paths import Path, parse_path
from bridge.intake.smtp.session import CLOSE, SmtpSession
from bridge.mail.reply import Reply
from bridge.mail.session import UNKNOWN_CLIENT, Client

_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|TRACE) \S+ HTTP/|PRI \* HTTP/2")
_PARAMETERS = " [SP <mail-parameters>]"


def receive_line(session: SmtpSession, line: bytes) -> Effect | None:
    """Execute one command line, without its CRLF."""
    settings = session.settings
    arguments: tuple[Any, ...] | None = None
    ordinary = recognise(line) if settings.uses_fast_path else None
    if ordinary is not None and (not ordinary[2] or (session.extended_smtp and settings.fast_path_takes_parameters)):
        name, arguments, _ = ordinary
        command = _ORDINARY_COMMANDS[name]
    else:
        commands = _LMTP_COMMANDS if settings.is_lmtp else _SMTP_COMMANDS
        verb, _, argument = line.partition(b" ")
        command = commands.get(verb) or commands.get(verb.upper(), _UNKNOWN)
    session.is_for_others = command.is_for_others
    if arguments is None:
        refusal = refuse_line(session, command.name, verb, line, may_have_any_byte=command.parses_any_byte)
        if refusal is not None:
            return session.refuse(refusal)
        if session.calls_left is not None and not _is_within_call_limit(session, verb):
            session.answer(b"421 4.7.0 %b sent too many times" % verb.upper())
            return CLOSE
    if session.mails >= settings.limits.max_mails and command.name != "QUIT":
        settings.on_limit("max_mails_per_connection")
        session.answer(replies.TOO_MANY_MAILS)
        return CLOSE
    if arguments is None and command is _UNKNOWN:
        return _refuse_unknown(session, line)
    session.idle_commands = session.idle_commands + 1 if command.is_idle else 0
    if not command.is_allowed(session):
        return None
    if arguments is None:
        parsed = command.parse(session, argument.strip(b" \t"))
        if isinstance(parsed, Reply):
            return session.refuse(parsed)
        arguments = parsed
    return command.execute(session, *arguments)


def _is_within_call_limit(session: SmtpSession, word: bytes) -> bool:
    assert session.calls_left is not None
    verb = word.upper().decode("ascii")
    left = session.calls_left.get(verb, session.settings.default_call_limit)
    session.calls_left[verb] = left - 1
    return left >= 1


def _refuse_unknown(session: SmtpSession, line: bytes) -> Effect | None:
    if _HTTP.match(line):
        return Close(discards_replies=True)
    return session.refuse(replies.UNKNOWN_COMMAND)


# Arguments


def _text(_: SmtpSession, argument: bytes) -> tuple[str | None]:
    return (argument.decode("utf-8", "replace") or None,)


def _mail_path(session: SmtpSession, argument: bytes) -> tuple[str, list[str], Path] | Reply:
    return _path(session, b"FROM:", argument, "Syntax: MAIL FROM: <address>")


def _rcpt_path(session: SmtpSession, argument: bytes) -> tuple[str, list[str], Path] | Reply:
    return _path(session, b"TO:", argument, "Syntax: RCPT TO: <address>")


def _path(session: SmtpSession, keyword: bytes, argument: bytes, form: str) -> tuple[str, list[str], Path] | Reply:
    syntax = form + _PARAMETERS if session.extended_smtp else form
    if argument[: len(keyword)].upper() != keyword:
        return Reply(501, "5.5.4", syntax)
    path = parse_path(argument[len(keyword) :], syntax=syntax)
    if isinstance(path, Reply):
        return path
    if path.params and not session.extended_smtp:
        return Reply(501, "5.5.4", form)
    longest = session.settings.max_line("MAIL", is_extended=session.extended_smtp)  # that of RCPT is the same
    if len("MAIL ") + len(argument) > longest:  # others have been refused, see `refuse_line`
        short = shortened(path, longest - len("MAIL FROM:<>"))
        if short is None:
            session.settings.on_limit("command")
            return replies.LINE_TOO_LONG
        path = short
    limit = session.settings.local_part_limit
    if limit and len(path.address.rpartition("@")[0]) > limit:
        return replies.MALFORMED_ADDRESS
    return path.address, list(path.as_sent), path


def _client_from(client: Client, argument: bytes, names: tuple[str, ...]) -> tuple[Client] | Reply:
    try:
        return (xforward.apply(client, argument, names),)
    except xforward.BadAttribute:
        return replies.BAD_ATTRIBUTE


def _forwarded_client(session: SmtpSession, argument: bytes) -> tuple[Client] | Reply:
    return _client_from(session.forwarded or UNKNOWN_CLIENT, argument, xforward.XFORWARD_NAMES)


def _introduced_client(session: SmtpSession, argument: bytes) -> tuple[Client] | Reply:
    return _client_from(session.client, argument, xforward.XCLIENT_NAMES)


def _verified_address(_: SmtpSession, argument: bytes) -> tuple[str] | Reply:
    if not argument:
        return Reply(501, "5.5.4", "Syntax: VRFY <address>")
    path = parse_path(argument, syntax="Could not VRFY")
    return replies.CANNOT_VERIFY if isinstance(path, Reply) or not path.address else (path.address,)


# HELP


def _help(session: SmtpSession, verb: str | None) -> None:
    commands = _LMTP_COMMANDS if session.settings.is_lmtp else _SMTP_COMMANDS
    listed = {command.name: command for command in commands.values() if command.syntax and command.is_listed(session)}
    command = listed.get((verb or "").upper())
    if command is not None:
        syntax = command.syntax + (command.extended_syntax if session.extended_smtp else "")
        session.answer(Reply(250, "2.0.0", f"Syntax: {syntax}"))
    else:
        names = "Supported commands: " + " ".join(sorted(listed))
        session.answer(Reply(501, "5.5.4", names) if verb else Reply(250, "2.0.0", names))


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
    parse: Callable[[SmtpSession, bytes], tuple[Any, ...] | Reply] = _text
    is_allowed: Callable[[SmtpSession], bool] = _always  # if not, it answers the client itself
    syntax: str = ""  # for HELP; "": not listed
    extended_syntax: str = ""
    is_listed: Callable[[SmtpSession], bool] = _always
    is_idle: bool = True  # no progress towards a mail
    is_for_others: bool = False  # see `SmtpSession.is_blamed`
    parses_any_byte: bool = False  # its own parser refuses CR, LF and NUL, with a better reply


_BOTH = (
    Command(
        *("MAIL", SmtpSession.mail, _mail_path, SmtpSession.is_greeted, "MAIL FROM: <address>", _PARAMETERS),
        is_idle=False,
        is_for_others=True,
        parses_any_byte=True,
    ),
    Command(
        *("RCPT", SmtpSession.rcpt, _rcpt_path, SmtpSession.has_sender, "RCPT TO: <address>", _PARAMETERS),
        is_idle=False,
        is_for_others=True,
        parses_any_byte=True,
    ),
    Command(
        *("DATA", SmtpSession.data, _no_argument("DATA"), SmtpSession.has_recipients, "DATA"),
        is_idle=False,
        is_for_others=True,
    ),
    Command("QUIT", SmtpSession.quit, _no_argument("QUIT"), syntax="QUIT", is_idle=False),
    Command("RSET", SmtpSession.rset, _no_argument("RSET"), syntax="RSET"),
    Command("NOOP", SmtpSession.noop, syntax="NOOP [ignored]"),
    Command("VRFY", SmtpSession.vrfy, _verified_address, SmtpSession.is_authenticated, "VRFY <address>"),
    Command("EXPN", SmtpSession.expn),
    Command("BDAT", SmtpSession.bdat),
    Command("HELP", _help, is_allowed=SmtpSession.is_authenticated, syntax="HELP [command]"),
    Command("AUTH", SmtpSession.auth, syntax="AUTH <mechanism>"),
    Command(
        *("STARTTLS", SmtpSession.starttls, _no_argument("STARTTLS")),
        syntax="STARTTLS",
        is_listed=lambda session: session.settings.offers_tls,
    ),
    Command(
        *("XFORWARD", SmtpSession.xforward, _forwarded_client, SmtpSession.may_name_client),
        syntax="XFORWARD attribute=value ...",
        is_listed=lambda session: session.trusted,
        is_for_others=True,
    ),
    Command(
        *("XCLIENT", SmtpSession.xclient, _introduced_client, SmtpSession.may_name_client),
        syntax="XCLIENT attribute=value ...",
        is_listed=lambda session: session.trusted,
        is_for_others=True,
    ),
)
_SMTP = (
    Command("HELO", SmtpSession.helo, syntax="HELO hostname"),
    Command("EHLO", SmtpSession.ehlo, syntax="EHLO hostname"),
)
_LMTP = (  # RFC 2033: LHLO greets
    Command("LHLO", SmtpSession.ehlo, syntax="LHLO hostname"),
    Command("HELO", SmtpSession.say_lmtp),
    Command("EHLO", SmtpSession.say_lmtp),
)
_UNKNOWN = Command("", _refuse_unknown)


def _by_verb(*commands: Command) -> Mapping[bytes, Command]:
    return {command.name.encode(): command for command in commands}


_SMTP_COMMANDS, _LMTP_COMMANDS = _by_verb(*_BOTH, *_SMTP), _by_verb(*_BOTH, *_LMTP)
_ORDINARY_COMMANDS = {command.name: command for command in _BOTH}  # those that `fast_path` recognises are among them
