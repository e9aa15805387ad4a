"""Office documents: macros that run by themselves, fields and templates that load something, and embedded files.

Reads OLE2 files, parts of OOXML files (the zip reader unpacks those) and RTF, by their bytes alone: macros are
decompressed and searched for names, but not run or emulated. What a macro assembles from pieces is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from bridge.mime.encodings import decode
from bridge.mime.references import unescaped
from bridge.service.analysis.content import (
    active_mime,
    archives,
    binary_links,
    compressed_rtf,
    default_password,
    document_pictures,
    excel_files,
    file_types,
    odf_files,
    office_attacks,
    office_xml,
    onenote_files,
    sylk_files,
    table_files,
    vba,
    web_documents,
    xml_attachments,
)
from bridge.service.analysis.content.decompression import Inflater, inflated, is_zlib
from bridge.service.analysis.content.decompression import decode as decode_stream
from bridge.service.analysis.content.excel_files import MACRO
from bridge.service.analysis.content.office_attacks import EXPLOIT, REMOTE
from bridge.service.analysis.content.office_xml import Relation
from bridge.service.analysis.content.ole_files import MAGIC, Entry, entries
from bridge.service.analysis.content.onenote_files import EMBEDDED
from bridge.service.analysis.content.pdf_files import ENCRYPTED, NOT_READ
from bridge.service.analysis.content.rtf_files import Embedded, embedded, is_rtf, read_rtf
from bridge.service.analysis.content.unpacking import UNOPENED, Budget, Member

TEMPLATE = "office:remote-template"
EQUATION = "office:equation"
_EQUATION_CLASS = bytes.fromhex("02ce020000000000c000000000000046")
_EQUATION_NAMES = ("equation.2", "equation.3")
_URL_MONIKER = bytes.fromhex("e0c9ea79f9bace118c8200aa004ba90b")
_LONGEST_ADDRESS, _MONIKER_WORK = 8192, 20_000
_XML_PART = re.compile(r"(?:^|[/\\])(?:word|xl|ppt|visio)[/\\]")

# The text of an old document, without the high bytes of UTF-16: a field begins at 13, its result at 14, and ends at 15.
_DDE_FIELD = re.compile(rb"\x13[^A-Za-z\x13-\x15]*+(DDE[^\x14\x15]*+)", re.IGNORECASE)
_LINK_FIELD = re.compile(rb"\x13[^A-Za-z\x13-\x15]*+(HYPERLINK[^\x14\x15]*+)", re.IGNORECASE)
_EMPTY_FIELD = re.compile(rb"\x13[^\x13-\x15]*+\x14[^A-Za-z\x13-\x15]*+\x15")  # with nothing to read in its result
_DDE_WORK = 4096  # for each field that uses DDE
_TEXT_WORK, _MARK_WORK = 8, 100  # for each byte of such a document, and each beginning of a field
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
# In all patterns for XML, nothing goes beyond the next `<`, so that nothing is looked at twice.
_RELATION = re.compile(r"<(?:[^\s<>/:]*+:)?Relationship\s([^<>]*+)")
_RELATION_WORK = 1600  # for each, even if it is the same
_ADDRESS_WORK = 2500  # for each that is read
_TAG_WORK = 50  # for each tag, each time a pattern is searched for
_FIELD_WORK = 30  # for each character in a field or an address
_PROGID = re.compile(r"progid\s*+=\s*+[\"']equation\.[23]")
_FIELD = re.compile(
    r"<(?:[^\s<>/:]*+:)?(?:instrText(?:\s[^<>]*+)?>([^<]*+)|fldSimple\s([^<>]*+)"
    r"|fldChar\s[^<>]*?fldCharType\s*+=\s*+[\"']begin())"
)
_INSTRUCTION = r"(?:\w{1,20}:)?instr"
_FIELD_MARKS = ("instrText", "fldSimple")
# Links that are no relations: of shapes in Word, and of Visio.
_TARGET = re.compile(
    r"(?:href|Address[\"']\s++V)\s*+=\s*+[\"']([^\"'<>]++)"
    r"|<(?:[^\s<>/:]*+:)?Address(?:\s[^<>]*+)?>(?:\s*+<!\[CDATA\[)?([^<>]++)"
)
_TARGET_MARKS = ("href", "Address")
_RUN = "ppaction://program"
_SHEET_LINK = re.compile(r"<(?:[^\s<>/:]*+:)?ddeLink\s([^<>]*+)")
_SLIDE_OBJECT = re.compile(rb"[\x00\x10]\x00\x11\x10")  # ExOleObjStg in the stream of a presentation (MS-PPT 2.10.34)
_SLIDE_ACTION = re.compile(rb"\xf3\x0f\x10\0\0\0.{8}\x02", re.DOTALL)  # InteractiveInfoAtom: it runs a program
_SLIDE_LINK = re.compile(rb"\xba\x0f(?=(.{4}))", re.DOTALL)  # CString, which the target of a link is
_SLIDE_WORK = 128  # for each mark of an object, and
_SHORT_WORK = 16  # for each byte of a stream that is short in real documents
_OBJECT_WORK = 1024
_RTF_WORK = 100  # for each byte of compressed text
_BOOKS = frozenset({"workbook", "book"})
_HANGUL_FILE = re.compile(r"bin[0-9a-f]{4}\.\w{1,9}")  # a file in a document of Hangul (.hwp), compressed
_FILE_STREAMS = ("package", "contents", "embeddedodf", "\x01ole10native")
# Long and short name, long and short path, and transport name, in 16-bit or 8-bit characters (MS-OXCMSG 2.2.2)
_MAIL_NAME = tuple(f"__substg1.0_{number}" for number in ("3707", "3704", "370d", "3708", "370c"))
_MAIL_FILE, _MAIL_PAGE, _MAIL_RTF = "__substg1.0_3701", "__substg1.0_1013", "__substg1.0_1009"
_EIGHT_BIT = "001e"
# Properties with numbers of their own, and the stream that says which of them is the sound of a reminder.
_MAIL_OTHER = re.compile(r"__substg1\.0_[89a-f][0-9a-f]{3}001[ef]")
_SHARES = (b"\\\\", b"\\\0", b"//", b"/\0")
_MAIL_NUMBERS, _SOUND = "__substg1.0_00030102", b"\x1f\x85\0\0"  # PidLidReminderFileParameter


def is_office(content: bytes, names: Collection[str]) -> bool:
    return (
        content.startswith((MAGIC, onenote_files.MAGIC))
        or is_rtf(content)
        or excel_files.is_book(content)
        or any(map(_is_xml_part, names))
        or excel_files.is_binary_part(content, names)
        or odf_files.is_odf(content, names)
        or active_mime.is_active_mime(content)
        or active_mime.has_web_archive(content, names)
        or table_files.is_table(content, names)
        or sylk_files.is_sylk(content)
        or web_documents.is_web_document(content)
        or office_xml.is_likely(content)
        or xml_attachments.has_files(content)
    )


def _is_xml_part(name: str) -> bool:
    lower = name.lower()
    return lower.endswith(".rels") or (lower.endswith(".xml") and _XML_PART.search(lower) is not None)


def office_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    if content.startswith(MAGIC):
        yield from _of_ole(content, budget)
    elif is_rtf(content):
        yield from _of_rtf(content, budget)
    elif excel_files.is_book(content):
        book = default_password.book(content, budget) or content
        tags = tuple(excel_files.tags_of_book(book, budget))
        yield Member((), None, tags=tags, links=binary_links.links(book, budget))
    elif content.startswith(onenote_files.MAGIC):
        yield from onenote_files.onenote_members(content, budget)
        yield Member((), None, links=binary_links.links(content, budget))
    elif active_mime.is_active_mime(content):
        yield from active_mime.active_mime_members(content, budget)
    elif excel_files.is_binary_part(content, names):
        tags = tuple(excel_files.tags_of_binary_part(content, tuple(names), budget))
        yield Member((), None, tags=tags, links=binary_links.links(content, budget))
    elif any(map(_is_xml_part, names)) or office_xml.is_likely(content):
        yield from _of_xml(content, tuple(names), budget)
    if xml_attachments.has_files(content):
        yield from xml_attachments.file_members(content, budget)
    if odf_files.is_odf(content, names):
        yield from odf_files.odf_members(content, names, budget)
    if table_files.is_table(content, names):
        yield Member((), None, tags=tuple(table_files.tags_of_file(content, names, budget)))
    if sylk_files.is_sylk(content):
        yield Member((), None, tags=tuple(sylk_files.tags_of_sylk(content, budget)))
    if web_documents.is_web_document(content):
        templates = tuple(web_documents.templates(content, budget))
        bases = tuple(web_documents.bases(content, budget))
        yield from _loaded(templates, web_documents.fields(content, budget), bases, budget)
        yield Member((), None, tags=tuple(_tags_of_parts(content, budget)))
    if active_mime.has_web_archive(content, names):
        yield from active_mime.web_archive_members(content, budget)


def _of_ole(content: bytes, budget: Budget) -> Iterator[Member]:
    mail_names: dict[str, None] = {}
    classes: set[bytes] = set()
    names: set[str] = set()
    encrypted: dict[str, bytes] = {}
    has_sound, sounds = False, set()
    project = vba.Project(content, budget)
    for entry in entries(content, budget):
        name = entry.name.lower()
        names.add(name)
        classes.add(entry.class_id)
        if name in ("encryptioninfo", "encryptedpackage"):
            encrypted[name] = entry.content
        elif name in _BOOKS:
            entry = entry._replace(content=default_password.book(entry.content, budget) or entry.content)
        if name.startswith(_MAIL_NAME):
            budget.take_work(_SHORT_WORK * len(entry.content))
            codec = "latin-1" if name.endswith(_EIGHT_BIT) else "utf-16-le"
            mail_names[entry.content.decode(codec, "replace").rstrip("\0")[-255:]] = None
        elif name == _MAIL_NUMBERS:
            has_sound |= _SOUND in entry.content
        elif _MAIL_OTHER.fullmatch(name) and entry.content[:2] in _SHARES:
            budget.take_work(_ADDRESS_WORK + _FIELD_WORK * min(len(entry.content), _LONGEST_ADDRESS))
            sounds.add(entry.content[:_LONGEST_ADDRESS].replace(b"\0", b"").decode("latin-1"))
        if tags := tuple(filter(None, _stream_tags(name, entry.content, budget))):
            yield Member((), None, tags=tags)
        for source, tags in project.sources(name, entry.content):
            links = binary_links.links(source, budget)
            yield Member(("macro.txt",) if source else (), source or None, tags=tags, links=links)
        yield from _of_stream(entry, name, budget)
        pictures = document_pictures.in_book if name in _BOOKS else document_pictures.in_stream
        yield from pictures(entry.content, budget)
    found = [UNOPENED] if not names else [MACRO, NOT_READ] if project.is_unread else []
    if "encryptedpackage" in encrypted:
        yield _opened(encrypted.get("encryptioninfo", b""), encrypted["encryptedpackage"], budget)
    if has_sound and any(map(office_attacks.is_remote_sound, sounds)):
        found.append(EXPLOIT)
    if _EQUATION_CLASS in classes:
        found.append(EQUATION)
        if "\x01ole10native" in names and "equation native" not in names:  # what no equation editor writes
            found.append(EXPLOIT)
    yield Member(tuple(mail_names)[:1000], None, tags=tuple(found))


def _opened(info: bytes, package: bytes, budget: Budget) -> Member:
    """A document that is encrypted as a whole: opened as Office opens it without asking, or the tag for it."""
    data = default_password.package(info, package, budget)
    if not data:
        return Member((), None, tags=(ENCRYPTED if data is not None else NOT_READ,))
    budget.take(len(data))
    return Member(("",), data, is_disputed=True)


def _stream_tags(name: str, content: bytes, budget: Budget) -> Iterator[str]:
    if name == "equation native":
        budget.take_work(_SHORT_WORK * len(content))
        yield EQUATION
        if not office_attacks.is_formula(content):
            yield EXPLOIT
    elif name == "encryptedsummary":
        yield ENCRYPTED
    elif name in _BOOKS:
        yield from excel_files.tags_of_book(content, budget)
    elif name == "worddocument":
        if _has_password(content):
            yield ENCRYPTED
        yield from _tags_of_text(content, budget)
    elif name == "\x05documentsummaryinformation":
        budget.take_work(_SHORT_WORK * len(content))
        if office_attacks.is_base_in(content, budget):
            yield office_attacks.LAUNCH
    elif name in ("0table", "1table"):
        if any(map(office_attacks.is_remote, office_attacks.associated(content, budget))):
            yield TEMPLATE
    elif name == "\x01ole" and any(map(office_attacks.is_remote, _monikers(content, budget))):
        yield EXPLOIT  # an object that is loaded and run (CVE-2017-0199)


def _tags_of_text(document: bytes, budget: Budget) -> Iterator[str]:
    """The fields of an old Word document. A field may contain another one, before its first word."""
    budget.take_work(_TEXT_WORK * len(document) + _MARK_WORK * document.count(b"\x13"))
    text = document.replace(b"\0", b"")
    readings = (text, _EMPTY_FIELD.sub(b"", text))
    if b"hyperlink" in text.lower() and office_attacks.any_starts_program(_targets(readings, budget), budget):
        yield office_attacks.LAUNCH
    for reading in readings:
        for match in _DDE_FIELD.finditer(reading):
            budget.take_work(_DDE_WORK)
            yield office_attacks.tag_of_field(match[1].translate(_ONE_LINE).decode("latin-1"))


def _targets(readings: Iterable[bytes], budget: Budget) -> Iterator[str]:
    """Of the links that are fields of an old Word document."""
    for reading in readings:
        budget.take_work(_TEXT_WORK * len(reading) + _MARK_WORK * reading.count(b"\x13"))
        for match in _LINK_FIELD.finditer(reading):
            budget.take_work(_FIELD_WORK * len(match[1]))
            yield from office_attacks.hyperlinks(match[1].translate(_ONE_LINE).decode("latin-1"))


def _monikers(stream: bytes, budget: Budget) -> Iterator[str]:
    """Addresses of an object that is loaded: after the class, a length, and UTF-16 (MS-OSHARED 2.3.7.6)."""
    at = stream.find(_URL_MONIKER)
    if at >= 0:
        yield from binary_links.links(stream, budget)
    while at >= 0:
        budget.take_work(_MONIKER_WORK)
        at += len(_URL_MONIKER)
        yield stream[at + 4 : at + 4 + _LONGEST_ADDRESS].decode("utf-16-le", "replace").partition("\0")[0]
        at = stream.find(_URL_MONIKER, at)


def _of_stream(entry: Entry, name: str, budget: Budget) -> Iterator[Member]:
    if name == "\x01ole10native":
        yield package(entry.content)
    elif name.startswith(_MAIL_FILE) or (name in _FILE_STREAMS and _is_file(entry.content)):
        budget.take_member()
        yield Member(("",), entry.content, tags=() if name.startswith(_MAIL_FILE) else (EMBEDDED,), is_disputed=True)
    elif _HANGUL_FILE.fullmatch(name):
        budget.take_member()
        data = decode_stream(Inflater, entry.content, 0, budget).content or entry.content
        data = data[4:] if data.startswith(MAGIC, 4) else data  # an object, after its length
        is_picture = file_types.family_of(data) == file_types.IMAGE
        yield Member((entry.name,), data, tags=() if is_picture else (EMBEDDED,), is_disputed=True)
    elif name == "powerpoint document":
        yield from _of_slides(entry.content, budget)
    elif name.startswith(_MAIL_RTF) and compressed_rtf.is_compressed(entry.content[:16]):
        budget.take_work(_RTF_WORK * len(entry.content))
        text = compressed_rtf.decompressed(entry.content)
        budget.take(len(text))
        yield Member(("",), text, is_disputed=True)
    elif name.startswith(_MAIL_PAGE):
        yield Member(("page.html",), entry.content)
    else:
        yield Member((), None, links=binary_links.links(entry.content, budget))


def _has_password(document: bytes) -> bool:
    return document[:2] == b"\xec\xa5" and len(document) > 11 and bool(document[11] & 1)  # FibBase.fEncrypted


def _of_slides(stream: bytes, budget: Budget) -> Iterator[Member]:
    """Objects and macros in a presentation: OLE2 files, most often compressed."""
    tags = (office_attacks.LAUNCH,) if _runs_program(stream, budget) else ()
    yield Member((), None, tags=tags, links=binary_links.links(stream, budget))
    for match in _SLIDE_OBJECT.finditer(stream):
        budget.take_work(_SLIDE_WORK)
        at = match.end() + 4
        if not stream.startswith(MAGIC, at) and not is_zlib(stream[at + 4 : at + 6]):
            continue
        data = stream[at : at + int.from_bytes(stream[at - 4 : at], "little")]
        budget.take_work(len(data) + _OBJECT_WORK)  # such objects may contain each other
        data = data if data.startswith(MAGIC) else inflated(data[4:], budget)
        if data.startswith(MAGIC):
            budget.take_member()
            yield Member(("",), data, is_disputed=True)


def _runs_program(stream: bytes, budget: Budget) -> bool:
    """Whether a click in a presentation does: its action, or a link."""
    if _SLIDE_ACTION.search(stream):
        return True
    for match in _SLIDE_LINK.finditer(stream):
        budget.take_work(_SLIDE_WORK)
        at = match.end() + 4
        text = stream[at : at + min(int.from_bytes(match[1], "little"), _LONGEST_ADDRESS)]
        budget.take_work(_SHORT_WORK * len(text))
        if office_attacks.starts_program_in(text, budget):
            return True
    return False


def _is_file(content: bytes) -> bool:
    return bool(archives.kind_of(content) or file_types.family_of(content))


def package(content: bytes) -> Member:
    """A file that was put into a document as an object: its names, and its bytes.

    A label, a path, and the path of a temporary file; since Windows Vista all three again, in UTF-16, after the data.
    """
    label, _, rest = content[6:].partition(b"\0")
    path, _, rest = rest.partition(b"\0")
    at = 8 + int.from_bytes(rest[4:8], "little")
    size = int.from_bytes(rest[at : at + 4], "little")
    data = rest[at + 4 : at + 4 + size] if size else b""
    ends = [name.partition(b"\0")[0][-255:].decode("latin-1") for name in (label, path, rest[8:at])]
    ends += _wide_names(rest, at + 4 + size)
    names = tuple(dict.fromkeys(filter(None, ends)))
    return Member(names or ("",), data or content[4:], tags=(EMBEDDED,), is_disputed=True)


def _wide_names(package: bytes, at: int) -> Iterator[str]:
    for _ in range(3):
        end = at + 4 + 2 * int.from_bytes(package[at : at + 4], "little")
        yield package[at + 4 : end].decode("utf-16-le", "replace").partition("\0")[0][-255:]
        at = end


def _of_xml(content: bytes, names: tuple[str, ...], budget: Budget) -> Iterator[Member]:
    """A part of an OOXML document, or a whole document in XML: as a parser reads it, and as patterns find it."""
    budget.take_work(8 * len(content))
    text = content.replace(b"\0", b"").decode("utf-8", "replace")
    found = office_xml.Facts()
    if office_xml.may_have_facts(content):
        budget.take_work(office_xml.work_of(text))
        found = office_xml.read(content)  # as far as it is XML
    sheet = excel_files.sheet(content, text, names, budget)
    tags = set(excel_files.tags_of_text_part(text, sheet)) | set(excel_files.tags_of_names(found.defined))
    links: dict[str, None] = {}
    written = _found(_RELATION, ("Relationship",), text, budget)
    for relation in dict.fromkeys((*found.relations, *(_relation(match[1], budget) for match in written))):
        budget.take_work(_TAG_WORK + _FIELD_WORK * len(relation.target))
        tags.update(_tags_of_relation(relation))
        if relation.is_external:
            links[relation.target] = None
    fields = unescaped("".join(map(_instruction, _found(_FIELD, _FIELD_MARKS, text, budget))))
    budget.take_work(_FIELD_WORK * (len(fields) + len(found.fields)))
    tags.update(map(office_attacks.tag_of_field, (fields, found.fields)))
    for match in _found(_SHEET_LINK, ("ddeLink",), text, budget):
        about = unescaped(match[1])
        tags.add(office_attacks.tag_of_sheet_link(_attribute(about, "ddeService"), _attribute(about, "ddeTopic")))
    tags.update(office_attacks.tag_of_sheet_link(*link) for link in found.dde_links)
    if _PROGID.search(text.lower()):
        tags.add(EQUATION)
    tags.update(_tags_of_actions(found, fields, budget))
    targets = [
        unescaped(match[1] or match[2].removesuffix("]]")) for match in _found(_TARGET, _TARGET_MARKS, text, budget)
    ]
    budget.take_work(_FIELD_WORK * sum(map(len, targets)) + _TEXT_WORK * sum(map(len, sheet.formulas)))
    may_start = (*targets, *excel_files.texts_in_formulas(sheet.formulas), *map(office_attacks.in_folder, found.bases))
    if office_attacks.any_starts_program(may_start, budget):
        tags.add(office_attacks.LAUNCH)
    links |= dict.fromkeys((*targets, *found.bases))
    if found.has_entities:
        tags.add(NOT_READ)
    links |= dict.fromkeys((*found.addresses, *found.macros))
    links |= dict.fromkeys((fields, found.fields, *excel_files.addresses_in_formulas(sheet)))
    yield Member((), None, tags=tuple(filter(None, tags)), links=tuple(filter(None, links)))
    for encoded in found.data:
        data = decode(encoded.encode("latin-1", "replace"), "base64")[0]
        budget.take_member()
        budget.take(len(data))
        yield Member(("",), data, is_disputed=True)


def _tags_of_actions(found: office_xml.Facts, fields: str, budget: Budget) -> Iterator[str]:
    if any(action.strip().lower().startswith(_RUN) for action in found.actions):
        yield office_attacks.LAUNCH
    targets = (link for text in (fields, found.fields) for link in office_attacks.hyperlinks(text))
    if office_attacks.any_starts_program(targets, budget):
        yield office_attacks.LAUNCH
    for macro in found.macros:
        budget.take_work(_ADDRESS_WORK + _FIELD_WORK * len(macro))
        if office_attacks.is_remote(macro):
            yield TEMPLATE  # which has the macro


def _found(pattern: re.Pattern[str], marks: tuple[str, ...], text: str, budget: Budget) -> Iterator[re.Match[str]]:
    """What a pattern finds in a part; most parts have nothing of the kind."""
    if any(mark in text for mark in marks):
        budget.take_work(_TAG_WORK * text.count("<"))
        yield from pattern.finditer(text)


def _relation(written: str, budget: Budget) -> Relation:
    budget.take_work(_RELATION_WORK)
    about = unescaped(written)
    is_external = re.search(r"TargetMode\s*+=\s*+[\"']External", about) is not None
    return Relation(_attribute(about, "Type"), _attribute(about, "Target"), is_external)


def _tags_of_relation(relation: Relation) -> Iterator[str]:
    kind, target = relation.kind, relation.target
    if kind in ("vbaproject", "xlmacrosheet", "xlintlmacrosheet"):
        yield MACRO
    if not relation.is_external:
        return
    if kind == "hyperlink" and office_attacks.starts_program(target):
        yield office_attacks.LAUNCH
    elif kind == "attachedtemplate" and office_attacks.is_remote(target):
        yield TEMPLATE
    elif kind == "oleobject" and office_attacks.is_script_object(target):
        yield from (REMOTE, EXPLOIT)
    elif kind in ("oleobject", "frame", "subdocument", "externallink", "package") and ":" in target:
        yield REMOTE


def _instruction(match: re.Match[str]) -> str:
    """A piece of a field, or a new line if another field begins."""
    piece, attributes, _ = match.groups()
    return piece if piece is not None else f"\n{_attribute(attributes, _INSTRUCTION)}\n" if attributes else "\n"


def _attribute(about: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}\s*+=\s*+(?:\"([^\"]*+)|'([^']*+))", about)
    return (match[1] or match[2] or "") if match else ""


def _of_rtf(content: bytes, budget: Budget) -> Iterator[Member]:
    budget.take_work(8 * len(content))
    rtf = read_rtf(content, budget)
    yield from _loaded(rtf.templates, rtf.fields, rtf.bases, budget)
    for found in chain.from_iterable(map(embedded, rtf.objects)):
        budget.take_member()
        budget.take(len(found.content))
        yield from _of_object(found)
    if rtf.limit:
        raise rtf.limit
    yield Member((), None, links=binary_links.links(content, budget))
    yield from document_pictures.in_rtf(content, budget)


def _loaded(templates: Collection[str], fields: str, bases: Collection[str], budget: Budget) -> Iterator[Member]:
    """What a text document loads or runs: templates, fields (each on its own line), and the folders of its links."""
    tags = [office_attacks.tag_of_field(fields)]
    if any(map(office_attacks.is_remote, templates)):
        tags.append(TEMPLATE)
    targets = (*office_attacks.hyperlinks(fields), *map(office_attacks.in_folder, bases))
    if office_attacks.any_starts_program(targets, budget):
        tags.append(office_attacks.LAUNCH)
    yield Member((), None, tags=tuple(filter(None, tags)), links=(*templates, fields, *bases))


def _tags_of_parts(page: bytes, budget: Budget) -> Iterator[str]:
    for part in web_documents.loaded_parts(page, budget):
        budget.take_work(_ADDRESS_WORK + _FIELD_WORK * len(part.address))
        if office_attacks.is_remote(part.address):
            yield TEMPLATE if part.has_macros else REMOTE


def _of_object(found: Embedded) -> Iterator[Member]:
    if found.class_name.startswith(_EQUATION_NAMES) or _EQUATION_CLASS in found.content:
        yield Member((), None, tags=(EQUATION, EXPLOIT))  # formulas are no longer sent in RTF, exploits are
    ole = found.content.find(MAGIC)
    if ole >= 0:
        yield Member(("",), found.content[ole:], tags=(EMBEDDED,), is_disputed=True)
    elif found.class_name == "package":
        yield package(b"\0\0\0\0" + found.content)
    elif found.content:
        yield Member(("",), found.content, tags=(EMBEDDED,), is_disputed=True)
