"""TNEF: the container that Outlook sends as `winmail.dat`; its attachments, with their names.

A list of attributes: level (1 byte), id (4), length (4), data, checksum (2), all little-endian. Checksums
are ignored, because Outlook ignores them too. An attachment may also have MAPI properties, among them its long name
and, for attached messages, its content; they are found by their tags, without reading the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = b"\x78\x9f\x3e\x22"
_HEADER = 6  # magic and a key
_ATTRIBUTE = struct.Struct("<BII")
_NEW_ATTACHMENT, _TITLE, _DATA, _PROPERTIES = 0x00069002, 0x00018010, 0x0006800F, 0x00069005
_NAMES = (b"\x1e\x00\x07\x37", b"\x1f\x00\x07\x37", b"\x1e\x00\x04\x37", b"\x1f\x00\x04\x37")  # long and short
_CONTENTS = (b"\x02\x01\x01\x37", b"\x0d\x00\x01\x37")  # bytes, and an object behind its 16 bytes of type


def attachments(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each attachment, once for each of its names. What follows a broken attribute is ignored."""
    names: list[str] = []
    data: list[bytes] = []
    for kind, value in _attributes(content):
        if kind == _NEW_ATTACHMENT:
            yield from _each(names, data)
            names, data = [], []
        elif kind == _TITLE:
            names.append(_text(value))
        elif kind == _DATA:
            data.append(value)
        elif kind == _PROPERTIES:
            names += [_text(found) for found in _properties(value, _NAMES)]
            data += _properties(value, _CONTENTS)
    yield from _each(names, data)


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = _HEADER
    while at + _ATTRIBUTE.size <= len(content):
        _, kind, length = _ATTRIBUTE.unpack_from(content, at)
        start = at + _ATTRIBUTE.size
        yield kind, content[start : start + length]
        at = start + length + 2


def _each(names: list[str], data: list[bytes]) -> Iterator[tuple[str, bytes]]:
    for content in data:
        for name in dict.fromkeys(names or [""]):
            yield name, content


def _properties(value: bytes, tags: tuple[bytes, ...]) -> list[bytes]:
    """The values of these properties: a count, which is 1, a length, and the bytes."""
    found = []
    for tag in tags:
        at = value.find(tag)
        if at >= 0 and at + 12 <= len(value):
            length = int.from_bytes(value[at + 8 : at + 12], "little")
            skipped = 16 if tag == _CONTENTS[1] else 0
            found.append(value[at + 12 + skipped : at + 12 + length])
    return found


def _text(value: bytes) -> str:
    if value[1:2] == b"\0" and len(value) > 2:
        return value.decode("utf-16-le", "replace").partition("\0")[0]
    return value.partition(b"\0")[0].decode("latin-1")
