"""OpenDocument (LibreOffice): links, and macros in Basic, Python and other languages. Linear; nothing here raises.

A document is an archive of XML files, or one XML file. Macros in Basic are modules within XML; those in other languages
are files in the directory `Scripts`. A document that runs one by itself names it as the listener of an event.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from bridge.mime.references import unescaped
from bridge.service.analysis.content import office_attacks, office_xml, table_files
from bridge.service.analysis.content.excel_files import AUTO_MACRO, MACRO, texts_in_formulas
from bridge.service.analysis.content.office_xml import Element
from bridge.service.analysis.content.pdf_files import ENCRYPTED, NOT_READ
from bridge.service.analysis.content.unpacking import Budget, Member
from bridge.service.analysis.content.vba import tags_of_source

_PART = re.compile(r"(?:[^/]+/)?content\.xml|styles\.xml|META-INF/manifest\.xml|Basic/.*\.xml")
_SCRIPT = re.compile(r"Scripts/(?:python|beanshell|javascript|java)/.*[^/]")
_NAMESPACE = b"urn:oasis:names:tc:opendocument"
_START = 8192  # bytes in which an XML file declares its namespaces
_MODULE, _LISTENER = "module", "event-listener"
_QUERIES = frozenset({"dde-source", "dde-connection-decl"})  # cells and fields that ask a program (DDE)
_READ = frozenset({_MODULE, _LISTENER}) | _QUERIES
_FORMULA = re.compile(r"\bformula\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)')")
# What is loaded with the document: frames, objects, sections, tables, and the page that replaces it.
_LOADED = ("auto-reload", "floating-frame", "object", "object-ole", "section-source", "table-source")
_LOADED_TAG = re.compile(rf"<(?:[^\s<>/:]*+:)?(?:{'|'.join(_LOADED)})\s((?:[^<>\"']++|\"[^\"<]*+\"|'[^'<]*+')*+)")
_DECLARES = "<!"  # a comment, a CDATA section, or declarations of what may be in any attribute
_BY_ITSELF = re.compile(r"\s*+(?:[^\s:]*+:)?(?:load|unload|new|start-app|focus|mouseover|create)")
# What a parser does not reach, because the document is damaged before it:
_HREF = re.compile(r"\bhref\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)')")
_MODULE_TAG = re.compile(r"<(?:[^\s<>:/]++:)?module(?:\s[^<>]*+)?>([^<]*+(?:<(?!/)[^<]*+)*)")
_LISTENER_TAG = re.compile(r"<(?:[^\s<>:/]++:)?event-listener\s([^<>]*+)")
_EVENT = re.compile(r"event-name\s*+=\s*+(?:\"([^\"<>]*)|'([^'<>]*))")
_BYTE_WORK = 10
_ADDRESS_WORK = 2500  # for each address that is read


def is_odf(content: bytes, names: Collection[str]) -> bool:
    """A part of such a document, or a whole one in a single file."""
    return any(_SCRIPT.fullmatch(name) or _PART.fullmatch(name) for name in names) or _NAMESPACE in content[:_START]


def odf_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """The sources of its macros, and a member without content for its links and tags."""
    budget.take_work(_BYTE_WORK * len(content))
    tags = {MACRO} if any(map(_SCRIPT.fullmatch, names)) else set()
    text = content.replace(b"\0", b"").decode("utf-8", "replace")
    links = dict.fromkeys(unescaped(first or second) for first, second in _HREF.findall(text))
    found: list[Element] = []
    if any(mark in text for mark in (*_READ, _DECLARES)):  # else there is nothing that only a parser finds
        attribute = "href" if _DECLARES in text else ""
        budget.take_work(office_xml.work_of_elements(text, (*_READ, attribute) if attribute else _READ))
        found, is_whole = office_xml.elements(content, _READ, attribute)
        if not is_whole:
            found += _damaged(text)
            if "<!ENTITY" in text:
                tags.add(NOT_READ)
    links |= dict.fromkeys(element.attributes.get("href", "") for element in found)
    if any("//" in link for link in links) and any(map(office_attacks.is_remote, _loaded(text, found, budget))):
        tags.add(office_attacks.REMOTE)
    if any(_BY_ITSELF.match(element.attributes.get("event-name", "")) for element in found):
        tags.add(AUTO_MACRO)
    for element in found:
        if element.name in _QUERIES:
            asked = element.attributes
            tags.add(table_files.tag_of_query(asked.get("dde-application", ""), asked.get("dde-topic", "")))
    formulas = "\n".join(unescaped(first or second) for first, second in _FORMULA.findall(text))
    budget.take_work(_BYTE_WORK * len(formulas))
    tags.update(table_files.tags_of_calls(formulas, budget))
    texts = texts_in_formulas(formulas.split("\n"))
    if office_attacks.any_starts_program((*links, *texts), budget):
        tags.add(office_attacks.LAUNCH)
    links |= {line: None for line in formulas.split("\n") if "//" in line}
    if "encryption-data" in text:
        tags.add(ENCRYPTED)
    yield Member((), None, tags=tuple(tags), links=tuple(filter(None, links)))
    for source in dict.fromkeys(element.text for element in found if element.name == _MODULE):
        if source.strip():
            budget.take_member()
            raw = source.encode("utf-8", "replace")
            budget.take_work(_BYTE_WORK * len(raw))
            yield Member(("macro.txt",), raw, tags=tags_of_source(raw))


def _loaded(text: str, found: Iterable[Element], budget: Budget) -> Iterator[str]:
    """The addresses of what is loaded, as patterns and as a parser find them."""
    addresses = {element.attributes.get("href", "") for element in found if element.name in _LOADED}
    for attributes in _LOADED_TAG.findall(text):
        addresses |= {unescaped(first or second) for first, second in _HREF.findall(attributes)}
    for address in sorted(filter(None, addresses)):
        budget.take_work(_ADDRESS_WORK + _BYTE_WORK * len(address))
        yield address


def _damaged(text: str) -> Iterator[Element]:
    for source in _MODULE_TAG.findall(text):
        yield Element(_MODULE, {}, unescaped(source))
    for attributes in _LISTENER_TAG.findall(text):
        for first, second in _EVENT.findall(attributes):
            yield Element(_LISTENER, {"event-name": unescaped(first or second)}, "")
