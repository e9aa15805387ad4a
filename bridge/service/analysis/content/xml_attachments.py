"""Files within an XML document, in Base64: those attached to an invoice, a note, an e-book or a signed document.

The programs that show such documents offer the files in them, as a mail program does. There are too many vocabularies
to know them all, so the text of any element counts if it is Base64 of a file; some elements and attributes give the
names. Most XML has nothing of the kind, and a quick test says so. Raises only TooMuch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.mime.encodings import decode
from bridge.service.analysis.content import archives, file_types, office_xml
from bridge.service.analysis.content.unpacking import Budget, Member

_START = 4096  # bytes in which the first element begins
_MAX_NAMES, _LONGEST_NAME = 1000, 255
_BLANK = b" \t\r\n\0\xef\xbb\xbf\xff\xfe"
# In UBL, CII and FatturaPA (invoices), in signatures and in e-books.
_MARKS = (b"BinaryObject", b"Attachment>", b":Object", b"<Object", b"<binary")
_NAMES = frozenset({"nomeattachment", "filename", "file-name", "file_name"})  # in FatturaPA, in notes of Evernote
_LONG = re.compile(rb"[A-Za-z0-9+/]{60}")  # a line of Base64 in any other document
_MIN_TEXT = 60  # bytes of a file of no known type
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]++(?:=\s*+){0,2}+")
_WORK, _ELEMENT_WORK = 2, 1000  # for each byte that is read, and each element


def has_files(content: bytes) -> bool:
    """A quick test."""
    head = content[:_START].lstrip(_BLANK)
    if not head.startswith(b"<"):
        return False
    text = content.replace(b"\0", b"") if b"\0" in content else content
    return any(mark in text for mark in _MARKS) or (
        head.startswith((b"<?", b"<\0?")) and _LONG.search(text) is not None
    )


def file_members(content: bytes, budget: Budget) -> Iterator[Member]:
    budget.take_work(_WORK * len(content) + office_xml.work_of_leaves(content, _NAMES))
    names: dict[str, None] = {}
    for element in office_xml.leaves(content, _NAMES):
        budget.take_work(_ELEMENT_WORK)
        own = [value for key, value in element.attributes.items() if "name" in key.lower()]
        if element.name.lower() in _NAMES:
            names[element.text.strip()[-_LONGEST_NAME:]] = None
        data = _file(element.text)
        if data:
            budget.take_member()
            budget.take(len(data))
            yield Member(tuple(name[-_LONGEST_NAME:] for name in own) or ("",), data, is_disputed=True)
    yield Member(tuple(filter(None, names))[:_MAX_NAMES], None)


def _file(text: str) -> bytes:
    if not _BASE64.fullmatch(text):
        return b""
    data, _ = decode(text.encode("ascii", "replace"), "base64")
    is_known = archives.kind_of(data) or file_types.family_of(data)
    return data if is_known or (len(data) >= _MIN_TEXT and file_types.is_text(data)) else b""
