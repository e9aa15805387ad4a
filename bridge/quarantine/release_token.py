"""The mark of a released mail: somebody said that it may go, so it is not scanned again.

A released mail goes to the next hop, and some next hops send it through the bridge once more. The
field `X-Scan-Released` then tells it apart: for each recipient it has a message authentication code,
made with a key that only our machines have, over the moment of release, the recipient, the body and
those header fields that a reader sees or a client goes by. A stranger can write no such field, and
one that was copied from a released mail is good only for that very mail to that very recipient, for
as long as a mail may wait in a queue. Nothing breaks when a server on the way changes more than it
should: the mark no longer fits, and the mail is scanned as any other.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import format_datetime

from bridge.mail.header_fields import ANY_FIELD, field_named
from bridge.mail.message import Message

VALID_S = 5 * 86400.0  # RFC 5321 4.5.4.1: how long a mail is tried
_SKEW_S = 300.0  # two machines' clocks may differ
_MOST = 4  # fields looked at
_VALUE = re.compile(rb"t=(\d{1,12});\s*mark=([\w,\s-]+)$")
_SIGNED = frozenset((b"from", b"sender", b"reply-to", b"to", b"cc", b"subject", b"mime-version"))


class Marks:
    """Makes and knows them."""

    def __init__(self, key: str, prefix: str) -> None:
        self._key = key.encode()
        self._name = f"{prefix}Released"
        self._ours = field_named(self._name)

    def field(self, message: Message, recipients: Iterable[str], now: datetime) -> bytes:
        """The whole header field, for these recipients. Reads the message."""
        moment = int(now.timestamp())
        digest = _digest(message)
        codes = ",\r\n ".join(self._code(moment, digest, recipient) for recipient in recipients)
        date = format_datetime(now.astimezone(UTC))
        return f"{self._name}: {date};\r\n t={moment};\r\n mark={codes}\r\n".encode("ascii")

    def find(self, head: bytes, now: float) -> list[re.Match[bytes]]:
        """Fields that may be marks, by their looks."""
        found = []
        for match in self._ours.finditer(head):
            value = _VALUE.search(match.group(1))
            if value is not None and -_SKEW_S <= now - int(value.group(1)) <= VALID_S:
                found.append(match)
        return found[:_MOST]

    def valid(self, fields: list[re.Match[bytes]], message: Message, recipients: Iterable[str]) -> bytes | None:
        """The first of these fields that is a mark for all the recipients. Reads the message."""
        digest, wanted = _digest(message), list(recipients)
        for match in fields:
            value = _VALUE.search(match.group(1))
            assert value is not None
            codes = b"".join(value.group(2).split()).decode("ascii", "replace").split(",")
            moment = int(value.group(1))
            if wanted and all(_is_among(self._code(moment, digest, one), codes) for one in wanted):
                return match.group(0)
        return None

    def _code(self, moment: int, digest: bytes, recipient: str) -> str:
        address = recipient.lower().encode("utf-8", "surrogateescape")
        code = hmac.digest(self._key, b"released %d\0%b\0%b" % (moment, digest, address), "sha256")
        return base64.urlsafe_b64encode(code[:18]).decode("ascii")


def _is_among(code: str, codes: list[str]) -> bool:
    return any(hmac.compare_digest(code, one) for one in codes if one.isascii())


def _digest(message: Message) -> bytes:
    """Of what must not change; servers may add trace fields, and end the body with a line end."""
    head = message.head()
    hashed = hashlib.sha256()
    for name, value in ANY_FIELD.findall(head):
        if name.lower() in _SIGNED or name.lower().startswith(b"content-"):
            hashed.update(b"%b:%b\n" % (name.lower(), b" ".join(value.split())))
    skip, ends = len(head), b""
    for chunk in message.chunks():
        body = ends + chunk[skip:]
        skip = max(skip - len(chunk), 0)
        kept = body.rstrip(b"\r\n")
        hashed.update(kept)
        ends = body[len(kept) :]
    return hashed.digest()
