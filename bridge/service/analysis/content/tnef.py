"""TNEF: the container that Outlook sends as `winmail.dat`; its attachments, with their names.

A list of attributes: level (1 byte), id (4), length (4), data, checksum (2), all little-endian. Checksums
are ignored, because Outlook ignores them too. An attribute may hold a list of MAPI properties (MS-OXTNEF 2.1.3.4).
Every property of variable length is taken for a file, because programs disagree on which of them is the attachment;
and so is anything that looks like one in the places where a program that has lost its way in the list would look.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from bridge.service.analysis.content import compressed_rtf
from bridge.service.analysis.content.office_attacks import EXPLOIT, is_remote_sound
from bridge.service.analysis.content.unpacking import BadArchive, Budget, Member

MAGIC = b"\x78\x9f\x3e\x22"
_HEADER = 6  # magic and a key
_ATTRIBUTE = struct.Struct("<BII")
_NUMBER = struct.Struct("<I")
_NEW_ATTACHMENT = 0x00069002
# The lower half of an id, because some programs ignore the upper half, which is the type of the value.
_START, _TITLE, _TRANSPORT_NAME, _DATA, _BODY = 0x9002, 0x8010, 0x9001, 0x800F, 0x800C
_PROPERTIES = (0x9003, 0x9005)  # of the message, of an attachment
# Long and short file name, long and short path, display name, transport name
_NAMES = frozenset({0x3707, 0x3704, 0x370D, 0x3708, 0x3001, 0x370C})
_STRING, _UNICODE, _BINARY, _OBJECT = 0x1E, 0x1F, 0x102, 0x0D
_FIXED = {0x02: 4, 0x03: 4, 0x04: 4, 0x05: 8, 0x06: 8, 0x07: 8, 0x0A: 4, 0x0B: 4, 0x14: 8, 0x40: 8, 0x48: 16}
_MULTIPLE, _FIRST_NAMED = 0x1000, 0x8000
_VALUE_COST = 1024  # work for each attribute, property and value, however short
_RTF_COST = 100  # work for each byte of compressed text
_INTERFACE = 16  # bytes for the type before an object's content
_SOUND = re.compile(rb"\x1f\x85\0\0\x01\0\0\0(.{4})", re.DOTALL)  # of a reminder (PidLidReminderFileParameter)
_LONGEST_PATH, _PATH_WORK = 2048, 80_000  # bytes; for each
_LIKELY = re.compile(rb"[\x1e\x1f]\0[\x04\x07]\x37|(?:\x02\x01|\x0d\0)\x01\x37")  # a name or the data of an attachment


@dataclass(slots=True)
class _Attachment:
    names: dict[str, None] = field(default_factory=dict)
    spans: dict[tuple[int, int], None] = field(default_factory=dict)  # where its content may be


def tnef_members(content: bytes, _names: Collection[str], budget: Budget) -> Iterator[Member]:
    """Raises BadArchive, after all that could be read."""
    attachment, is_broken, at = _Attachment(), False, _HEADER
    while at + _ATTRIBUTE.size <= len(content):
        budget.take_work(_VALUE_COST)
        _, kind, length = _ATTRIBUTE.unpack_from(content, at)
        start, end = at + _ATTRIBUTE.size, at + _ATTRIBUTE.size + length
        if kind & 0xFFFF == _START:
            yield from _members(content, attachment, budget)
            # Where only some programs see a new attachment, the names may belong to what follows too.
            attachment = _Attachment() if kind == _NEW_ATTACHMENT else _Attachment(attachment.names)
        if kind & 0xFFFF in _PROPERTIES and any(map(is_remote_sound, _sounds(content, start, end, budget))):
            yield Member((), None, tags=(EXPLOIT,))
        is_broken |= end > len(content)
        is_broken |= not _read_attribute(attachment, kind & 0xFFFF, content, start, min(end, len(content)), budget)
        at = end + 2
    yield from _members(content, attachment, budget)
    if is_broken:
        raise BadArchive


def _sounds(content: bytes, start: int, end: int, budget: Budget) -> Iterator[str]:
    for match in _SOUND.finditer(content, start, end):
        budget.take_work(_PATH_WORK)
        length = min(_NUMBER.unpack(match[1])[0], _LONGEST_PATH)
        yield content[match.end() : match.end() + length].replace(b"\0", b"").decode("latin-1")


def _members(content: bytes, attachment: _Attachment, budget: Budget) -> Iterator[Member]:
    names = tuple(filter(None, attachment.names)) or ("",)
    budget.take_work(_VALUE_COST * len(names))
    if not attachment.spans and any(names):
        yield Member(names, None)
    for start, end in attachment.spans:
        budget.take_member()
        budget.take(max(0, min(end, len(content)) - start))
        yield Member(names, content[start:end], is_disputed=True)  # engines may not open TNEF
        if compressed_rtf.is_compressed(content[start : min(end, start + 16)]):
            budget.take_work(_RTF_COST * (end - start))
            text = compressed_rtf.decompressed(content[start:end])
            budget.take(len(text))
            yield Member(names, text, is_disputed=True)


def _read_attribute(attachment: _Attachment, kind: int, content: bytes, start: int, end: int, budget: Budget) -> bool:
    """False if it is damaged."""
    if kind in (_TITLE, _TRANSPORT_NAME):
        _add_names(attachment, content[start:end], is_unicode=False)
    elif kind in (_DATA, _BODY):
        attachment.spans[start, end] = None
    elif kind in _PROPERTIES:
        for match in _LIKELY.finditer(content, start, end):
            _read_likely(attachment, content, match.start(), end, budget)
        try:
            for tag, first, last in _properties(content, start, end, budget):
                budget.take_work(_VALUE_COST)
                _read_property(attachment, tag, content, first, last)
        except (struct.error, IndexError):
            return False
    return True


def _properties(content: bytes, at: int, end: int, budget: Budget) -> Iterator[tuple[int, int, int]]:
    """The tag and place of each value of variable length. Raises struct.error and IndexError."""
    count, at = _number(content, at, end)
    for _ in range(count):
        budget.take_work(_VALUE_COST)
        tag, at = _number(content, at, end)
        if tag >> 16 >= _FIRST_NAMED:
            at = _after_name(content, at, end)
        kind, values = tag & 0xFFFF & ~_MULTIPLE, 1
        if tag & _MULTIPLE or kind not in _FIXED:
            values, at = _number(content, at, end)
        if kind in _FIXED:
            at += values * _FIXED[kind]
            continue
        for _ in range(values):
            length, at = _number(content, at, end)
            yield tag, at, min(at + length, end)
            at += length + -length % 4


def _number(content: bytes, at: int, end: int) -> tuple[int, int]:
    if at + 4 > end:
        raise IndexError
    return _NUMBER.unpack_from(content, at)[0], at + 4


def _after_name(content: bytes, at: int, end: int) -> int:
    """A property with a name: the set it belongs to, and its number or its name."""
    is_string, at = _number(content, at + 16, end)
    value, at = _number(content, at, end)
    return at + value + -value % 4 if is_string else at


def _read_property(attachment: _Attachment, tag: int, content: bytes, start: int, end: int) -> None:
    kind = tag & 0xFFFF & ~_MULTIPLE
    if tag >> 16 in _NAMES and kind in (_STRING, _UNICODE):
        _add_names(attachment, content[start:end], is_unicode=kind == _UNICODE)
        return
    if start < end:
        attachment.spans[start, end] = None
    if kind == _OBJECT and start + _INTERFACE < end:
        attachment.spans[start + _INTERFACE, end] = None


def _read_likely(attachment: _Attachment, content: bytes, at: int, end: int, budget: Budget) -> None:
    """Such places may overlap, so that even reading their names must be charged."""
    if at + 12 > end:
        return
    tag, _, length = struct.unpack_from("<III", content, at)
    if at + 12 + length <= end:
        budget.take_work(_VALUE_COST + length)
        _read_property(attachment, tag, content, at + 12, at + 12 + length)


def _add_names(attachment: _Attachment, value: bytes, *, is_unicode: bool) -> None:
    if is_unicode or (value[1:2] == b"\0" and len(value) > 2):
        attachment.names[value.decode("utf-16-le", "replace").partition("\0")[0]] = None
    if not is_unicode:
        attachment.names[value.partition(b"\0")[0].decode("latin-1")] = None
