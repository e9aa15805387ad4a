"""AppleSingle and MacBinary: a file with its name and its resources in one, which mail programs on a Mac take apart.

AppleSingle (RFC 1740) is a list of entries: number, offset and length of each. AppleDouble has the same form; it
should not have the content of a file, and is left alone if it has none, because archives made on a Mac are full of it.
MacBinary is a header of 128 bytes, followed by the content. Without this, such a file would hide any other.

A property list in XML has data in Base64: a page that Safari saves (`.webarchive`) may be one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator

from bridge.mime import encodings
from bridge.mime.references import unescaped
from bridge.service.analysis.content.unpacking import Budget, Member

_MAGIC = (b"\0\x05\x16\0", b"\0\x05\x16\x07")  # AppleSingle, AppleDouble
_COUNT_AT, _ENTRIES_AT = 24, 26
_ENTRY = struct.Struct(">III")
_CONTENT, _NAME = 1, 3
_ENTRY_COST = 256  # work for each; the standard defines 15, but there may be 65,535
_NAME_COST = 16  # work for each byte of the names, with each content
_BINARY_HEADER = 128  # bytes, of MacBinary
_MAX_NAME = 63
_LIST, _LIST_START = b"<plist", 2048  # how a property list says what it is, and bytes in which it usually does
_BLANK = b" \t\n\r\v\f\0\xef\xbb\xbf\xfe\xff"  # what precedes XML, perhaps in UTF-16 or UTF-32
_DATA = re.compile(rb"<data[^<>]*+>([^<]*+)<")


def is_apple_file(content: bytes) -> bool:
    """Whether it is one of these and has the content of a file."""
    if content.startswith(_MAGIC):
        return any(number == _CONTENT and length for number, _, length in _entries(content))
    return content[:1] == b"\0" and _is_mac_binary(content)


def apple_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """The contents: there should be one. Raises TooMuch."""
    if not content.startswith(_MAGIC):
        own = content[2 : 2 + content[1]]
        spans = [(_BINARY_HEADER, struct.unpack_from(">I", content, 83)[0])]
    else:
        entries = _entries(content)
        budget.take_work(_ENTRY_COST * len(entries))
        own = next((content[at : at + length] for number, at, length in entries if number == _NAME), b"")
        spans = [(at, length) for number, at, length in entries if number == _CONTENT]
    known = tuple(dict.fromkeys((own.decode("mac_roman"), own.decode("utf-8", "replace"), *names)))
    name_cost = _NAME_COST * sum(map(len, known))
    for start, length in dict.fromkeys(spans):
        data = content[start : start + length]
        budget.take_work(name_cost)
        budget.take_member()
        budget.take(len(data))
        yield Member(known, data, is_disputed=True)


def is_property_list(content: bytes) -> bool:
    """A long comment may precede it, but only what begins as XML is searched for that."""
    start = content[:_LIST_START].replace(b"\0", b"")
    if _LIST in start:
        return True
    first = content.find(b"<")
    if len(content) <= _LIST_START or first < 0 or content[:first].translate(None, _BLANK):
        return False
    return _LIST in content or (len(start) < _LIST_START and _LIST in content.translate(None, b"\0"))


def data_in_list(content: bytes) -> Iterator[bytes]:
    """The pages and pictures in it."""
    for match in _DATA.finditer(content.replace(b"\0", b"")):
        text = unescaped(match[1].decode("latin-1")).encode("latin-1", "replace") if b"&" in match[1] else match[1]
        yield encodings.decode(text, "base64")[0]


def _entries(content: bytes) -> list[tuple[int, int, int]]:
    count = int.from_bytes(content[_COUNT_AT:_ENTRIES_AT], "big")
    wanted = min(count, max(0, len(content) - _ENTRIES_AT) // _ENTRY.size)
    return list(_ENTRY.iter_unpack(content[_ENTRIES_AT : _ENTRIES_AT + wanted * _ENTRY.size]))


def _is_mac_binary(content: bytes) -> bool:
    """The format has no mark, but bytes that are zero, a name without control characters, and lengths that fit."""
    if len(content) <= _BINARY_HEADER or content[74] or content[82] or not 0 < content[1] <= _MAX_NAME:
        return False
    name, rest = content[2 : 2 + content[1]], content[2 + content[1] : 65]
    data, resources = struct.unpack_from(">II", content, 83)
    return min(name) >= 32 and not rest.strip(b"\0") and data > 0 and data + resources <= len(content)
