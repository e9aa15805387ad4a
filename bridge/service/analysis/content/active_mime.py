"""Web archives of Office: a document as a mail, whose macros are in a separate, compressed file (`editdata.mso`).

Word opens such a mail whatever its name is, even after the beginning of another file, such as a PDF document.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from bridge.service.analysis.content import file_types
from bridge.service.analysis.content.decompression import inflated
from bridge.service.analysis.content.pdf_files import NOT_READ, is_pdf
from bridge.service.analysis.content.unpacking import Budget, Member

MAGIC = b"ActiveMime"
_HEAD = 64  # bytes in which it begins
_ZLIB = re.compile(rb"\x78[\x01\x5e\x9c\xda]")
_ZLIB_WITHIN = 4096  # bytes; usually at 50
_ATTEMPTS = 16
_OFFSET_AT, _OFFSET_FROM = 0x1E, 46  # where the header has the offset of the data, and where that counts from
_OFFICE_NAMES = frozenset(
    "doc docx docm dot dotx dotm rtf wiz wbk xml xls xlsx xlsm xlt xlsb ppt pptx pps pot one".split()  # noqa: SIM905
)
_FIELDS_WITHIN = 4096  # bytes before the field that is searched for, which may contain others


def is_active_mime(content: bytes) -> bool:
    return MAGIC in content[:_HEAD]


def active_mime_members(content: bytes, budget: Budget) -> Iterator[Member]:
    """Everything in it that can be inflated: the header says where the data begins, and anything may precede it."""
    is_read = False
    for start in _starts(content):
        if data := inflated(content[start:], budget):
            is_read = True
            budget.take_member()
            yield Member(("",), data, is_disputed=True)
    if not is_read:
        yield Member((), None, tags=(NOT_READ,))


def _starts(content: bytes) -> list[int]:
    """The place that the header names, and others that look like one."""
    header = content[content.find(MAGIC) :]
    named = len(content) - len(header) + int.from_bytes(header[_OFFSET_AT : _OFFSET_AT + 2], "little") + _OFFSET_FROM
    found = [match.start() for match in _ZLIB.finditer(content, 0, _ZLIB_WITHIN)]
    return list(dict.fromkeys([named, *found[:_ATTEMPTS]]))


def has_web_archive(content: bytes, names: Collection[str]) -> bool:
    """Whether Word may open it as a mail. Mail programs do not, so its parts are not those of the mail."""
    return (is_pdf(content) or file_types.has_extension(names, _OFFICE_NAMES)) and _start(content) >= 0


def web_archive_members(content: bytes, budget: Budget) -> Iterator[Member]:
    budget.take_member()
    yield Member(("archive.mht",), content[_start(content) :])


def _start(content: bytes) -> int:
    """Where the header begins; -1 if there is none."""
    lower = content.lower()
    at = lower.find(b"mime-version:")
    if at < 0 or lower.find(b"multipart/") < 0:
        return -1
    other = lower.find(b"content-type:", max(0, at - _FIELDS_WITHIN), at)
    return at if other < 0 else other
