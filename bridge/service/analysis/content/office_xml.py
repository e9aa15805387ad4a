"""Documents in XML: what an XML parser reads in a part of one, or in a whole document that is one XML file.

Values may be written with references, in CDATA sections, with comments in between, and with any prefix: patterns do not
find those. The parser stops at the first error, because programs refuse such documents; what was read before counts.
Entities that a document declares are expanded only in attributes: Office refuses them, and where LibreOffice does not,
the result says that something was not read. `elements` expands them in text, too. Reading also stops if what the
document declares could make it several times as large. Linear; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.parsers import expat

# The names of elements cannot be written in another way. Without any of them, there is nothing to read. Each pattern
# begins with one literal byte: together they take a third of the time of a search for each name (Python 3.11).
_NAMES = b"(?=[FHRbdfim])(?:Relationship|(?:instr|delInstr)Text|fldSimple|ddeLink|definedName|macrosheet|%b)" % (
    b"bin(?:Data|aryData|ary-data)|ForeignData|HyperlinkBase"
)
_ELEMENTS = tuple(re.compile(mark + _NAMES) for mark in (b"<", b":", b";"))  # with a prefix; after `&#60;` in an entity
_DRAWING = b"VisioDocument"  # the first element of a drawing of Visio 2003
_SHEET_MARK = b"sheetData"  # a sheet of Excel, wherever it is: its formulas are read without a parser
_FORM_MARKS = (b"chunk", b"xdp")  # both: a form of Acrobat, with a PDF document in it
_FIELDS = frozenset({"instrText", "delInstrText"})
# Files in Base64: in Word and all of Office, in OpenDocument, in Visio, in forms of Acrobat.
_DATA = frozenset({"binData", "binaryData", "binary-data", "ForeignData", "chunk"})
_ACTIONS = frozenset({"hlinkClick", "hlinkMouseOver", "hlinkHover"})  # in presentations
_CONNECTIONS = frozenset({"webPr", "dbPr"})  # in workbooks
_USER_INTERFACE = "customUI"
_BASE = "HyperlinkBase"  # a property of the document
_CALLS = ("on", "get", "load")  # attributes that name a macro
_MARKS = (b"hlinkClick", b"hlinkMouseOver", b"hlinkHover", b"webPr", b"dbPr", b"customUI")
_IN_MARKS = (b"hlink", b"bPr", b"customUI")  # each mark has one of these, and most XML has none
_READ = (
    _FIELDS | _DATA | _ACTIONS | _CONNECTIONS
    | {"Relationship", "fldSimple", "fldChar", "ddeLink", "definedName", _USER_INTERFACE, _BASE}
)  # fmt: skip
_OFTEN = ("nstrText", "Relationship", "fldSimple", "fldChar", "ddeLink", "definedName", "hlink", "webPr", "dbPr")
_TAG_WORK = 50  # for each tag, and
_READ_WORK = 250  # for each that is read
_ELEMENT_WORK = 1000  # for each that is returned as a whole
_VALUE_WORK = 80  # for each value in a user interface
_START = 4096  # bytes in which the first element begins; before it are comments
_BLANK = b" \t\r\n\0"
_BLOCK = 1024 * 1024
_GROWTH, _FREE = 4, 1024 * 1024  # declarations may add this many times the document's size, plus these bytes
_ENCODING_ERRORS = (18, 19)  # XML_ERROR_UNKNOWN_ENCODING, XML_ERROR_INCORRECT_ENCODING
_ATTRIBUTE = 20  # bytes, at least, that an attribute takes
_LONG_TEXT = 80  # characters of Base64 that may be a file
_CHILD = "\0"  # where an element begins or ends within the text of another: no XML contains it


class Relation(NamedTuple):
    type: str
    target: str
    is_external: bool

    @property
    def kind(self) -> str:
        """The last word of its type, in lower case."""
        return self.type.strip().rpartition("/")[2].lower()


@dataclass(slots=True)
class Facts:
    relations: list[Relation] = field(default_factory=list)
    fields: str = ""  # the instructions of all fields, each on its own line
    defined: str = ""  # the names of cells, in lower case, each on its own line
    data: list[str] = field(default_factory=list)  # files, in Base64
    dde_links: list[tuple[str, str]] = field(default_factory=list)  # service and topic
    actions: list[str] = field(default_factory=list)  # of a click, or of the mouse
    addresses: list[str] = field(default_factory=list)  # where data comes from
    macros: list[str] = field(default_factory=list)  # that buttons and the like call
    bases: list[str] = field(default_factory=list)  # which complete all links without a folder
    has_entities: bool = False  # in a field or a file, of which a part is then missing; or they are too large


def is_likely(content: bytes) -> bool:
    """A quick test: most XML has nothing of interest."""
    first = content.find(b"<")
    if first < 0 or (first >= _START and content[:first].translate(None, _BLANK)):
        return False
    text = content.translate(None, b"\0") if b"\0" in content[:_START] else content
    return _SHEET_MARK in text or _DRAWING in text[: 2 * _START] or _has_element(text)


def may_have_facts(content: bytes) -> bool:
    """For a part of a document, which may declare more than it contains, and begin with anything."""
    text = content.replace(b"\0", b"")
    return b"<!" in text or _has_element(text)


def _has_element(text: bytes) -> bool:
    return (
        any(element.search(text) for element in _ELEMENTS)
        or (any(piece in text for piece in _IN_MARKS) and any(mark in text for mark in _MARKS))
        or all(mark in text for mark in _FORM_MARKS)
    )


def work_of(text: str) -> int:
    """What it costs to read a document of this text."""
    values = text.count("=") if _USER_INTERFACE in text else 0  # all are looked at
    return _TAG_WORK * text.count("<") + _READ_WORK * sum(map(text.count, _OFTEN)) + _VALUE_WORK * values


class Element(NamedTuple):
    """One of those that were asked for. Its name and those of its attributes have no prefixes."""

    name: str
    attributes: dict[str, str]
    text: str  # with that of inner elements; twice if there are any: with and without spaces between the texts


def elements(content: bytes, names: frozenset[str], attribute: str = "") -> tuple[list[Element], bool]:
    """The elements of these names, and those with this attribute; and whether all of the document was read."""
    reader = _ElementReader(names, attribute)
    is_whole = reader.read(content)
    return reader.found(), is_whole


def work_of_elements(text: str, marks: Collection[str]) -> int:
    """What it costs to find elements in a document of this text if each of them has one of these marks."""
    added = _GROWTH * len(text) + _FREE if "<!ENTITY" in text or "<!ATTLIST" in text else 0
    tags = text.count("<")
    read = tags if "<!ATTLIST" in text else sum(map(text.count, marks))  # any element may get an attribute
    return added + 2 * _TAG_WORK * tags + _ELEMENT_WORK * read + 10 * text.count("=")


def leaves(content: bytes, names: frozenset[str]) -> list[Element]:
    """The elements that have no others in them, and a long text or one of these names, in lower case."""
    reader = _LeafReader(names)
    reader.read(content)
    return reader.found


def work_of_leaves(content: bytes, names: frozenset[str]) -> int:
    added = _GROWTH * len(content) + _FREE if b"<!" in content else 0
    lower = content.lower()
    named = sum(lower.count(name.encode() + b">") for name in names)
    return added + _TAG_WORK * content.count(b"<") + 10 * content.count(b"=") + _ELEMENT_WORK * named


def read(content: bytes) -> Facts:
    reader = _Reader()
    reader.read(content)
    reader.facts.fields = "\n".join(
        filter(None, (*reader.fields, *(text for code in reader.codes for text in code.texts())))
    )
    reader.facts.defined = "\n".join(reader.defined).lower()
    return reader.facts


class _TooLarge(Exception):
    """What the document declares."""


class _Code:
    """The instruction of a field, in pieces. What was deleted in it is not a part of it."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[str]] = {name: [] for name in _FIELDS}

    def texts(self) -> list[str]:
        return ["".join(pieces) for pieces in self.pieces.values()]


