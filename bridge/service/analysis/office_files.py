"""Office documents: macros that run by themselves, fields and templates that load something, and embedded files.

Reads OLE2 files, parts of OOXML files (the zip reader unpacks those), RTF and OneNote, by their bytes alone: macros are
decompressed and searched for names, but not run or emulated. What a macro puts together from pieces is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from bridge.mime.references import unescaped
from bridge.service.analysis import archives, file_types
from bridge.service.analysis.decompression import inflated
from bridge.service.analysis.more_archives import UNOPENED
from bridge.service.analysis.ole_files import MAGIC, Entry, entries
from bridge.service.analysis.pdf_files import ENCRYPTED
from bridge.service.analysis.rtf_files import RTF, Embedded, rtf_objects, rtf_templates
from bridge.service.analysis.unpacking import Budget, Member
from bridge.service.analysis.vba import sources

AUTO_MACRO, RUNS_PROGRAM = "office:auto-macro", "office:macro-runs-program"
DDE, TEMPLATE, REMOTE = "office:dde", "office:remote-template", "office:remote-object"
EMBEDDED, EQUATION, MACRO = "office:embedded-file", "office:equation", "mime:macro"
ONENOTE = b"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d"
_ONENOTE_FILE = bytes.fromhex("e716e3bd65261145a4c48d4d0b7a9eac")
_EQUATION_CLASS = bytes.fromhex("02ce020000000000c000000000000046")
_XML_PART = re.compile(r"(?:^|[/\\])(?:word|xl|ppt|visio)[/\\]")

_AUTO = re.compile(
    r"\b(?:auto_?(?:open|close|exec|exit|new)|document_?(?:open|close|new|beforeclose)|document_contentcontrolonenter"
    r"|workbook_(?:open|activate|beforeclose|beforesave)|worksheet_(?:activate|calculate|change|selectionchange)"
    r"|presentation_?open|\w{1,50}_(?:layout|painted|gotfocus|mouseenter|resize))\b"
)
_PROGRAMS = re.compile(
    r"\bshell\b|wscript\.shell|shell\.application|urldownloadtofile|xmlhttp|winhttp|adodb\.stream|powershell|mshta"
    r"|rundll32|regsvr32|certutil|bitsadmin|winmgmts|virtualalloc|createthread|\bexecute4macro\b|\bexec\s{0,9}\("
)
_LINK = re.compile(rb"https?://[\x21-\x7e]{4,500}")
_WIDE_LINK = re.compile(rb"h\0t\0t\0p\0(?:s\0)?:\0/\0/\0(?:[\x21-\x7e]\0){4,500}")
_DDE_FIELD = re.compile(rb"\x13\0?\s{0,9}\0?D\0?D\0?E\0?", re.IGNORECASE)
_RELATION = re.compile(r"<(?:\w{1,20}:)?Relationship\s([^>]{0,8000})")
_FIELD = re.compile(r"instrText[^>]{0,500}>([^<]*)|(?:w:)?instr\s{0,9}=\s{0,9}[\"']([^\"']*)")
_DDE_WORD = re.compile(r"\bDDE(?:AUTO)?\b", re.IGNORECASE)
_SLIDE_OBJECT = re.compile(rb"[\x00\x10]\x00\x11\x10")  # ExOleObjStg in the stream of a presentation (MS-PPT 2.10.34)
_AUTO_NAMES = ("_xlnm.auto_open", "_xlnm.auto_close", "_xlnm.auto_activate")
_MAX_LINKS = 5000
_FILE_STREAMS = ("package", "contents", "embeddedodf", "\x01ole10native")
_MAIL_NAME, _MAIL_FILE, _MAIL_PAGE = ("__substg1.0_3707", "__substg1.0_3704"), "__substg1.0_3701", "__substg1.0_1013"


def is_office(content: bytes, names: Collection[str]) -> bool:
    return content.startswith((MAGIC, RTF, ONENOTE)) or any(map(_is_xml_part, names))


def _is_xml_part(name: str) -> bool:
    lower = name.lower()
    return lower.endswith(".rels") or (lower.endswith(".xml") and _XML_PART.search(lower) is not None)


def office_members(content: bytes, budget: Budget) -> Iterator[Member]:
    if content.startswith(MAGIC):
        return _of_ole(content, budget)
    if content.startswith(RTF):
        return _of_rtf(content, budget)
    if content.startswith(ONENOTE):
        return _of_onenote(content, budget)
    return _of_xml(content, budget)


def _of_ole(content: bytes, budget: Budget) -> Iterator[Member]:
    names: dict[str, None] = {}
    is_damaged = True
    for entry in entries(content, budget):
        is_damaged = False
        name = entry.name.lower()
        if entry.class_id == _EQUATION_CLASS or name == "equation native":
            yield Member((), None, tags=(EQUATION,))
        if name in ("encryptedpackage", "encryptedsummary") or (
            name == "worddocument" and _has_password(entry.content)
        ):
            yield Member((), None, tags=(ENCRYPTED,))
        if name in ("workbook", "book"):
            yield Member((), None, tags=tuple(_sheet_tags(entry.content)))
        if name == "worddocument" and _DDE_FIELD.search(entry.content):
            yield Member((), None, tags=(DDE,))
        if name.startswith(_MAIL_NAME):
            names[entry.content.decode("utf-16-le", "replace")[-255:]] = None
        yield from _of_macros(entry.content, budget)
        yield from _of_stream(entry, name, budget)
    yield Member(tuple(names)[:1000], None, tags=(UNOPENED,) if is_damaged else ())


def _of_stream(entry: Entry, name: str, budget: Budget) -> Iterator[Member]:
    if name == "\x01ole10native":
        yield package(entry.content)
    elif name.startswith(_MAIL_FILE) or (name in _FILE_STREAMS and _is_file(entry.content)):
        budget.take_member()
        yield Member(("",), entry.content, tags=() if name.startswith(_MAIL_FILE) else (EMBEDDED,), is_disputed=True)
    elif name == "powerpoint document":
        yield from _of_slides(entry.content, budget)
    elif name.startswith(_MAIL_PAGE):
        yield Member(("page.html",), entry.content)
    else:
        yield Member((), None, links=_links(entry.content))


def _has_password(document: bytes) -> bool:
    return document[:2] == b"\xec\xa5" and len(document) > 11 and bool(document[11] & 1)  # FibBase.fEncrypted


def _of_slides(stream: bytes, budget: Budget) -> Iterator[Member]:
    """Objects and macros in a presentation: OLE2 files, most often compressed."""
    yield Member((), None, links=_links(stream))
    for match in _SLIDE_OBJECT.finditer(stream):
        length = int.from_bytes(stream[match.end() : match.end() + 4], "little")
        data = stream[match.end() + 4 : match.end() + 4 + length]
        data = data if data.startswith(MAGIC) else inflated(data[4:], budget)
        if data.startswith(MAGIC):
            budget.take_member()
            yield Member(("",), data, is_disputed=True)


def _is_file(content: bytes) -> bool:
    return bool(archives.kind_of(content) or file_types.family_of(content))


def _links(content: bytes) -> tuple[str, ...]:
    found = [match.decode("latin-1") for match in _LINK.findall(content)]
    found += [match.decode("utf-16-le", "replace") for match in _WIDE_LINK.findall(content)]
    return tuple(dict.fromkeys(found))[:_MAX_LINKS]


def _of_macros(content: bytes, budget: Budget) -> Iterator[Member]:
    for source in sources(content):
        budget.take(len(source))
        lower = source.decode("latin-1").lower()
        tags = [MACRO]
        if _AUTO.search(lower):
            tags.append(AUTO_MACRO)
        if _PROGRAMS.search(lower):
            tags.append(RUNS_PROGRAM)
        yield Member(("macro.txt",), source, tags=tuple(tags), links=_links(source))


def _sheet_tags(book: bytes) -> Iterator[str]:
    """Records of a workbook (MS-XLS): sheets of Excel 4 macros, a name that runs one, a password."""
    at = 0
    while at + 4 <= len(book):
        kind, size = int.from_bytes(book[at : at + 2], "little"), int.from_bytes(book[at + 2 : at + 4], "little")
        data = book[at + 4 : at + 4 + min(size, 64)]
        at += 4 + size
        if kind == 0x85 and data[5:6] == b"\x01":  # BoundSheet8
            yield MACRO
        elif kind == 0x18 and data[:1] and data[0] & 0x20 and data[14:16] in (b"\0\x01", b"\0\x02"):  # Lbl, built in
            yield AUTO_MACRO
        elif kind == 0x2F:  # FilePass
            yield ENCRYPTED
            return
        elif kind == 0 and size == 0:
            return


def package(content: bytes) -> Member:
    """A file that was put into a document as an object: its name, its path, and its bytes."""
    label, _, rest = content[6:].partition(b"\0")
    path, _, rest = rest.partition(b"\0")
    at = 8 + int.from_bytes(rest[4:8], "little")
    size = int.from_bytes(rest[at : at + 4], "little")
    data = rest[at + 4 : at + 4 + size] if size else b""
    names = [name[-255:].decode("latin-1") for name in (label, path) if name]
    return Member(tuple(names) or ("",), data or content[4:], tags=(EMBEDDED,), is_disputed=True)


def _of_xml(content: bytes, budget: Budget) -> Iterator[Member]:
    """A part of an OOXML document."""
    budget.take_work(4 * len(content))
    text = content.replace(b"\0", b"").decode("utf-8", "replace")
    tags: set[str] = set()
    links: dict[str, None] = {}
    for match in _RELATION.finditer(text):
        about = unescaped(match[1])
        if not re.search(r"TargetMode\s{0,9}=\s{0,9}[\"']External", about):
            continue
        kind = _attribute(about, "Type").rpartition("/")[2].lower()
        target = _attribute(about, "Target")
        links[target] = None
        if kind == "attachedtemplate" and "//" in target.replace("\\", "/"):
            tags.add(TEMPLATE)
        elif kind in ("oleobject", "frame", "subdocument", "externallink", "package") and ":" in target:
            tags.add(REMOTE)
    fields = "".join(first or second for first, second in _FIELD.findall(text))
    if _DDE_WORD.search(fields) or "<ddeLink" in text:
        tags.add(DDE)
    if 'progid="equation.' in text.lower():
        tags.add(EQUATION)
    if any(name in text.lower() for name in _AUTO_NAMES):
        tags.add(AUTO_MACRO)
    links[unescaped(fields)] = None
    yield Member((), None, tags=tuple(tags), links=tuple(filter(None, links))[:_MAX_LINKS])


def _attribute(about: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}\s{{0,9}}=\s{{0,9}}(?:\"([^\"]*)|'([^']*))", about)
    return (match[1] or match[2] or "") if match else ""


def _of_rtf(content: bytes, budget: Budget) -> Iterator[Member]:
    budget.take_work(8 * len(content))
    templates = rtf_templates(content)
    yield Member((), None, tags=(TEMPLATE,) if templates else (), links=(*templates, *_links(content)))
    for found in rtf_objects(content):
        budget.take_member()
        budget.take(len(found.content))
        yield from _of_object(found)


def _of_object(found: Embedded) -> Iterator[Member]:
    if found.class_name.startswith("equation"):
        yield Member((), None, tags=(EQUATION,))
    ole = found.content.find(MAGIC)
    if ole >= 0:
        yield Member(("",), found.content[ole:], tags=(EMBEDDED,), is_disputed=True)
    elif found.class_name == "package":
        yield package(b"\0\0\0\0" + found.content)
    elif found.content:
        yield Member(("",), found.content, tags=(EMBEDDED,), is_disputed=True)


def _of_onenote(content: bytes, budget: Budget) -> Iterator[Member]:
    at = content.find(_ONENOTE_FILE)
    while at >= 0:
        size = int.from_bytes(content[at + 16 : at + 24], "little")
        data = content[at + 36 : at + 36 + size]
        budget.take_member()
        budget.take(len(data))
        is_picture = file_types.family_of(data) == file_types.IMAGE
        yield Member(("",), data, tags=() if is_picture else (EMBEDDED,), is_disputed=True)
        at = content.find(_ONENOTE_FILE, at + 36)
    yield Member((), None, links=_links(content))
