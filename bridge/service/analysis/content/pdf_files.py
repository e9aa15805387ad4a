"""PDF documents: their links, what they run, and the files and photographs in them.

Not a PDF reader: it ignores the table of objects, which viewers repair in different ways, and looks at every object in
the file, even those of earlier versions and those in object streams. So whatever a viewer finds is found here, in time
that is linear in the size of the file. The streams that draw the pages are not decoded: a link that is only printed as
text is not seen.

What is encrypted but opens without a password, or is encoded in a way that is not known here, is read by pikepdf if
that is installed; otherwise the document gets a tag.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from bridge.service.analysis.content import file_types, office_attacks, pdf_scripts
from bridge.service.analysis.content.pdf_objects import Objects, Reader, plain, references
from bridge.service.analysis.content.pdf_pictures import Pictures
from bridge.service.analysis.content.pdf_streams import Decoder, Stream, from_hex, outside, streams, without_comments
from bridge.service.analysis.content.pictures import link_of
from bridge.service.analysis.content.unpacking import Budget, Member

ENCRYPTED, NOT_READ = "document:encrypted", "document:not-read"
_HEAD = 1024  # bytes in which viewers look for the beginning
_STREAM_WORK = 4096  # for an object stream, however short, and
_OBJECTS_WORK = 3  # for each byte of it, which several patterns search
_FOUND_WORK = 500  # for each stream and each string, however short
_WORD_WORK = 200  # for each word that may begin a stream
_ESCAPE_WORK = 128  # for each escape in a string, and each byte that may begin one in a name
_READ_AGAIN = 20  # work for each byte before a word `stream` within another stream
_NEAR = 64  # bytes in which a picture begins
_NO_CONTENT = 16  # bytes of a stream that may be those of an empty file
_REWRITING = 20  # work for each byte that pikepdf reads and writes
# It inflates streams with objects, which an attacker can make a million times as long by compressing them twice.
_QPDF_LIMITS = {
    "max_stream_filters": 1,
    **dict.fromkeys(
        ("flate_max_memory", "png_max_memory", "tiff_max_memory", "run_length_max_memory"), 32 * 1024 * 1024
    ),
}

_ENDING = re.compile(rb"startxref[\s\0]++\d|trailer[\s\0]*+<<|%%EOF")
# Files for any system: viewers take what there is.
_ATTACHED, _SCRIPT, _FORM = frozenset({b"F", b"UF", b"DOS", b"Mac", b"Unix"}), frozenset({b"JS"}), frozenset({b"XFA"})
_KEY = re.compile(rb"/(URI|URL|Base|UF|F|DOS|Mac|Unix|JS|XFA)(?=[\s\0%(<\[])")
_KEY_WORK = 250
_PARENTHESES = re.compile(rb"\(++")
_FORM_SCRIPT = re.compile(rb"<(?:script|[^\s<>/:]++:script)([^<]*+)", re.IGNORECASE)
_ATTRIBUTES = re.compile(rb"""[^>"']*+(?:(?:"[^"]*+"|'[^']*+')[^>"']*+)*""")
_SCRIPT_WORK, _ATTRIBUTES_WORK = 3, 6  # for each byte of a script or a form; of what may be attributes in a form
_STRING = re.compile(rb"\(((?:[^()\\]++|\\.)++)", re.DOTALL)  # to the end: a long user name may precede a host
_HEX_STRING = re.compile(rb"<([0-9a-fA-F\s\0]{8,}+)>")
_LONGEST_STRING = 64 * 1024  # bytes, of those with parentheses: a host may follow a long user name
_PARENTHESES_WORK = 60  # for each byte of one
_PARENTHESIS = re.compile(rb"\\.|[()]", re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|(\r\n|[\r\n])|(.))", re.DOTALL)
_ADDRESS = re.compile(r"\s{0,20}(?:[a-z][a-z0-9+.-]{1,30}:[/\\]|www\.)", re.IGNORECASE)
_SCHEME = re.compile(r"\s{0,20}[a-zA-Z][a-zA-Z0-9+.-]{1,30}:")
_OBJECTS = re.compile(rb"/(?:ObjStm|First)(?![A-Za-z0-9])")
_PAIR = re.compile(rb"[\s\0]*+[+\-]?\d++[\s\0]++[+\-]?\d")
_FILE_TYPE = re.compile(rb"/EmbeddedFile(?!s)")
_ACTION = re.compile(rb"/(JavaScript|JS|Launch|OpenAction|AA|SubmitForm|ImportData|GoToR|GoToE)(?![A-Za-z0-9])")
_RUNS = {b"JavaScript": "pdf:javascript", b"JS": "pdf:javascript", b"Launch": "pdf:launch"}
_ON_OPENING = {b"OpenAction", b"AA"}
_ACTIONS = {b"JavaScript", b"Launch", b"SubmitForm", b"ImportData", b"GoToR", b"GoToE"}
_CONTROL = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def is_pdf(content: bytes, names: Collection[str] = ()) -> bool:
    """By its mark; or by its name or its end, if it has objects: pdf.js, poppler and others need no mark."""
    head = content[:_HEAD]
    if b"%PDF-" in head or head.startswith(b"%FDF-"):  # a form, which says where its document is
        return True
    if b"obj" not in content:
        return False
    return file_types.has_extension(names, ("pdf",)) or _ENDING.search(content[-_HEAD:]) is not None


def pdf_members(content: bytes, budget: Budget, *, reads_pictures: bool = False) -> Iterator[Member]:
    """`reads_pictures`: whether the pictures in it are searched for codes."""
    document = _Document(content, budget, reads_pictures)
    if not document.is_encrypted and document.is_read:
        yield from document.members()
        return
    rewritten, was_encrypted = _rewritten(content, budget)
    if not rewritten:
        yield Member((), None, tags=(ENCRYPTED if document.is_encrypted else NOT_READ,))
    if not rewritten or not was_encrypted:  # some objects may be lost in the rewritten document
        yield from document.members()
    if rewritten:
        yield from _Document(rewritten, budget, reads_pictures).members()


class _Document:
    def __init__(self, content: bytes, budget: Budget, reads_pictures: bool) -> None:
        budget.take_work(10 * len(content))
        self._content = content
        self._budget = budget
        self._objects = Objects(content, budget)
        self._streams: list[Stream] = []
        end = 0
        budget.take_work(_WORD_WORK * content.count(b"stream") + _ESCAPE_WORK * content.count(b"#"))
        for stream in streams(content, self._objects):
            budget.take_work(_FOUND_WORK + (_READ_AGAIN if stream.early <= end else 1) * len(stream.about))
            end = stream.end
            self._streams.append(stream)
        self._decoder = Decoder(content, self._objects, budget)
        self._pictures = Pictures(content, self._objects, budget) if reads_pictures else None
        self._texts = [_Text(outside(content, self._streams), budget)]
        self.is_read = True
        for stream in self._streams:
            self._read_objects(stream)
        self.is_encrypted = any(b"/Encrypt" in text.text for text in self._texts)

    def _read_objects(self, stream: Stream) -> None:
        """If it may be an object stream. Not all viewers need its type; all need the first offset."""
        if not _OBJECTS.search(stream.about):
            return
        self._budget.take_work(_STREAM_WORK)
        data, is_known = self._decoder.decode(stream)
        self._budget.take_work(_OBJECTS_WORK * len(data) + _ESCAPE_WORK * data.count(b"#"))
        is_certain = b"/ObjStm" in stream.about
        if is_certain and not (is_known and _looks_like_objects(data[:4096])):
            self.is_read = False
        self._texts.append(_Text(plain(data), self._budget))
        self._objects.add_packed(data, self._decoder.described(stream))

    def members(self) -> Iterator[Member]:
        attached, scripts, forms = map(self._numbers, (_ATTACHED, _SCRIPT, _FORM))
        self._texts += self._indirect(attached, b"/F ") + self._indirect(scripts, b"/JS ")
        sources: list[str] = []
        pieces: list[bytes] = []  # of the form: together, they are one XML document
        for stream in self._streams:  # including those that seem to contain objects: any description may say so
            if _FILE_TYPE.search(stream.about) or _is_one_of(stream, attached):
                self._budget.take_member()
                data, is_known = self._decoder.decode(stream)
                is_lost = not data and stream.end - stream.start > _NO_CONTENT and not self.is_encrypted
                tags = ("pdf:embedded-file", NOT_READ) if is_lost else ("pdf:embedded-file",)
                # ClamAV supports neither predictors nor filters that are objects of their own.
                yield Member(("",), data, tags=tags, limit="" if is_known else "archive-method", is_disputed=True)
            elif _is_one_of(stream, scripts):
                source = self._decoded(stream)
                sources.append(_as_text(source))
                self._texts.append(_Text(source, self._budget))
            elif _is_one_of(stream, forms):
                pieces.append(self._decoded(stream))
            elif b"/DCT" in stream.about and (self._pictures is None or self._is_jpeg(stream)):
                self._budget.take_member()
                self._budget.take(stream.end - stream.start)
                yield Member(("",), self._content[stream.start : stream.end])
            elif self._pictures is not None:
                yield from self._pictures.members(stream)
        form = list(_scripts_in(b"".join(pieces), self._budget))
        sources += form
        if form:
            yield Member((), None, tags=("pdf:javascript",))
        yield _summary(self._texts, sources, self._budget)

    def _is_jpeg(self, stream: Stream) -> bool:
        """As it is, and not encoded again."""
        return self._content[stream.start : stream.start + _NEAR].lstrip().startswith(b"\xff\xd8")

    def _decoded(self, stream: Stream) -> bytes:
        data, _ = self._decoder.decode(stream)
        self._budget.take_work(_SCRIPT_WORK * len(data))
        return data

    def _indirect(self, numbers: set[int], key: bytes) -> list[_Text]:
        """Names of files, and scripts, that are separate objects, as if they were written where they are used."""
        found = (text for number in numbers for _, text in self._objects.values(number))
        names = (key + plain(text) for text in found if text[:1] in (b"(", b"<") and text[:2] != b"<<")
        return [_Text(name, self._budget) for name in dict.fromkeys(names)]

    def _numbers(self, keys: Collection[bytes]) -> set[int]:
        """The numbers of the objects to which these keys refer, directly or through an array."""
        direct = {number for text in self._texts for key in keys for number in text.references.get(key, ())}
        arrays = (value for number in direct for value, _ in self._objects.values(number) if isinstance(value, list))
        return direct.union(*map(references, arrays))


def _is_one_of(stream: Stream, numbers: set[int]) -> bool:
    return bool(numbers) and (stream.numbers is None or not stream.numbers.isdisjoint(numbers))


class _Text:
    """Objects that are in no stream, or in an object stream; or a script."""

    def __init__(self, text: bytes, budget: Budget) -> None:
        self.text = text
        self.references: dict[bytes, set[int]] = {}  # by their key
        self.keys: dict[int, tuple[str, int]] = {}  # before a string: the key, and how many parentheses are between
        reader = Reader(text, budget)
        for match in _KEY.finditer(text):
            budget.take_work(_KEY_WORK)
            at, key = reader.skip(match.end()), match[1]
            if text[at : at + 1] in (b"(", b"<") and key in _FORM:
                continue
            if parentheses := _PARENTHESES.match(text, at):
                self.keys[parentheses.end() - 1] = (key.decode(), parentheses.end() - at - 1)
            elif text.startswith(b"<", at):
                self.keys[at] = (key.decode(), 0)
            else:
                self.references.setdefault(key, set()).update(references(reader.value(at)[0]))


def _looks_like_objects(data: bytes) -> bool:
    return b"<<" in data or _PAIR.match(without_comments(data)) is not None


def _scripts_in(form: bytes, budget: Budget) -> Iterator[str]:
    """The elements `script` that say that they are JavaScript: there are other languages."""
    text = form.replace(b"\0", b"")  # of UTF-16
    for match in _FORM_SCRIPT.finditer(text):
        budget.take_work(_KEY_WORK + _ATTRIBUTES_WORK * len(match[1]))
        attributes = _ATTRIBUTES.match(match[1]).group()  # type: ignore[union-attr]  # (it matches nothing, too)
        if "javascript" in html.unescape(attributes.decode("latin-1")).lower():
            source = text[match.start(1) + len(attributes) : match.end(1) + _LONGEST_STRING].partition(b"</")[0]
            budget.take_work(_ATTRIBUTES_WORK * len(source))
            yield html.unescape(_as_text(source))


def _summary(texts: list[_Text], sources: list[str], budget: Budget) -> Member:
    """`sources`: of scripts that are in streams."""
    actions = {name for text in texts for name in _ACTION.findall(text.text)}
    tags = {tag for name, tag in _RUNS.items() if name in actions}
    if actions & _ON_OPENING and actions & _ACTIONS:
        tags.add("pdf:open-action")
    links: dict[str, None] = {}
    names: dict[str, None] = {}
    addresses: dict[str, None] = {}
    for text in texts:
        for key, value in _strings(text, budget):
            budget.take_work(_FOUND_WORK)
            is_script = key == "JS"
            if is_script:
                sources.append(value)
            elif key in ("URI", "URL") or (key and _SCHEME.match(value)):  # a file may be given as an address
                addresses[value] = None
            if key == "Base":  # of addresses without a folder
                addresses[office_attacks.in_folder(value)] = None
            if key in ("URI", "URL") or _ADDRESS.match(value):
                links[link_of(value)] = None
            elif "://" in value:  # in a script
                links[value] = None
            elif key and key != "Base" and not is_script and "." in value:
                names[value[-255:]] = None
            if key and value.startswith(("\\\\", "//")):
                links[pdf_scripts.as_link(value)] = None
    opened = [link for source in sources for link in pdf_scripts.links(source, budget)]
    links |= dict.fromkeys(opened)
    if office_attacks.any_starts_program((*addresses, *opened), budget):
        tags.add("pdf:launch")
    if any(pdf_scripts.opens_file(source, budget) for source in sources):
        tags.add("pdf:launch")
    return Member(tuple(names), None, tags=tuple(tags), links=tuple(filter(None, links)))


def _strings(found: _Text, budget: Budget) -> Iterator[tuple[str, str]]:
    """Strings that may be an address or the name of a file, and the key before them."""
    text = found.text
    for match in _STRING.finditer(text):
        (key, before), value = found.keys.get(match.start(), ("", 0)), match[1]
        if before or (key and text[match.end() : match.end() + 1] == b"("):
            value = _balanced(text, match.start(1) - before, budget) or value
        budget.take_work(_ESCAPE_WORK * value.count(b"\\"))
        yield key, _as_text(_ESCAPE.sub(_unescaped, value) if b"\\" in value else value)
    for match in _HEX_STRING.finditer(text):
        yield found.keys.get(match.start(), ("", 0))[0], _as_text(from_hex(match[1]))


def _balanced(text: bytes, start: int, budget: Budget) -> bytes:
    """A string with parentheses in it: they need no escape if each has its counterpart. Empty if it does not end."""
    depth, at, end = 1, start, min(len(text), start + _LONGEST_STRING)
    for match in _PARENTHESIS.finditer(text, start, end):
        at = match.end()
        depth += {b"(": 1, b")": -1}.get(match.group(), 0)
        if not depth:
            break
    budget.take_work(_PARENTHESES_WORK * (at - start))
    return b"" if depth else text[start : at - 1]


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, line_end, other = match.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    return b"" if line_end else _CONTROL.get(other, other)


def _as_text(value: bytes) -> str:
    if value.startswith((b"\xfe\xff", b"\xff\xfe")):
        return value.decode("utf-16", "replace")
    return value.decode("utf-8", "replace").removeprefix("\ufeff")


@contextmanager
def _limited(settings: Any) -> Iterator[None]:
    """qpdf's limits are those of the whole process."""
    if not hasattr(settings, "set_qpdf_limits"):  # an older version
        yield
        return
    before = settings.set_qpdf_limits(**_QPDF_LIMITS)
    try:
        yield
    finally:
        settings.set_qpdf_limits(**before)


def _rewritten(content: bytes, budget: Budget) -> tuple[bytes, bool]:
    """The document without encryption and object streams, and whether it was encrypted.

    Empty if it needs a password, is damaged, or pikepdf is not installed.
    """
    try:
        import pikepdf
    except ImportError:
        return b"", False
    budget.take_work(_REWRITING * len(content))
    out = io.BytesIO()
    try:
        with _limited(pikepdf.settings), pikepdf.open(io.BytesIO(content)) as document:
            was_encrypted = document.is_encrypted
            document.save(
                out,
                object_stream_mode=pikepdf.ObjectStreamMode.disable,
                stream_decode_level=pikepdf.StreamDecodeLevel.none,
                compress_streams=False,
            )
    except (pikepdf.PdfError, pikepdf.PasswordError, ValueError, RuntimeError, OverflowError, TypeError):
        return b"", False
    budget.take(out.tell())
    return out.getvalue(), was_encrypted
