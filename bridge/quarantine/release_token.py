"""The release token: a released mail that passes the bridge again is not scanned again.

A released mail goes to the next hop, and some next hops send it through the bridge once more. The header field
`X-Scan-Released` identifies it. It names the time of release and the size and hash of the mail, and holds one message
authentication code per recipient over all of that, the sender and the recipient, made with a key that only our
machines have. So a token serves one mail from one sender to one recipient, only for as long as a mail may wait in a
queue, and each code can be used once (`used_tokens`). A mail that we wrote, such as a digest, has one code for any
recipient; each of them can get it once. If this is wrong, a sender gets mail past the scanner.

What a server on the way may do is listed here, and nothing else: write trace fields above the token, join folded
lines, and add a Date and a Message-ID that the mail did not have. Every other byte below the token is hashed exactly,
each item with its length in front. A mail whose header section has a line that is not a field gets no token, because
readers disagree about it.

Finding a token costs no more than the length of the header section: its codes are verified before a byte of the body
is read, so a forged one costs nothing more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from itertools import islice

from bridge.mail.header_fields import Field, clean_fields, field_named
from bridge.mail.message import Message

VALID_S = 5 * 86400.0  # RFC 5321 4.5.4.1: how long mail servers retry
SKEW_S = 300.0  # clocks of two machines may differ
_MAX_FIELDS = 4  # checked per mail
ANYONE = "\0"  # in place of a recipient; it is not an address
_ACTION = b"scanbridge release 2"  # the number changes with the format
_MAX_VALUE = 64 * 1024  # bytes; enough for 2,000 recipients
_VALUE = re.compile(  # without white space
    rb"[^;]{1,80};t=(?P<time>\d{1,12});nonce=(?P<nonce>[\w-]{16});size=(?P<size>\d{1,12});hash=(?P<hash>[\w-]{43});"
    rb"add=(?P<add>[a-z,-]{0,32});mark=(?P<marks>[\w-]{24}(?:,[\w-]{24})*)"
)
_WHITE_SPACE = re.compile(rb"[ \t\r\n]+")

# Written above the token by the servers on the way: RFC 5321 4.4 and common practice.
_TRACE = frozenset((b"received", b"return-path", b"delivered-to", b"x-original-to", b"envelope-to"))

# Added by servers to a mail that has none: RFC 6409 8.
_MAY_BE_ADDED = (b"date", b"message-id")
_DATE = re.compile(rb" [A-Z][a-z]{2}, [ \d]\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}(?: \([A-Z]{1,5}\))?")
_MESSAGE_ID = re.compile(rb" <[!-;=?-~]{1,250}>")


@dataclass(frozen=True, slots=True)
class Token:
    """A token that our key made for this sender and these recipients; `is_for` tells for which mail."""

    codes: dict[str, bytes]  # by recipient; each may be used once
    released_at: int
    size: int  # of what follows the header section
    digest: bytes
    may_be_added: tuple[bytes, ...]
    raw: bytes  # the whole header field
    prefix: bytes  # of our own fields, in lower case

    def is_for(self, message: Message, now: float, check: Callable[[], None] = lambda: None) -> bool:
        """Whether this is the mail it was made for. Reads the message; `check` is called for each chunk."""
        head = message.head()
        if message.size - len(head) not in (self.size, self.size - 2) or (fields := clean_fields(head)) is None:
            return False
        released = self._as_released(fields, now)
        if released is None:
            return False
        size, digest = _digest(released, message, check)
        return size == self.size and hmac.compare_digest(digest, self.digest)

    def _as_released(self, fields: list[Field], now: float) -> list[Field] | None:
        """The fields below the token without those that were added on the way; None if others were added."""
        position = next((number for number, field in enumerate(fields) if field.raw == self.raw), None)
        if position is None:
            return None
        addable = list(self.may_be_added)

        def was_added(field: Field) -> bool:
            name = field.name.lower()
            if name not in addable or not _is_plausible(name, field.value, self.released_at, now):
                return False
            addable.remove(name)
            return True

        for field in _without_ours(fields[:position], self.prefix):
            if not (field.name.lower() in _TRACE and field.is_printable) and not was_added(field):
                return None
        return [field for field in _without_ours(fields[position:], self.prefix) if not was_added(field)]


class ReleaseTokens:
    """Creates and verifies tokens with one key."""

    def __init__(self, key: str, prefix: str) -> None:
        self._key = key.encode()
        self._name = f"{prefix}Released"
        self._ours = field_named(self._name)
        self._prefix = prefix.lower().encode("ascii")

    def field(
        self, message: Message, sender: str, recipients: Iterable[str], now: datetime, *, is_for_anyone: bool = False
    ) -> bytes:
        """The complete header field for these recipients; b"" if the mail can have none. Reads the message.

        `is_for_anyone`: for a mail that we wrote ourselves, which a server on the way may send to other addresses of
        its recipient.
        """
        fields = clean_fields(message.head())
        if fields is None:
            return b""
        fields = _without_ours(fields, self._prefix)
        size, digest = _digest(fields, message)
        names = {field.name.lower() for field in fields}
        add = b",".join(name for name in _MAY_BE_ADDED if name not in names)
        time, nonce = b"%d" % int(now.timestamp()), secrets.token_urlsafe(12).encode("ascii")
        items = [time, nonce, b"%d" % size, digest, add, _address(sender)]
        to = (ANYONE,) if is_for_anyone else dict.fromkeys(recipients)
        codes = b",\r\n ".join(self._code(items, recipient) for recipient in to)
        parts = [
            b"%b: %b" % (self._name.encode("ascii"), format_datetime(now.astimezone(UTC)).encode("ascii")),
            *(b"t=" + time, b"nonce=" + nonce, b"size=%d" % size, b"hash=" + _text(digest)),
            *(b"add=" + add, b"mark=" + codes),
        ]
        return b";\r\n ".join(parts) + b"\r\n"

    def find(self, head: bytes, sender: str, recipients: Sequence[str], now: float) -> Token | None:
        """The topmost token in this header section that our key made for this sender and all these recipients.

        Expired ones do not count. Does not read the mail itself.
        """
        for field in islice(self._ours.find(head), _MAX_FIELDS):
            value = field.value if len(field.value) <= _MAX_VALUE else b""
            found = _VALUE.fullmatch(_WHITE_SPACE.sub(b"", value))
            token = self._verified(found, field.raw, sender, recipients) if found is not None else None
            if token is not None and -SKEW_S <= now - token.released_at <= VALID_S:
                return token
        return None

    def _verified(self, found: re.Match[bytes], raw: bytes, sender: str, recipients: Sequence[str]) -> Token | None:
        digest = base64.urlsafe_b64decode(found["hash"] + b"=")
        items = [found["time"], found["nonce"], found["size"], digest, found["add"], _address(sender)]
        marks = {mark: mark for mark in found["marks"].split(b",")}
        is_for_anyone = self._code(items, ANYONE) in marks
        codes: dict[str, bytes] = {}
        for recipient in recipients:
            code = self._code(items, recipient)
            if not is_for_anyone and not hmac.compare_digest(code, marks.get(code, b"")):
                return None
            codes[recipient] = code
        may_be_added = tuple(found["add"].split(b","))
        size, released_at = int(found["size"]), int(found["time"])
        return Token(codes, released_at, size, digest, may_be_added, raw, self._prefix) if codes else None

    def _code(self, items: list[bytes], recipient: str) -> bytes:
        code = hmac.digest(self._key, _joined([_ACTION, *items, _address(recipient)]), "sha256")
        return base64.urlsafe_b64encode(code[:18])


def _without_ours(fields: list[Field], prefix: bytes) -> list[Field]:
    """Fields with our prefix are removed from every mail that passes the bridge: nobody will see them."""
    return [field for field in fields if not field.name.lower().startswith(prefix)]


def _digest(fields: list[Field], message: Message, check: Callable[[], None] = lambda: None) -> tuple[int, bytes]:
    """Size and hash of the mail as SMTP carries it: the last line has an end."""
    hashed = hashlib.sha256(len(fields).to_bytes(8))
    for field in fields:
        hashed.update(_joined([field.name, field.value.replace(b"\r\n", b"")]))
    skip = len(message.head())
    size = message.size - skip
    last = b""
    for chunk in message.chunks():
        check()
        body = memoryview(chunk)[skip:]
        skip = max(skip - len(chunk), 0)
        hashed.update(body)
        last = (last + bytes(body[-2:]))[-2:]
    if last and last != b"\r\n":
        hashed.update(b"\r\n")
        size += 2
    return size, hashed.digest()


def _is_plausible(name: bytes, value: bytes, released_at: int, now: float) -> bool:
    """Whether a server may have written this after the release."""
    if name != b"date":
        return _MESSAGE_ID.fullmatch(value) is not None
    if _DATE.fullmatch(value) is None:
        return False
    try:
        written_at = parsedate_to_datetime(value.decode("ascii")).timestamp()
    except (ValueError, OverflowError):
        return False
    return released_at - SKEW_S <= written_at <= now + SKEW_S


def _joined(items: Iterable[bytes]) -> bytes:
    """Each item with its length in front, so that none can imitate the end of another."""
    return b"".join(len(item).to_bytes(8) + item for item in items)


def _address(address: str) -> bytes:
    """Servers may change the case of a domain, never of a local part."""
    local, at, domain = address.encode("utf-8", "surrogatepass").rpartition(b"@")
    return local + at + domain.lower()


def _text(digest: bytes) -> bytes:
    return base64.urlsafe_b64encode(digest).rstrip(b"=")