class _Reader:
    expands = False  # entities in text

    def __init__(self) -> None:
        self.facts = Facts()
        self.fields: list[str] = []
        self.codes = [_Code()]  # of the fields that are open: they may contain each other
        self.defined: list[str] = []
        self._is_interface = False
        self.has_unknown_encoding = False
        self._text: list[str] | None = None  # of the element that is open, if it matters

    def read(self, content: bytes) -> bool:
        """Whether all of it is XML."""
        if self.parse(content, None):
            return True
        if b"\0" in content:  # undeclared UTF-16
            return self.parse(content.replace(b"\0", b""), "utf-8")
        if self.has_unknown_encoding:  # Office knows many that expat does not; in all of them, tags are ASCII
            return self.parse(content.decode("latin_1").encode(), "utf-8")
        return False

    def parse(self, content: bytes, encoding: str | None) -> bool:
        parser = expat.ParserCreate(encoding)
        parser.buffer_text = True
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add
        if self.expands:
            parser.DefaultHandlerExpand = self._refer
        else:
            parser.DefaultHandler = self._refer  # which also means that no entity is expanded in text
        declarations = _Declarations(content)
        parser.EntityDeclHandler = declarations.entity
        parser.AttlistDeclHandler = declarations.attribute
        start = max(0, content[:_START].find(b"<"))
        try:
            for at in range(start, len(content), _BLOCK):
                parser.Parse(content[at : at + _BLOCK], at + _BLOCK >= len(content))
        except (ValueError, LookupError):
            self.has_unknown_encoding = True
            return False
        except expat.ExpatError as exc:
            self.has_unknown_encoding = exc.code in _ENCODING_ERRORS
            return False
        except _TooLarge:
            self.facts.has_entities = True
            return False
        return True

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        if self._is_interface:
            called = (value for key, value in attributes.items() if key.startswith(_CALLS))
            self.facts.macros += [value for value in called if "/" in value or "\\" in value]
        if name not in _READ:  # nearly all
            return
        if name == "Relationship":
            is_external = attributes.get("TargetMode", "").strip().lower() == "external"
            relation = Relation(attributes.get("Type", ""), attributes.get("Target", ""), is_external)
            self.facts.relations.append(relation)
        elif name in _FIELDS or name in _DATA or name == _BASE:
            self._text = []
        elif name == "fldSimple":
            self.fields += _local(attributes, "instr")
        elif name == "fldChar":
            self._bound(_local(attributes, "fldCharType"))
        elif name == "ddeLink":
            self.facts.dde_links.append((attributes.get("ddeService", ""), attributes.get("ddeTopic", "")))
        elif name == "definedName":
            self.defined.append(attributes.get("name", ""))
        elif name in _ACTIONS:
            self.facts.actions.append(attributes.get("action", ""))
        elif name in _CONNECTIONS:
            self.facts.addresses += attributes.values()
        elif name == _USER_INTERFACE and not self._is_interface:
            self._is_interface = True
            self._begin("", attributes)

    def _bound(self, kinds: list[str]) -> None:
        """The beginning or the end of a field, or something between them."""
        if "begin" in kinds:
            self.codes.append(_Code())
        elif "end" in kinds and len(self.codes) > 1:
            self.fields += self.codes.pop().texts()

    def _add(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _refer(self, text: str) -> None:
        """What has no handler: comments, declarations and references to entities."""
        if self._text is not None and text.startswith("&"):
            self.facts.has_entities = True

    def _end(self, name: str) -> None:
        if self._text is None:  # nearly always
            return
        name = name.rpartition(":")[2]
        if name in _FIELDS:
            self.codes[-1].pieces[name] += self._text
        elif name in _DATA:
            self.facts.data.append("".join(self._text))
        elif name == _BASE:
            self.facts.bases.append("".join(self._text).strip())
        else:
            return
        self._text = None


def _local(attributes: dict[str, str], name: str) -> list[str]:
    """The values of an attribute, with any prefix."""
    return [value for key, value in attributes.items() if key.rpartition(":")[2] == name]


class _ElementReader(_Reader):
    expands = True

    def __init__(self, names: frozenset[str], attribute: str) -> None:
        super().__init__()
        self._names, self._attribute = names, attribute
        self._found: list[tuple[str, dict[str, str], list[str]]] = []
        self._depth = 0  # within an element of these names; the text belongs to the outermost

    def found(self) -> list[Element]:
        return [Element(name, attributes, _both_ways("".join(text))) for name, attributes, text in self._found]

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        is_named = name in self._names
        if is_named or (self._attribute and any(self._attribute in key for key in attributes)):
            plain = {key.rpartition(":")[2]: value for key, value in attributes.items()}
            text: list[str] = []
            self._found.append((name, plain, text))
            if is_named and self._text is None:
                self._text = text
        if self._text is not None:
            self._text.append(_CHILD if self._depth else "")
            self._depth += 1

    def _end(self, name: str) -> None:
        if self._text is None:
            return
        self._depth -= 1
        if self._depth:
            self._text.append(_CHILD)
        else:
            self._text = None


class _LeafReader(_Reader):
    expands = True

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self._names = names
        self.found: list[Element] = []
        self._attributes: dict[str, str] = {}

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._attributes, self._text = attributes, []

    def _end(self, name: str) -> None:
        if self._text is None:  # it has other elements in it
            return
        text, name = "".join(self._text), name.rpartition(":")[2]
        self._text = None
        if len(text) >= _LONG_TEXT or name.lower() in self._names:
            plain = {key.rpartition(":")[2]: value for key, value in self._attributes.items()}
            self.found.append(Element(name, plain, text))


def _both_ways(text: str) -> str:
    return text.replace(_CHILD, "") + "\n" + text.replace(_CHILD, " ") if _CHILD in text else text


class _Declarations:
    """How large a document can become: expat itself allows a hundred times its size."""

    def __init__(self, content: bytes) -> None:
        self._references, self._elements = content.count(b"&"), content.count(b"<")
        self._may_add = _GROWTH * len(content) + _FREE
        self._entity = 0  # the size of the largest one
        self._attributes = 0  # what each element gets

    def entity(self, _name: str, is_parameter: bool, value: str | None, *_others: str | None) -> None:
        if is_parameter or value is None:  # expat reads neither
            return
        self._entity = max(self._entity, len(value))
        self._check(is_nested="&" in value)

    def attribute(self, _element: str, name: str, _type: str, value: str | None, _required: bool) -> None:
        if value is not None:
            self._attributes += len(name) + len(value) + _ATTRIBUTE
            self._check()

    def _check(self, *, is_nested: bool = False) -> None:
        added = self._entity * self._references + self._attributes * self._elements
        if is_nested or added > self._may_add:
            raise _TooLarge
