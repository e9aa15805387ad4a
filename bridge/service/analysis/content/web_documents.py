"""Documents that Word saved as a page, or as XML of Word 2003: their templates, other parts, and fields.

Word opens such a page under the name of any document, loads its template and the files that have its macros and its
objects, and updates its fields as in its own formats.
It writes a field as text between two elements with a style of their own. Linear; raises only TooMuch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from bridge.mime.references import unescaped
from bridge.service.analysis.content import recognition
from bridge.service.analysis.content.unpacking import Budget

_TEMPLATE, _FIELD, _BASE = "attachedtemplate", "field-begin", "hyperlinkbase"
_MACROS = "edit-time-data"  # the file with the macros
_PARTS = (_MACROS, "ole-object-data", "main-file", "file-list")
_MARKS = (_TEMPLATE, _FIELD, _BASE, *_PARTS)
_TEMPLATE_TAG = re.compile(r"<(?:[^\s<>:/]++:)?attachedtemplate\s([^<>]*+)")
_TARGET = re.compile(r"(?:^|[\s:])(?:href|val)\s*+=\s*+(?:\"([^\"]*+)|'([^']*+)|([^\s\"'>]++))")
_BASE_TEXT = re.compile(r"<(?:[^\s<>:/]++:)?hyperlinkbase(?:\s[^<>]*+)?>([^<]++)")
_LINK_TAG = re.compile(r"<link\s([^<>]*+)")
_KIND = re.compile(rf"(?:^|\s)rel\s*+=\s*+[\"']?\s*+({'|'.join(_PARTS)})(?![\w-])")
_PAGE_BASE = re.compile(r"<base\s[^<>]*?href\s*+=\s*+[\"']?([^\s\"'<>]++)")
_FIELD_BEGIN = re.compile(r"field-begin[^<>]{0,200}+>")
_FIELD_END = re.compile(r"field-(?:separator|end|begin)")
_TAG = re.compile(r"<[^<>]*+(?:>|$)")
_BYTE_WORK, _MARK_WORK = 20, 2000
_MAX_FOLDERS = 3  # a page has one base


def is_web_document(content: bytes) -> bool:
    """Whether it may have anything of the kind. A quick test: most pages have nothing."""
    if not recognition.is_web_page(content, ()):
        return False
    text = _text(content)
    return any(mark in text for mark in _MARKS)


def templates(content: bytes, budget: Budget) -> Iterator[str]:
    text = _text(content)
    budget.take_work(_BYTE_WORK * len(text) + _MARK_WORK * text.count(_TEMPLATE))
    for tag in _TEMPLATE_TAG.findall(text):
        for match in _TARGET.findall(tag):
            yield unescaped("".join(match))


def bases(content: bytes, budget: Budget) -> Iterator[str]:
    """The folders in which links without one are."""
    text = _text(content)
    budget.take_work(_BYTE_WORK * len(text) + _MARK_WORK * text.count(_BASE))
    yield from (unescaped(base).strip() for base in _BASE_TEXT.findall(text))


class LoadedPart(NamedTuple):
    address: str
    has_macros: bool


def loaded_parts(content: bytes, budget: Budget) -> Iterator[LoadedPart]:
    """Files that Word saves beside the page, and loads with it. `<base>` completes their addresses."""
    text = _text(content)
    if not any(part in text for part in _PARTS):
        return
    budget.take_work(_BYTE_WORK * len(text) + _MARK_WORK * (text.count("<link") + text.count("<base")))
    folders = ["", *(f"{unescaped(base)}/" for base in _PAGE_BASE.findall(text)[:_MAX_FOLDERS])]
    for tag in _LINK_TAG.findall(text):
        kind, target = _KIND.search(tag), _TARGET.search(tag)
        if kind and target:
            address = unescaped("".join(target.groups("")))
            yield from (LoadedPart(folder + address, kind[1] == _MACROS) for folder in folders)


def fields(content: bytes, budget: Budget) -> str:
    """The instructions of all fields, each on its own line, in lower case."""
    text = _text(content)
    budget.take_work(_BYTE_WORK * len(text) + _MARK_WORK * text.count(_FIELD))
    found = []
    for begin in _FIELD_BEGIN.finditer(text):
        end = _FIELD_END.search(text, begin.end())
        instruction = text[begin.end() : end.start() if end else len(text)]
        found.append(" ".join(unescaped(_TAG.sub("", instruction)).split()))
    return "\n".join(found)


def _text(content: bytes) -> str:
    """In lower case, whose names and styles are ASCII in any charset."""
    text = content.replace(b"\0", b"").lower().decode("latin-1")
    return unescaped(text) if "&#" in text else text
