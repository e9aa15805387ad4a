"""Pictures in old Office documents and in RTF: files in JPEG and PNG, which may have a code in them.

Office writes such a file as it is, after a record with its length (MS-ODRAW 2.2.23), in a stream of any name; Excel
splits all of that into records of a workbook. RTF has it in hexadecimal. Linear; raises only TooMuch.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Iterator

from bridge.service.analysis.content.unpacking import Budget, Member

_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_RECORD = struct.Struct("<2xHI")
_KINDS = range(0xF01A, 0xF02B)
_BEFORE = (17, 33)  # bytes of the record before the file: one digest or two, and a tag
_START_WORK = 64  # for each place where a file may begin
_GROUP, _CONTINUED = 0x00EB, 0x003C  # MsoDrawingGroup and Continue (MS-XLS 2.4.171, 2.4.58)
_GROUP_WORK = 32  # for each record of Excel
_HEX = re.compile(rb"(?:89504[eE]470[dD]0[aA]|[fF]{2}[dD]8[fF]{2})[0-9a-fA-F]{200,}+")
_HEX_WORK = 20  # for each byte of RTF


def in_stream(stream: bytes, budget: Budget) -> Iterator[Member]:
    for start in _STARTS:
        at = stream.find(start)
        while at >= 0:
            budget.take_work(_START_WORK)
            if length := _length(stream, at):
                yield _picture(stream[at : at + length], budget)
            at = stream.find(start, at + 1)


def in_book(book: bytes, budget: Budget) -> Iterator[Member]:
    """Those of an Excel workbook."""
    if any(start in book for start in _STARTS):
        yield from in_stream(b"".join(_drawings(book, budget)), budget)


def in_rtf(content: bytes, budget: Budget) -> Iterator[Member]:
    if b"\\pict" not in content:
        return
    budget.take_work(_HEX_WORK * len(content))
    for match in _HEX.finditer(content.translate(None, b" \t\r\n")):
        digits = match[0]
        yield _picture(binascii.unhexlify(digits[: len(digits) // 2 * 2]), budget)


def _length(stream: bytes, at: int) -> int:
    """Of the file; 0 if no record precedes it."""
    for before in _BEFORE:
        start = at - before - _RECORD.size
        if start >= 0:
            kind, length = _RECORD.unpack_from(stream, start)
            if kind in _KINDS and length > before:
                return int(length) - before
    return 0


def _drawings(book: bytes, budget: Budget) -> Iterator[bytes]:
    at, is_group = 0, False
    while at + 4 <= len(book):
        budget.take_work(_GROUP_WORK)
        kind, length = struct.unpack_from("<HH", book, at)
        is_group = kind == _GROUP or (is_group and kind == _CONTINUED)
        if is_group:
            yield book[at + 4 : at + 4 + length]
        at += 4 + length


def _picture(content: bytes, budget: Budget) -> Member:
    budget.take_member()
    budget.take(len(content))
    return Member(("",), content)
