"""OpenDocument (LibreOffice): links, and macros in Basic, Python and other languages. Linear; nothing here raises.

A document is an archive of XML files, or one XML file. Macros in Basic are modules within XML; those in other languages
are files in the directory `Scripts`. A document that runs one by itself names it as the listener of an event.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from bridge.mime.references import unescaped
from bridge.service.analysis.content.excel_files import AUTO_MACRO, MACRO
from bridge.service.analysis.content.pdf_files import ENCRYPTED
from bridge.service.analysis.content.unpacking import Budget, Member
from bridge.service.analysis.content.vba import tags_of_source

_PART = re.compile(r"(?:[^/]+/)?content\.xml|styles\.xml|META-INF/manifest\.xml|Basic/.*\.xml")
_SCRIPT = re.compile(r"Scripts/(?:python|beanshell|javascript|java)/.*[^/]")
_NAMESPACE = b"urn:oasis:names:tc:opendocument"
_START = 8192  # bytes in which an XML file declares its namespaces
_HREF = re.compile(r"\bhref\s{0,9}=\s{0,9}(?:\"([^\"]*)\"|'([^']*)')")
_MODULE = re.compile(r"<(?:\w{1,20}:)?module(?:\s[^<>]{0,2000})?>((?:[^<]|<(?!/))*+)")
_LISTENER = re.compile(r"<(?:\w{1,20}:)?event-listener\s([^<>]{0,4000})")
_BY_ITSELF = re.compile(
    r"event-name\s{0,9}=\s{0,9}[\"'](?:dom|office):(?:load|unload|new|start-app|focus|mouseover|create)"
)
_BYTE_WORK = 10


def is_odf(content: bytes, names: Collection[str]) -> bool:
    """A part of such a document, or a whole one in a single file."""
    if any(map(_SCRIPT.fullmatch, names)):
        return True
    return _NAMESPACE in content[:_START] or (b"<" in content[:_START] and any(map(_PART.fullmatch, names)))


def odf_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """The sources of its macros, and a member without content for its links and tags."""
    budget.take_work(_BYTE_WORK * len(content))
    tags = {MACRO} if any(map(_SCRIPT.fullmatch, names)) else set()
    text = content.replace(b"\0", b"").decode("utf-8", "replace")
    links = tuple(dict.fromkeys(unescaped(first or second) for first, second in _HREF.findall(text)))
    if any(map(_BY_ITSELF.search, _LISTENER.findall(text))):
        tags.add(AUTO_MACRO)
    if "encryption-data" in text:
        tags.add(ENCRYPTED)
    yield Member((), None, tags=tuple(tags), links=links)
    for match in _MODULE.finditer(text):
        source = unescaped(match[1]).encode("utf-8", "replace")
        if source.strip():
            budget.take_member()
            yield Member(("macro.txt",), source, tags=tags_of_source(source))
