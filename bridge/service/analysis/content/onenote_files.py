"""OneNote: the files in a section, and the names that its pages show for them. Linear; raises only TooMuch.

The store of objects is not followed (MS-ONESTORE): embedded files are found by their own marker. A name is a value of
a set of properties, which lists their ids first and the values after them, in the same order (MS-ONESTORE 2.6.7).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from bridge.service.analysis.content import file_types, recognition
from bridge.service.analysis.content.office_attacks import LAUNCH, any_starts_program
from bridge.service.analysis.content.unpacking import Budget, Member

MAGIC = b"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d"
EMBEDDED = "office:embedded-file"
_FILE = bytes.fromhex("e716e3bd65261145a4c48d4d0b7a9eac")
_FILE_HEAD = 36
_NAME_IDS = tuple(number.to_bytes(4, "little") for number in (0x1C001D9C, 0x1C001D9D))  # EmbeddedFileName, its source
_LINK_IDS = ((0x1C001E20).to_bytes(4, "little"),)  # WzHyperlinkUrl, of a picture
_FIELD = 'HYPERLINK "'.encode("utf-16-le")  # in the text of a page
_SIZES = {0x1: 0, 0x2: 0, 0x3: 1, 0x4: 2, 0x5: 4, 0x6: 8, 0x8: 0, 0x9: 4, 0xA: 0, 0xB: 4, 0xC: 0, 0xD: 4}  # by type
_SIZED = 0x7  # a value that begins with its length
_MOST_PROPERTIES, _LONGEST = 64, 1024
_SEARCH_WORK = 4096
# Names of programs anywhere in the file, for those that are not found that way. Not `.com`: hosts end in it, too.
_PROGRAM_NAME = re.compile(
    rb"\.\0(?:e\0x\0e|h\0t\0a|v\0b\0[se]|j\0s(?:\0e)?|w\0s\0[fh]|c\0m\0d|b\0a\0t|p\0s\x001|l\0n\0k|c\0h\0m|s\0c\0r|m\0s\0i"
    rb"|i\0s\0o|u\0r\0l)\0\0\0",
    re.IGNORECASE,
)
_MOST_PROGRAMS = 20
_BEFORE = 100  # bytes of such a name before its last dot


def onenote_members(content: bytes, budget: Budget) -> Iterator[Member]:
    budget.take_work(10 * len(content))
    names = tuple(dict.fromkeys(_names(content, budget)))
    pages = tuple(name for name in names if recognition.is_page((name,)))[:20]
    has_file = False
    at = content.find(_FILE)
    while at >= 0:
        size = int.from_bytes(content[at + 16 : at + 24], "little")
        data = content[at + _FILE_HEAD : at + _FILE_HEAD + size]
        budget.take_member()
        budget.take(len(data))
        is_picture = file_types.family_of(data) == file_types.IMAGE
        has_file |= not is_picture
        own = pages if pages and file_types.is_text(data) else ("",)  # which of them it has is not known
        yield Member(own, data, tags=() if is_picture else (EMBEDDED,), is_disputed=True)
        at = content.find(_FILE, at + _FILE_HEAD)
    if any_starts_program(_links(content, budget), budget):
        yield Member((), None, tags=(LAUNCH,))
    if has_file:
        names += tuple(islice(_program_names(content), _MOST_PROGRAMS))
    yield Member(names, None)


def _program_names(content: bytes) -> Iterator[str]:
    for match in _PROGRAM_NAME.finditer(content):
        start = max(match.start() % 2, match.start() - _BEFORE)
        text = content[start : match.end()].decode("utf-16-le", "replace").rstrip("\0")
        yield text.rpartition("\0")[2]


def _names(content: bytes, budget: Budget) -> Iterator[str]:
    return _texts(content, _NAME_IDS, ".", budget)


def _links(content: bytes, budget: Budget) -> Iterator[str]:
    yield from _texts(content, _LINK_IDS, ":\\", budget)
    at = content.find(_FIELD)
    while at >= 0:
        budget.take_work(_SEARCH_WORK)
        at += len(_FIELD)
        yield content[at : at + 2 * _LONGEST].decode("utf-16-le", "replace").partition('"')[0]
        at = content.find(_FIELD, at)


def _texts(content: bytes, ids: Iterable[bytes], marks: str, budget: Budget) -> Iterator[str]:
    """Values with one of the marks."""
    for mark in ids:
        at = content.find(mark)
        while at >= 0:
            budget.take_work(_SEARCH_WORK)
            yield from _text(content, at, marks)
            at = content.find(mark, at + 4)


def _text(content: bytes, at: int, marks: str) -> Iterator[str]:
    """The value of the property whose id is at `at`: the list of ids may begin with it, or before it."""
    for index in range(_MOST_PROPERTIES):
        start = at - 4 * index
        count = int.from_bytes(content[start - 2 : start], "little") if start >= 2 else 0
        text = _value(content, start, index, count) if index < count <= _MOST_PROPERTIES else ""
        if any(mark in text for mark in marks):
            yield text
            return


def _value(content: bytes, start: int, index: int, count: int) -> str:
    at = start + 4 * count
    for number in range(index):
        kind = content[start + 4 * number + 3] >> 2 & 0x1F
        size = _SIZES.get(kind)
        if kind == _SIZED:
            size = 4 + int.from_bytes(content[at : at + 4], "little")
        if size is None:
            return ""
        at += size
    length = int.from_bytes(content[at : at + 4], "little")
    if not 2 <= length <= _LONGEST or length % 2:
        return ""
    text = content[at + 4 : at + 4 + length].decode("utf-16-le", "replace").rstrip("\0")
    return text if "\0" not in text else ""
