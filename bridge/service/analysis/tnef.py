"""TNEF: the container that Outlook sends as `winmail.dat`; its attachments, with their names.

A list of attributes: level (1 byte), id (4), length (4), data, checksum (2), all little-endian. Checksums
are ignored, because Outlook ignores them too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = b"\x78\x9f\x3e\x22"
_HEADER = 6  # magic and a key
_ATTRIBUTE = struct.Struct("<BII")
_NEW_ATTACHMENT, _TITLE, _DATA = 0x00069002, 0x00018010, 0x0006800F


def attachments(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each attachment; a name may be empty. What follows a broken attribute is ignored."""
    name, data = "", b""
    at = _HEADER
    while at + _ATTRIBUTE.size <= len(content):
        _, kind, length = _ATTRIBUTE.unpack_from(content, at)
        value = content[at + _ATTRIBUTE.size : at + _ATTRIBUTE.size + length]
        at += _ATTRIBUTE.size + length + 2
        if kind == _NEW_ATTACHMENT and data:
            yield name, data
            name, data = "", b""
        elif kind == _TITLE:
            name = value.partition(b"\0")[0].decode("latin-1")
        elif kind == _DATA:
            if data:
                yield name, data
            data = value
    if data:
        yield name, data
