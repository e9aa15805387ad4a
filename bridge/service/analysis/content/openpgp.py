"""OpenPGP messages that are compressed or signed, but not encrypted: mail programs show them without a key.

A message (RFC 4880) is a list of packets: compressed data contains packets itself, literal data is the file or the
mail. Packets of all other types are skipped; what is encrypted cannot be read by anyone else either.
"""

from __future__ import annotations

import binascii
import bz2
import re
from collections.abc import Collection, Iterator

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.decompression import Decoder, Inflater, decode
from bridge.service.analysis.content.unpacking import Budget, Member

BEGIN = b"-----BEGIN PGP "  # whatever follows: programs open a message that is called a key as well
_CLEAR_TEXT = b"SIGNED MESSAGE-----"
_EMPTY_LINE = re.compile(rb"\n[ \t\r]*\n")
_END = re.compile(rb"\n=|-----")  # a checksum, or the last line
_LAST_LINE = b"-----END PGP"
_SUFFIXES = (".gpg", ".pgp", ".asc", ".sig")
_COMPRESSED, _LITERAL = 8, 11
# How the bodies of packets begin that may be the first ones: signatures, compressed data, a marker, literal data.
_FIRST = {2: b"\3\4\5\6", 4: b"\3\6", _COMPRESSED: b"\1\2\3", 10: b"P", _LITERAL: b"btu"}
_MAX_DEPTH = 10
_PACKET_COST = 256  # work for each packet, and each part of one
_ARMOUR_COST = 4096  # work for each armour, however short it is
_MAX_DOUBTS = 50


def is_message(content: bytes) -> bool:
    """Whether it begins like a message that can be opened without a key: compressed, signed, or neither."""
    if not content or content[0] < 0x80:
        return False
    try:
        packets = _packets(content, Budget(bytes=len(content), work=_MAX_DOUBTS * _PACKET_COST))
        # Packets of types that programs do not know may come first.
        return any(body[:1] != b"" and body[0] in _FIRST.get(tag, b"") for tag, body in packets)
    except TooMuch:
        return True  # there are so many that only opening it can tell


def openpgp_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    known = tuple(dict.fromkeys((*names, *map(_stem, names))))
    yield from _in_packets(content, known, budget, 0)
    for text in _armours(content, budget):
        if not text.startswith(_CLEAR_TEXT):
            for message in _armoured(text, budget):
                yield from _in_packets(message, known, budget, 0)


def _armours(content: bytes, budget: Budget) -> Iterator[bytes]:
    """From each first line to the next one, or to the next padding or checksum: what precedes that may be data."""
    start = content.find(BEGIN)
    while start >= 0:
        following = content.find(BEGIN, start + len(BEGIN))
        start += len(BEGIN)
        blank = _EMPTY_LINE.search(content, start)
        data = blank.end() if blank else len(content)
        padding = content.find(b"=", data) + 1 or len(content)
        end = max(padding, following if following >= 0 else len(content))
        budget.take_work(_ARMOUR_COST + end - start)
        yield content[start:end]
        start = following


def _stem(name: str) -> str:
    return name[:-4] if name.lower().endswith(_SUFFIXES) else name


def _armoured(text: bytes, budget: Budget) -> Iterator[bytes]:
    """What programs decode of an armour: some pass over what does not belong there, some take it for the end."""
    seen = set()
    for after in (_EMPTY_LINE.split(text, maxsplit=1)[-1], text.partition(b"\n")[2]):
        for end in (_END.split(after, maxsplit=1)[0], after.partition(_LAST_LINE)[0], after):
            budget.take_work(_PACKET_COST + len(text))
            letters = end.translate(None, b"=-\r\n")
            if letters not in seen:
                seen.add(letters)
                yield _binary(letters)


def _binary(letters: bytes) -> bytes:
    """As many as form whole bytes."""
    try:
        return binascii.a2b_base64(letters + b"===")
    except binascii.Error:
        return b""


def _in_packets(data: bytes, names: Collection[str], budget: Budget, depth: int) -> Iterator[Member]:
    if depth > _MAX_DEPTH:
        raise TooMuch("openpgp-depth")
    for tag, body in _packets(data, budget):
        if tag == _COMPRESSED:
            yield from _in_packets(_decompressed(body, budget), names, budget, depth + 1)
        elif tag == _LITERAL and len(body) > 2:
            start = 2 + body[1]
            budget.take_member()
            yield Member((body[2:start].decode("utf-8", "replace"), *names), body[start + 4 :], is_disputed=True)


def _decompressed(body: bytes, budget: Budget) -> bytes:
    def inflater() -> Decoder:
        return Inflater(-15 if body[0] == 1 else 15)

    if body[:1] in (b"\1", b"\2", b"\3"):
        return decode(bz2.BZ2Decompressor if body[0] == 3 else inflater, body, 1, budget).content
    return body[1:]


def _packets(data: bytes, budget: Budget) -> Iterator[tuple[int, bytes]]:
    """The type and content of each packet, up to the first that is not one."""
    at = 0
    while at < len(data) and data[at] & 0x80:
        parts: list[bytes] = []
        if data[at] & 0x40:
            tag, is_last, at = data[at] & 0x3F, False, at + 1
            while not is_last and at < len(data):
                length, at, is_last = _new_length(data, at)
                parts.append(_take(data, at, length, budget))
                at += length
        else:
            tag, size = data[at] >> 2 & 0x0F, (1, 2, 4, 0)[data[at] & 3]
            length = int.from_bytes(data[at + 1 : at + 1 + size], "big") if size else len(data)
            at += 1 + size
            parts.append(_take(data, at, length, budget))
            at += length
        yield tag, b"".join(parts)


def _take(data: bytes, at: int, length: int, budget: Budget) -> bytes:
    budget.take_work(_PACKET_COST)
    part = data[at : at + length]
    budget.take(len(part))
    return part


def _new_length(data: bytes, at: int) -> tuple[int, int, bool]:
    """The length, where the content starts, and whether this is all of it or the last part."""
    first = data[at]
    if first < 192:
        return first, at + 1, True
    if first < 224:
        return (first - 192 << 8) + int.from_bytes(data[at + 1 : at + 2], "big") + 192, at + 2, True
    if first == 255:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5, True
    return 1 << (first & 0x1F), at + 1, False
