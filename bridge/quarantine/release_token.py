"""The release token: a released mail that passes the bridge again is not scanned again.

A released mail goes to the next hop, and some next hops send it through the bridge once more. The header
field `X-Scan-Released` identifies it: it holds one message authentication code per recipient, made with a
key that only our machines have, over the time of release, the recipient, the body, and the header fields
that readers see or mail programs act on. Nobody else can produce such a field. A copied field is valid
only for the same mail to the same recipient, and only for as long as a mail may wait in a queue. If a
server on the way changes more than it should, the token no longer matches and the mail is scanned.
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

VALID_S = 5 * 86400.0  # RFC 5321 4.5.4.1: how long mail servers retry
_SKEW_S = 300.0  # clocks of two machines may differ
_MAX_FIELDS = 4  # checked per mail
_VALUE = re.compile(rb"t=(\d{1,12});\s*mark=([\w,\s-]+)$")
_SIGNED = frozenset((b"from", b"sender", b"reply-to", b"to", b"cc", b"subject", b"mime-version"))


class ReleaseTokens:
    """Creates and verifies tokens with one key."""

    def __init__(self, key: str, prefix: str) -> None:
        self._key = key.encode()
        self._name = f"{prefix}Released"
        self._ours = field_named(self._name)

    def field(self, message: Message, recipients: Iterable[str], now: datetime) -> bytes:
        """The complete header field for these recipients. Reads the message."""
        released_at = int(now.timestamp())
        digest = _digest(message)
        codes = ",\r\n ".join(self._code(released_at, digest, recipient) for recipient in recipients)
        date = format_datetime(now.astimezone(UTC))
        return f"{self._name}: {date};\r\n t={released_at};\r\n mark={codes}\r\n".encode("ascii")

    def find(self, head: bytes, now: float) -> list[re.Match[bytes]]:
        """Fields that have the form of a token and have not expired; not verified."""
        found = []
        for match in self._ours.finditer(head):
            value = _VALUE.search(match.group(1))
            if value is not None and -_SKEW_S <= now - int(value.group(1)) <= VALID_S:
                found.append(match)
        return found[:_MAX_FIELDS]

    def valid(self, fields: list[re.Match[bytes]], message: Message, recipients: Iterable[str]) -> bytes | None:
        """The first of these fields that is a valid token for all recipients. Reads the message."""
        digest, addresses = _digest(message), list(recipients)
        for match in fields:
            value = _VALUE.search(match.group(1))
            assert value is not None
            codes = b"".join(value.group(2).split()).decode("ascii", "replace").split(",")
            released_at = int(value.group(1))
            if addresses and all(_is_among(self._code(released_at, digest, address), codes) for address in addresses):
                return match.group(0)
        return None

    def _code(self, released_at: int, digest: bytes, recipient: str) -> str:
        address = recipient.lower().encode("utf-8", "surrogateescape")
        code = hmac.digest(self._key, b"released %d\0%b\0%b" % (released_at, digest, address), "sha256")
        return base64.urlsafe_b64encode(code[:18]).decode("ascii")


def _is_among(code: str, codes: list[str]) -> bool:
    return any(hmac.compare_digest(code, known) for known in codes if known.isascii())


def _digest(message: Message) -> bytes:
    """A hash of what must not change. Servers may add trace fields, and a line end after the body."""
    head = message.head()
    hashed = hashlib.sha256()
    for name, value in ANY_FIELD.findall(head):
        if name.lower() in _SIGNED or name.lower().startswith(b"content-"):
            hashed.update(b"%b:%b\n" % (name.lower(), b" ".join(value.split())))
    skip, line_ends = len(head), b""
    for chunk in message.chunks():
        body = line_ends + chunk[skip:]
        skip = max(skip - len(chunk), 0)
        text = body.rstrip(b"\r\n")
        hashed.update(text)
        line_ends = body[len(text) :]  # hashed only if text follows
    return hashed.digest()
