"""OpenPGP: the files in a message that is only signed or compressed, which mail programs show without a key.

Walks the packets (RFC 9580) and returns literal data, also from within compressed data. An encrypted message
contains nothing that anyone but its recipient could read. Nothing here raises, whatever the input, except what
`inflate` raises: it decompresses within the budget of the mail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from bridge.mime import encodings

ARMOR = b"-----BEGIN PGP MESSAGE"
MAX_DEPTH = 4
MAX_PACKETS = 1000
_COMPRESSED, _LITERAL = 8, 11
# How the bodies of packets begin that may be the first ones: signatures, compressed data, a marker, literal data.
_FIRST = {2: b"\3\4\5\6", 4: b"\3\6", _COMPRESSED: b"\1\2\3", 10: b"P", _LITERAL: b"btu"}
_BLANK = re.compile(rb"\n[ \t\r]*\n")

Inflate = Callable[[bytes, int], bytes]  # (content, algorithm) -> decompressed


def is_message(content: bytes) -> bool:
    """Whether it begins like a message that can be opened without a key: compressed, signed, or neither."""
    if content.startswith(ARMOR):
        return True
    tag, body = next(_packets(content[:16]), (0, b""))
    return len(body) > 0 and body[0] in _FIRST.get(tag, b"")


def files(message: bytes, inflate: Inflate, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file."""
    for tag, body in _packets(_without_armor(message)):
        if tag == _LITERAL and len(body) > 2:
            start = 2 + body[1]
            yield body[2:start].decode("utf-8", "replace"), body[start + 4 :]  # after the date
        elif tag == _COMPRESSED and depth < MAX_DEPTH:
            yield from files(inflate(body[1:], body[0] if body else 0), inflate, depth + 1)


def _without_armor(message: bytes) -> bytes:
    """Base64 after the armor's own header fields, up to the checksum or the last line."""
    if not message.startswith(ARMOR):
        return message
    text = _BLANK.split(message, 1)[-1]
    return encodings.decode(text.partition(b"-----END")[0].partition(b"\n=")[0], "base64")[0]


def _packets(message: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    for _ in range(MAX_PACKETS):
        first = message[at] if at < len(message) else 0
        if not first & 0x80:
            return
        if first & 0x40:
            tag = first & 0x3F
            body, at = _new_format(message, at + 1)
        else:
            tag = first >> 2 & 0x0F
            size = (1, 2, 4, 0)[first & 3]
            start = at + 1 + size
            at = start + int.from_bytes(message[at + 1 : start], "big") if size else len(message)
            body = message[start:at]
        yield tag, body


def _new_format(message: bytes, at: int) -> tuple[bytes, int]:
    """The body, which may come in pieces, and where it ends."""
    pieces: list[bytes] = []
    while at < len(message):
        first = message[at]
        if first < 192:
            start, length = at + 1, first
        elif first < 224:
            start, length = at + 2, (first - 192 << 8) + int.from_bytes(message[at + 1 : at + 2], "big") + 192
        elif first == 255:
            start, length = at + 5, int.from_bytes(message[at + 1 : at + 5], "big")
        else:
            start, length = at + 1, 1 << (first & 0x1F)
        at = start + length
        pieces.append(message[start:at])
        if first < 224 or first == 255:
            break
    return b"".join(pieces), at
