"""Documents that Word saved as a page, or as XML of Word 2003: their templates, and their fields.

Word opens such a page under the name of any document, loads its template, and updates its fields as in its own formats.
It writes a field as text between two elements with a style of their own. Linear; raises only TooMuch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.mime.references import unescaped
from bridge.service.analysis.content import recognition
from bridge.service.analysis.content.unpacking import Budget

_TEMPLATE, _FIELD = "attachedtemplate", "field-begin"
_TEMPLATE_TAG = re.compile(r"<(?:[^\s<>:/]++:)?attachedtemplate\s([^<>]*+)")
_TARGET = re.compile(r"(?:^|[\s:])(?:href|val)\s*+=\s*+(?:\"([^\"]*+)|'([^']*+)|([^\s\"'>]++))")
_FIELD_BEGIN = re.compile(r"field-begin[^<>]{0,200}+>")
_FIELD_END = re.compile(r"field-(?:separator|end|begin)")
_TAG = re.compile(r"<[^<>]*+(?:>|$)")
_BYTE_WORK, _MARK_WORK = 20, 2000


def is_web_document(content: bytes) -> bool:
    """Whether it may have a template or fields. A quick test: most pages have neither."""
    if not recognition.is_web_page(content, ()):
        return False
    text = _text(content)
    return _TEMPLATE in text or _FIELD in text


def templates(content: bytes, budget: Budget) -> Iterator[str]:
    text = _text(content)
    budget.take_work(_BYTE_WORK * len(text) + _MARK_WORK * text.count(_TEMPLATE))
    for tag in _TEMPLATE_TAG.findall(text):
        for match in _TARGET.findall(tag):
            yield unescaped("".join(match))


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
