"""The commands for one mail: its envelope in the terms that the next hop announced.

An envelope is sent exactly as it came, or refused before a byte is sent. If the next hop does not announce their
extension, these parameters are left out, because the mail arrives anyway:

- DSN's RET, ENVID, NOTIFY, ORCPT: the next hop then reports as it does by default (RFC 3461 5.2.2);
- AUTH=: a statement about the sender that helps only where it is understood;
- BODY=8BITMIME, if the content has no 8-bit byte after all.

Refused: NOTIFY=SUCCESS without DSN (550 5.3.3: the sender would wait for a report that never comes),
SMTPUTF8 (550 5.6.7), content declared as 8-bit (554 5.6.3; we do not convert, because that would change the
sender's bytes), any other parameter (555 5.5.4). These raise `CannotCarry`, which becomes a 451 if the extension may be
missing only temporarily: see `bridge/relay/relay.py`. 8-bit content that was not declared is sent as it is. A mail
server in front can find a better way if we do not announce the extension to it (`hide_extensions`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.session import Client
from bridge.mail.transaction import Transaction
from bridge.runtime.value import value

NO_REPORT = Reply(550, "5.3.3", "The next mail server does not report deliveries: send without NOTIFY=SUCCESS")
NO_UTF8 = Reply(550, "5.6.7", "The next mail server does not accept internationalized addresses")
NO_EIGHT_BIT = Reply(554, "5.6.3", "The next mail server does not accept 8-bit content, and we do not convert it")
NO_PARAMETER = Reply(555, "5.5.4", "The next mail server does not support a parameter of this mail")
FOR_NOW = Reply(451, "4.3.3", "The next mail server does not currently offer what this mail needs, try again later")
BAD_ADDRESS = Reply(553, "5.1.3", "An address of this mail cannot be expressed in SMTP")

XFORWARD_COMMAND = 512  # bytes, CRLF included
XFORWARD_VALUE = 255
UNAVAILABLE = "[UNAVAILABLE]"

# Parameters that may be left out, and the extension they belong to.
_OPTIONAL = {"RET": "DSN", "ENVID": "DSN", "NOTIFY": "DSN", "ORCPT": "DSN", "AUTH": "AUTH"}
_ENDS_WORD = re.compile(r"[\x00-\x20\x7f]")
_ENDS_PATH = re.compile(r"[\x00-\x20<>\x7f]")
_QUOTED_LOCAL = re.compile(r'"(?:[^"\\\x00-\x1f\x7f]|\\[\x20-\x7e])*"(?:@[^"<>\x00-\x20\x7f]+)?')
_PLAIN = re.compile(r"[!-*,-<>-~]*")  # needs no xtext encoding (RFC 3461: neither "+" nor "=")


class CannotCarry(NextHopError):
    """The next hop lacks an extension that the mail needs. Nothing was sent, so another next hop may be tried."""

    def __init__(self, extension: str, reply: Reply, text: str = "") -> None:
        super().__init__(reply, text, is_about_recipient=extension == "SMTPUTF8")
        self.extension = extension


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the next hop announced after EHLO or LHLO."""

    announced: tuple[str, ...] = ()  # the lines of its answer, unchanged
    names: frozenset[str] = frozenset()
    xforward: tuple[str, ...] = ()  # the attributes it accepts
    is_all: bool = True  # False: after HELO, or without the TLS that it offers, it may have announced less than usual

    @classmethod
    def parse(cls, ehlo: Reply) -> Capabilities:
        announced = tuple(line.strip() for line in ehlo.text.split("\n")[1:] if line.strip())
        words = [line.upper().split() for line in announced]
        xforward = next((tuple(w[1:]) for w in words if w[0] == "XFORWARD"), ())
        return cls(announced, frozenset(w[0] for w in words), xforward)


@value
class Commands:
    """One mail's commands up to DATA: RSET and XFORWARD where needed, MAIL, one RCPT each, DATA."""

    wire: bytes
    count: int
    before_mail: int  # commands before MAIL: RSET and XFORWARD
    has_reset: bool  # the first one is RSET


def for_mail(capabilities: Capabilities, tx: Transaction, head: bytes, *, reset: bool) -> Commands:
    """Raises NextHopError, before anything is sent, if the next hop cannot carry this envelope."""
    names = capabilities.names
    lines = ["RSET"] if reset else []
    if capabilities.xforward:
        lines += xforward(tx.session.named_client, capabilities.xforward)
    before_mail = len(lines)
    lines.append(_mail(names, tx, head))
    for recipient in tx.envelope.recipients:
        line = f"RCPT TO:<{_path(recipient.address)}>"
        for param in recipient.params:
            line += _carried(param, names)
        lines.append(line)
    lines.append("DATA")
    return Commands(_encoded(lines, names), len(lines), before_mail, reset)


