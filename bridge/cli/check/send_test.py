"""`scanbridge check --send-test`: send five real mails through a listener and report its replies."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate, make_msgid

from bridge.cli.check.finding import Finding
from bridge.config.listener import Listener
from bridge.config.model import Config
from bridge.runtime.suggestion import did_you_mean

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
    """Sends a clean mail, spam, a virus test file, a large mail, and one with SMTPUTF8."""
    names = [listener.name for listener in conf.listeners]
    if name is not None and name not in names:
        hint = did_you_mean(name, names) or f"; the configuration has {', '.join(names)}"
        yield Finding("test mail", f"--listener: no listener is named {name}{hint}")
        return
    listeners = [listener for listener in conf.listeners if listener.hands_on and name in (None, listener.name)]
    listeners = [listener for listener in listeners if not (listener.proxy_protocol or listener.address.systemd)]
    if not listeners:
        which = "no listener accepts" if name is None else f"listener {name} does not accept"
        why = f"{which} SMTP without a PROXY header at an address that scanbridge opens itself"
        yield Finding("test mail", f"{why}; send a mail through the mail server instead")
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
        yield _outcome(listeners[0], mail, to)


def _outcome(listener: Listener, mail: _Mail, to: str) -> Finding:
    what = f"test mail {mail.name} through {listener.name}"
    try:
        code, text = _send(listener, mail, to)
    except (OSError, smtplib.SMTPException) as exc:
        reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        return Finding(what, f"{listener.address}: {reason}; is the daemon running (`scanbridge status`)?")
    reply = f"{code} {text}"
    if code >= 500 and mail.is_clean:
        return Finding(what, f"it was refused: {reply}; see its line in the log")
    if 400 <= code < 500:
        return Finding(what, f"no decision: {reply}; see its line in the log")
    passed = "" if mail.is_clean or code >= 500 else "; delivered, quarantined or discarded: see its line in the log"
    return Finding(what, detail=reply + passed)


def _send(listener: Listener, mail: _Mail, to: str) -> tuple[int, str]:
    """The first refusal, or the reply to the content."""
    with _connect(listener) as client:
        client.ehlo()
        if listener.tls is not None and listener.tls.required:
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
    """smtplib supports unix sockets for LMTP only."""

    ehlo_msg = "ehlo"


def _connect(listener: Listener) -> smtplib.SMTP:
    address, timeout_s = listener.address, listener.deadline + _MORE_S
    kind = smtplib.LMTP if listener.protocol == "lmtp" else _EsmtpOrUnix
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
