"""SpamAssassin over spamd's protocol (SPAMC/1.5): its rules become tags, and its score counts by its threshold.

Each mail has its own connection, because spamd closes it after one answer. A score of SpamAssassin means something only
in relation to its threshold (`required_score`), which an administrator or a user may change; so it is scaled by it, up
to twice the threshold. From four times the threshold on, it suffices to quarantine a mail, whatever `spam_score` is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import format_datetime

from bridge.mail.address import domain_of, split_address
from bridge.service.analysis.connections import BadAnswer, Connection, Connections, counted
from bridge.service.analysis.engine import Findings, LimitReached, Mail
from bridge.service.analysis.opinions import FAR, SUFFICIENT, UNSURE, opinion_of
from bridge.service.engine_settings import SpamAssassin

MAX_ANSWER = 256 * 1024
MAX_RULES = 1000  # more do not match one mail
MAX_FIELDS = 100
_STATUS = re.compile(rb"SPAMD/\d{1,3}\.\d{1,3} (\d{1,9}) .*")
_SPAM = re.compile(r"(True|False|Yes|No) *; *(-?\d{1,9}(?:\.\d{1,9})?) */ *(-?\d{1,9}(?:\.\d{1,9})?)", re.IGNORECASE)
_RULE = re.compile(r"[A-Za-z0-9_]{1,100}")
_CALLED_SPAM = "spamassassin:spam"
_BEFORE_SENDER = re.compile(r"(?:return-path:?|envelope-(?:sender|from))$", re.IGNORECASE)
_DOMAIN = re.compile(r"[\w.-]*\w", re.ASCII)
_MAX_DOMAIN = 253  # characters


class SpamAssassinAnalyzer:
    def __init__(self, settings: SpamAssassin) -> None:
        self._settings = settings
        self._connections = Connections(settings.address, settings.connections, settings.timeout)

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > self._settings.max_size:
            raise LimitReached("size")
        async with self._connections.one() as connection:
            connection.allow(MAX_ANSWER)
            head, body = await connection.answer(self._send(connection, mail), _read(connection))
        found = read_answer(head, body, self._settings.spam_score)
        return counted(found, connection.has_sent_all, is_bad=_CALLED_SPAM in found.tags)

    async def _send(self, connection: Connection, mail: Mail) -> None:
        user = f"User: {self._settings.user}\r\n" if self._settings.user else ""
        trace = _trace(mail)
        length = len(trace) + mail.size
        await connection.send(f"SYMBOLS SPAMC/1.5\r\nContent-length: {length}\r\n{user}\r\n".encode() + trace)
        for chunk in mail.chunks():
            await connection.send(chunk)
        connection.end()  # spamd waits for the end of the last line, which a mail may not have


def _trace(mail: Mail) -> bytes:
    """What SpamAssassin knows of the client only from the header: a mail is scanned before our server adds it.

    SpamAssassin takes the sender from our Received field before it looks at any other field, so a mail cannot change
    it. The empty sender `<>` is the exception: then it looks at the other fields as well. It ignores our
    X-Envelope-From if the mail has such a field, too; that is for mail without a client.
    """
    border = mail.request.border
    sender = _sender(border.envelope_from)
    lines = [f"X-Envelope-From: <{sender}>"]
    if border.remote_address:
        # The sender comes after `by`: anything before that which looks like a comment about authentication is believed.
        lines.append(
            f"Received: from {_helo(border.sender_helo or '')} ([{_plain(border.remote_address)}])\r\n"
            f"\tby scanbridge with SMTP id {mail.ggrid} (envelope-from <{sender}>);\r\n"
            f"\t{format_datetime(datetime.now(UTC))}"
        )
    return "".join(f"{line}\r\n" for line in lines).encode()


def _helo(helo: str) -> str:
    """SpamAssassin takes the word after `return-path` and `envelope-from`, wherever they are, for the sender."""
    plain = _plain(helo).replace("=", "?") or "unknown"
    return f"{plain}?" if _BEFORE_SENDER.search(plain) else plain


def _sender(address: str) -> str:
    """With its whole domain, which SPF checks, or with one that nobody has."""
    local, domain = split_address(address)[0], domain_of(address)
    if not domain:
        return _plain(address)
    name = domain if len(domain) <= _MAX_DOMAIN and _DOMAIN.fullmatch(domain) else "unknown.invalid"
    return f"{_plain(local).replace('@', '?') or '?'}@{name}"


def _plain(text: str) -> str:
    """Without characters that mean something in a header field."""
    return re.sub(r"[^\w.@:+=-]", "?", text[:300], flags=re.ASCII)


async def _read(connection: Connection) -> tuple[dict[str, str], bytes]:
    """The fields and the text of an answer. Raises BadAnswer."""
    status = _STATUS.fullmatch(await connection.line())
    if status is None:
        raise BadAnswer("no status line")
    if int(status.group(1)):
        raise BadAnswer(f"status {int(status.group(1))}")  # as in sysexits.h
    fields: dict[str, str] = {}
    while line := await connection.line():
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if not colon or len(fields) >= MAX_FIELDS:
            raise BadAnswer("a line in the answer's header is not a header field")
        if (name := name.strip().lower()) in fields:
            raise BadAnswer("a header field occurs twice")
        fields[name] = value.strip()
    length = fields.get("content-length", "")
    if not re.fullmatch(r"[0-9]{1,7}", length):
        raise BadAnswer("no length")
    return fields, b"".join([piece async for piece in connection.exactly(int(length))])


def read_answer(fields: dict[str, str], body: bytes, spam_score: float) -> Findings:
    """Raises BadAnswer. `spam_score`: our score of a mail that just reaches SpamAssassin's threshold."""
    match = _SPAM.fullmatch(fields.get("spam", ""))
    if match is None:
        raise BadAnswer("no score")
    score, threshold = float(match.group(2)), float(match.group(3))
    rules = [name.strip() for name in re.split(r"[,\s]+", body.decode("ascii", "replace")) if name.strip()]
    if len(rules) > MAX_RULES:
        raise BadAnswer("too many rules")  # `decisions` may name one that would be left out
    tags = {f"spamassassin:{name}" for name in rules if _RULE.fullmatch(name)}
    is_spam = match.group(1).lower() in ("true", "yes")
    if is_spam:
        tags.add(_CALLED_SPAM)
    try:
        points = min(opinion_of(score, threshold, spam_score), 2 * spam_score if is_spam else UNSURE)
    except ValueError as exc:
        raise BadAnswer(str(exc)) from None
    if is_spam and 0 < FAR * threshold <= score:
        points = max(points, SUFFICIENT)
    return Findings(frozenset(tags), opinion=points)
