"""Our header fields: removed from incoming mail, and added to mail that is handed on.

Works on the header section as bytes, so that nothing else in it changes. One of our fields in an
incoming mail is forged; if it were left there, its reader would trust it.
"""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from functools import lru_cache

from bridge.api.scanning import AnalysisResult
from bridge.mail import authentication_results
from bridge.mail.address import domain_of
from bridge.mail.authentication_results import OwnResults
from bridge.mail.header_fields import begins_behind, fields_with_prefix
from bridge.mail.message import Message
from bridge.mail.transaction import Transaction

_UNSAFE = re.compile(r"[^\x20-\x7e]")
_COMMENT = re.compile(r"[^\x21-\x27\x2a-\x5b\x5d-\x7e]")  # printable, without ( ) and backslash
# Possessive (`*+`), so that white space is never tried in two ways: the time is linear.
_SUBJECT = re.compile(rb"subject:([^\r\n]{0,800}(?:\r\n[ \t][^\r\n]{0,800}){0,9})", re.IGNORECASE)
_MESSAGE_ID = re.compile(rb"message-id:(?:\r\n[ \t]|[ \t])*+([^\r\n]*+)(?:\r\n|$)", re.IGNORECASE)
_MAX_VALUE = 900  # RFC 5322 2.1.1: a line has at most 998 characters
# Bytes. Thousands of records wait to be written, and the history remembers the ids of deferred mail for days. Both
# limits are above what is ever shown.
_MAX_MESSAGE_ID, _MAX_SUBJECT = 2050, 800

Fields = tuple[tuple[str, str], ...]


class HeaderEditor:
    """For one prefix and host name; with an authserv-id, also for Authentication-Results."""

    def __init__(self, prefix: str, hostname: str, received: bool = True, authserv_id: str | None = None) -> None:
        self.prefix = prefix
        self.own_results = OwnResults(authserv_id) if authserv_id is not None else None
        self._hostname = hostname
        self._received = received
        self._lower = prefix.lower().encode("ascii")
        self._beginnings = [self._lower] + ([authentication_results.FIELD_LOWER] if self.own_results else [])
        self._ours = fields_with_prefix(prefix)
        self._id, self._decision, self._verdict, self._tags, self._ggrid, self._unscanned = (
            prefix + name for name in ("Id", "Decision", "Verdict", "Tags", "Ggrid", "Unscanned")
        )

    def may_be_in(self, lower: bytes) -> bool:
        """Whether a header section, given in lower case, may contain fields that only we may write."""
        return any(lower.find(beginning) >= 0 for beginning in self._beginnings)

    def strip(self, head: bytes) -> bytes | None:
        """The header section without our fields; None if there are none."""
        stripped = self._ours.remove(head)
        if self.own_results is not None:
            stripped = self.own_results.remove(stripped)
        return stripped if stripped is not head else None

    def is_hidden(self, message: Message, head: bytes, lower: bytes) -> bool:
        """Whether one of our fields cannot be removed: it begins or ends after `head`, which was cut at its limit.

        `head` is that of the message, as it came or without fields that others have removed; `lower` is in lower case.
        """
        if not message.is_head_cut():
            return False
        if self.may_be_in(lower) and message.is_head_cut_in_field():
            return True
        return begins_behind(message.chunks(), len(head), self._beginnings)

    def stamp(self, mail_id: str, result: AnalysisResult | None, unscanned: str = "") -> Fields:
        """The fields that describe the decision on this mail, or why there is none."""
        fields = [(self._id, mail_id)]
        if result is None:
            fields.append((self._unscanned, _clean(unscanned)))
        else:
            fields.append((self._decision, str(result.decision)))
            if result.verdict:
                fields.append((self._verdict, _clean(result.verdict)))
            if result.tags:
                fields.append((self._tags, _clean(", ".join(result.tags))))
            if result.ggrid:
                fields.append((self._ggrid, _clean(result.ggrid)))
        return tuple(fields)

    def results(self, tx: Transaction, result: AnalysisResult | None) -> Fields:
        """The Authentication-Results field, if configured; if there are no results, the field says `none`."""
        if self.own_results is None:
            return ()
        tags = result.tags if result is not None else ()
        helo = tx.session.client.helo or ""
        return ((authentication_results.FIELD, self.own_results.value(tags, domain_of(tx.envelope.sender), helo)),)

    def lines(self, tx: Transaction, fields: Fields) -> bytes:
        """What is put in front of a relayed mail: Received, then our fields."""
        text = "".join([f"{name}: {value}\r\n" for name, value in fields])
        if self._received:
            text = self._trace(tx) + text
        return text.encode("ascii")

    def _trace(self, tx: Transaction) -> str:
        """RFC 5321 4.4. It names the peer that connected to us; the peer's own Received field names its client."""
        session = tx.session
        protocol = ("ESMTP" if session.esmtp else "SMTP") + ("S" if session.tls else "")
        helo = _COMMENT.sub("?", session.helo or "unknown")[:255]
        peer = _COMMENT.sub("?", session.peer)
        return (
            f"Received: from {helo} ([{peer}])\r\n"
            f"\tby {self._hostname} (scanbridge) with {protocol} id {tx.id};\r\n"
            f"\t{_date(int(time.time()))}\r\n"
        )


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    """RFC 5322 3.3; computed once a second."""
    return formatdate(second, localtime=True)


def message_id(head: bytes, lower: bytes) -> str:
    """The first Message-ID, as mail servers log it, truncated; "" if there is none.

    `lower` is `head` in lower case.
    """
    start = 0 if lower.startswith(b"message-id:") else lower.find(b"\nmessage-id:") + 1
    found = _MESSAGE_ID.match(head, start)
    return "" if found is None else found[1][:_MAX_MESSAGE_ID].rstrip(b" \t").decode("utf-8", "replace")


def subject(head: bytes, lower: bytes) -> bytes:
    """The value of the first Subject field as it is written, truncated; b"" if there is none."""
    start = 0 if lower.startswith(b"subject:") else lower.find(b"\nsubject:") + 1
    found = _SUBJECT.match(head, start)
    return b"" if found is None else found[1][:_MAX_SUBJECT]


def _clean(value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        value = _UNSAFE.sub("?", value)
    return value[:_MAX_VALUE].strip()
