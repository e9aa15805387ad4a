"""`scanbridge check --send-test`: five real mails through a listener, and what it answers to each."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate, make_msgid

from bridge.cli.check.finding import Finding
from bridge.config.model import Config, Listener

_LARGE_BYTES = 5 * 1024 * 1024
_MORE_S = 30.0  # beyond our own deadline
_GTUBE = "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"
_EICAR = "X5O!P%@AP[4\\PZX54(P^)7CC)7}$" + "EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


@dataclass(frozen=True, slots=True)
class _Mail:
    name: str
    body: str
    is_clean: bool = True
    utf8: bool = False


def send_test(conf: Config, to: str, name: str | None) -> Iterator[Finding]:
    """Clean, spam, a virus's stand-in, a large one, one with SMTPUTF8."""
    doors = [one for one in conf.listeners if one.protocol != "milter" and name in (None, one.name)]
    doors = [one for one in doors if not (one.proxy_protocol or one.address.systemd)]
    if not doors:
        why = "no listener takes mail by SMTP without a PROXY header; send a mail through the mail server instead"
        yield Finding("test mail", why)
        return
    large = "x" * 76 + "\r\n"
    size = min(_LARGE_BYTES, conf.limits.max_message_size // 2)
    for mail in (
        _Mail("clean", "This is a test of scanbridge."),
        _Mail("GTUBE", _GTUBE, is_clean=False),
        _Mail("EICAR", _EICAR, is_clean=False),
        _Mail("large", large * (size // len(large) + 1)),
        _Mail("SMTPUTF8", "Gr\u00fc\u00dfe", utf8=True),
    ):
        yield _outcome(doors[0], mail, to)


def _outcome(door: Listener, mail: _Mail, to: str) -> Finding:
    what = f"test mail {mail.name} through {door.name}"
    try:
        code, text = _send(door, mail, to)
    except (OSError, smtplib.SMTPException) as exc:
        reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        return Finding(what, f"{door.address}: {reason}; is the daemon running (`scanbridge status`)?")
    reply = f"{code} {text}"
    if code >= 500 and mail.is_clean:
        return Finding(what, f"it was refused: {reply}; its line in our log says why")
    if 400 <= code < 500:
        return Finding(what, f"no decision: {reply}; its line in our log says why")
    passed = "" if mail.is_clean or code >= 500 else "; delivered, kept or dropped: its line in our log says which"
    return Finding(what, detail=reply + passed)


def _send(door: Listener, mail: _Mail, to: str) -> tuple[int, str]:
    """The first refusal, or the reply to the final dot."""
    with _connect(door) as client:
        client.ehlo()
        if door.tls is not None and door.tls.required:
            client.starttls()
            client.ehlo()
        utf8 = mail.utf8 or not to.isascii()
        if utf8 and not client.has_extn("smtputf8"):
            return 250, "not sent: the listener does not announce SMTPUTF8"
        client.command_encoding = "utf-8"
        options = " BODY=8BITMIME SMTPUTF8" if utf8 else ""
        for command in (f"MAIL FROM:<{to}>{options}", f"RCPT TO:<{to}>"):
            code, text = client.docmd(command)
            if code >= 400:
                return code, text.decode("utf-8", "replace")
        code, text = client.data(_content(mail, to).encode())
        return code, text.decode("utf-8", "replace")


class _EsmtpOrUnix(smtplib.LMTP):
    """smtplib knows unix sockets for LMTP only."""

    ehlo_msg = "ehlo"


def _connect(door: Listener) -> smtplib.SMTP:
    address, timeout_s = door.address, door.deadline + _MORE_S
    kind = smtplib.LMTP if door.protocol == "lmtp" else _EsmtpOrUnix
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - connected to
    return kind(address.path or host, address.port, timeout=timeout_s)


def _content(mail: _Mail, to: str) -> str:
    subject = f"scanbridge test: {mail.name}" + (" \u00fc" if mail.utf8 else "")
    head = [
        f"Subject: {subject}",
        f"From: <{to}>",
        f"To: <{to}>",
        f"Date: {formatdate()}",
        f"Message-ID: {make_msgid()}",
    ]
    more = ["MIME-Version: 1.0", "Content-Type: text/plain; charset=utf-8", "Content-Transfer-Encoding: 8bit"]
    return "\r\n".join([*head, *more, "", mail.body, ""])