def _mail(names: frozenset[str], tx: Transaction, head: bytes) -> str:
    line = f"MAIL FROM:<{_path(tx.envelope.sender)}>"
    if "SIZE" in names:
        line += f" SIZE={tx.message.size + len(head)}"
    for param in tx.envelope.params:
        name, _, value = param.upper().partition("=")
        if name == "BODY":
            line += _body(param, value, names, tx, head)
        elif name != "SIZE":
            line += _carried(param, names)
    return line


def _body(param: str, value: str, names: frozenset[str], tx: Transaction, head: bytes) -> str:
    if value not in ("7BIT", "8BITMIME"):  # BINARYMIME needs BDAT, which we do not speak
        raise NextHopError(NO_EIGHT_BIT)
    if "8BITMIME" in names:
        return " " + param
    if value == "8BITMIME" and not (head.isascii() and all(c.isascii() for c in tx.message.chunks())):
        raise CannotCarry("8BITMIME", NO_EIGHT_BIT)
    return ""


def _path(address: str) -> str:
    """An address that did not come by SMTP (a milter's, if its mail was quarantined) was never parsed as a path.

    The next hop would take what follows a bracket for parameters, or for another address. Raises NextHopError.
    """
    if _ENDS_PATH.search(address) and not _QUOTED_LOCAL.fullmatch(address):
        raise NextHopError(BAD_ADDRESS, is_about_recipient=True)
    return address


def _carried(param: str, names: frozenset[str]) -> str:
    if _ENDS_WORD.search(param):  # it would be read as two
        raise NextHopError(NO_PARAMETER)
    name = param.partition("=")[0].upper()
    if _OPTIONAL.get(name, name) in names:
        return " " + param
    if name == "NOTIFY" and "SUCCESS" in param.upper().partition("=")[2].split(","):
        raise CannotCarry("DSN", NO_REPORT)
    if name in _OPTIONAL:
        return ""
    raise CannotCarry(name, NO_UTF8 if name == "SMTPUTF8" else NO_PARAMETER)


def _encoded(lines: list[str], names: frozenset[str]) -> bytes:
    text = "\r\n".join(lines) + "\r\n"
    # The intake accepts no line end in an address; here it would start another command.
    if not len(lines) == text.count("\r") == text.count("\n") or "\0" in text:
        raise NextHopError(BAD_ADDRESS, is_about_recipient=True)
    if not text.isascii() and "SMTPUTF8" not in names:
        raise CannotCarry("SMTPUTF8", NO_UTF8)
    try:
        return text.encode()
    except UnicodeEncodeError as exc:  # a lone surrogate
        raise NextHopError(BAD_ADDRESS, is_about_recipient=True) from exc


def xforward(client: Client, attributes: tuple[str, ...]) -> list[str]:
    """The XFORWARD commands, without CRLF, for the client attributes that the next hop accepts.

    Unknown attributes are sent as such; otherwise the next hop would use our own address. There are two
    commands, as with Postfix's smtp(8): if a value is refused, only the values of its command are lost.
    """
    known = {
        "NAME": client.name,
        "ADDR": _address(client.address),
        "PORT": str(client.port) if client.port is not None else None,
        "PROTO": client.protocol,
        "HELO": client.helo,
        "IDENT": client.ident,
        "SOURCE": client.source,
    }
    commands: list[str] = []
    command = ""
    for name, known_value in known.items():
        if name not in attributes:
            continue
        word = f" {name}={_xtext(known_value)}"
        if command and (name == "PROTO" or len(command) + len(word) > XFORWARD_COMMAND - 2):
            commands.append(command)
            command = ""
        command = (command or "XFORWARD") + word
    if command:
        commands.append(command)
    return commands


def _address(address: str | None) -> str | None:
    return f"IPV6:{address}" if address and ":" in address else address


def _xtext(value: str | None) -> str:
    if not value:
        return UNAVAILABLE
    if not _PLAIN.fullmatch(value):
        encoded = value.encode("utf-8", "replace")  # used in logs only: never a reason to fail a mail
        value = "".join(chr(b) if 33 <= b <= 126 and b not in b"+=" else f"+{b:02X}" for b in encoded)
    # A truncated name could be that of another host.
    return value if len(value) <= XFORWARD_VALUE else UNAVAILABLE
