"""PDF documents: their links, what they run, and the files and photographs in them.

Not a PDF reader: it ignores the table of objects, which viewers repair in different ways, and looks at every object in
the file, also those of earlier versions and those in object streams. So whatever a viewer finds is found here, in time
that is linear in the size of the file. The streams that draw the pages are not decoded: a link that is only printed as
text is not seen.

An encrypted document is decrypted by pikepdf, if that is installed and the document has no password to open it.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Iterator

from bridge.service.analysis.decompression import Inflater, decode
from bridge.service.analysis.pictures import link_of
from bridge.service.analysis.unpacking import Budget, Member

ENCRYPTED = "document:encrypted"
_HEAD = 1024  # bytes in which viewers look for the beginning
_DICTIONARY = 4096  # bytes before a stream in which its description begins
_MAX_LINKS = 5000
_NAMES = 50  # of embedded files

_STREAM = re.compile(rb"stream(?:\r\n|\n|\r)")
_OBJECT = re.compile(rb"(\d{1,10})\s{1,9}\d{1,5}\s{1,9}obj")
_ESCAPED_NAME = re.compile(rb"#([0-9a-fA-F]{2})")
_ATTACHED = re.compile(rb"/U?F\s{0,9}(\d{1,10})\s{1,9}\d{1,5}\s{1,9}R")
_SCRIPT = re.compile(rb"/JS\s{0,9}(\d{1,10})\s{1,9}\d{1,5}\s{1,9}R")
_STRING = re.compile(rb"(?:/(URI|UF|F|URL)\s{0,20})?\(((?:[^()\\]|\\.){1,4000}+)", re.DOTALL)
_HEX_STRING = re.compile(rb"(?:/(URI|UF|F|URL)\s{0,20})?<((?:[0-9a-fA-F]\s{0,2}){8,8000}+)>")
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|(\r\n|[\r\n])|(.))", re.DOTALL)
_ADDRESS = re.compile(r"\s{0,20}(?:[a-z][a-z0-9+.-]{1,30}:[/\\]|www\.)", re.IGNORECASE)
_FILTERS = re.compile(rb"/(FlateDecode|Fl|ASCII85Decode|A85|ASCIIHexDecode|AHx)(?![A-Za-z0-9])")
_FILE_TYPE = re.compile(rb"/EmbeddedFile(?!s)")
_RUNS = {
    "pdf:javascript": re.compile(rb"/(?:JavaScript|JS)(?![A-Za-z0-9])"),
    "pdf:launch": re.compile(rb"/Launch(?![A-Za-z0-9])"),
}
_ON_OPENING = re.compile(rb"/(?:OpenAction|AA)(?![A-Za-z0-9])")
_ACTIONS = re.compile(rb"/(?:JavaScript|Launch|SubmitForm|ImportData|GoToR|GoToE)(?![A-Za-z0-9])")
_CONTROL = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def is_pdf(content: bytes) -> bool:
    return b"%PDF-" in content[:_HEAD]


def pdf_members(content: bytes, budget: Budget) -> Iterator[Member]:
    budget.take_work(10 * len(content))
    if b"/Encrypt" in content:
        decrypted = _decrypted(content)
        yield Member((), None, tags=() if decrypted else (ENCRYPTED,))
        content = decrypted or content
        budget.take(len(decrypted))
    streams = list(_streams(content))
    texts = [_plain(_without(content, streams))]
    for _number, start, end, about in streams:
        if b"/ObjStm" in about:
            texts.append(_plain(_decoded(content[start:end], about, budget)))
    attached = {number for text in texts for number in _ATTACHED.findall(text)}
    scripts = {number for text in texts for number in _SCRIPT.findall(text)}
    for number, start, end, about in streams:
        if b"/ObjStm" in about:
            continue
        if _FILE_TYPE.search(about) or (number in attached and b"/Subtype" not in about):
            budget.take_member()
            yield Member(("",), _decoded(content[start:end], about, budget), tags=("pdf:embedded-file",))
        elif number in scripts:
            texts.append(_decoded(content[start:end], about, budget))
        elif b"/DCTDecode" in about or b"/DCT" in about:
            yield Member(("",), content[start:end])
    yield _summary(texts)


def _summary(texts: list[bytes]) -> Member:
    tags = {tag for text in texts for tag, pattern in _RUNS.items() if pattern.search(text)}
    if any(map(_ON_OPENING.search, texts)) and any(map(_ACTIONS.search, texts)):
        tags.add("pdf:open-action")
    links: dict[str, None] = {}
    names: dict[str, None] = {}
    for text in texts:
        for key, value in _strings(text):
            if _ADDRESS.match(value) or key in ("URI", "URL"):
                links[link_of(value)] = None
            elif key and "." in value and len(names) < _NAMES:
                names[value[-255:]] = None
    return Member(tuple(names), None, tags=tuple(tags), links=tuple(filter(None, links))[:_MAX_LINKS])


def _streams(content: bytes) -> Iterator[tuple[bytes, int, int, bytes]]:
    """The number of each object with a stream, where its stream begins and ends, and its description."""
    end = 0
    while match := _STREAM.search(content, end):
        start = match.end()
        if content.endswith(b"end", max(0, match.start() - 3), match.start()):
            end = start
            continue
        about = content[max(end, match.start() - _DICTIONARY) : match.start()]
        number = b""
        for number_match in _OBJECT.finditer(about):
            number, about_start = number_match[1], number_match.end()
        about = about[about_start:] if number else about
        end = content.find(b"endstream", start)
        end = end if end >= 0 else len(content)
        yield number, start, end, _plain(about)


def _without(content: bytes, streams: list[tuple[bytes, int, int, bytes]]) -> bytes:
    pieces, at = [], 0
    for _, start, end, _ in streams:
        pieces.append(content[at:start])
        at = end
    return b"\n".join((*pieces, content[at:]))


def _plain(text: bytes) -> bytes:
    """With the escapes in names replaced: `/J#61vaScript`."""
    return _ESCAPED_NAME.sub(lambda match: bytes([int(match[1], 16)]), text) if b"#" in text else text


def _decoded(data: bytes, about: bytes, budget: Budget) -> bytes:
    filters = _FILTERS.findall(about)
    if not filters and data[:1] == b"x":  # its description may be elsewhere
        filters = [b"Fl"]
    for name in filters[:8]:
        if name in (b"FlateDecode", b"Fl"):
            data = decode(lambda: Inflater(15), data, 0, budget).content
        elif name in (b"ASCII85Decode", b"A85"):
            data = _from_ascii85(data)
        else:
            data = _from_hex(data)
    return data


def _from_ascii85(data: bytes) -> bytes:
    try:
        return base64.a85decode(data.strip().removeprefix(b"<~").partition(b"~")[0])
    except ValueError:
        return b""


def _from_hex(data: bytes) -> bytes:
    digits = re.sub(rb"[^0-9a-fA-F]", b"", data.partition(b">")[0])
    return binascii.unhexlify(digits + b"0" * (len(digits) % 2))


def _strings(text: bytes) -> Iterator[tuple[str, str]]:
    """Strings that may be an address or the name of a file, and the key before them."""
    for match in _STRING.finditer(text):
        value = _ESCAPE.sub(_unescaped, match[2]) if b"\\" in match[2] else match[2]
        yield (match[1] or b"").decode(), _as_text(value)
    for match in _HEX_STRING.finditer(text):
        yield (match[1] or b"").decode(), _as_text(_from_hex(match[2]))


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, line_end, other = match.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    return b"" if line_end else _CONTROL.get(other, other)


def _as_text(value: bytes) -> str:
    if value.startswith((b"\xfe\xff", b"\xff\xfe")):
        return value.decode("utf-16", "replace")
    return value.decode("utf-8", "replace").removeprefix("\ufeff")


def _decrypted(content: bytes) -> bytes:
    """The document without its encryption; empty if it needs a password, or pikepdf is not installed."""
    try:
        import pikepdf
    except ImportError:
        return b""
    out = io.BytesIO()
    try:
        with pikepdf.open(io.BytesIO(content)) as document:
            document.save(out, object_stream_mode=pikepdf.ObjectStreamMode.disable, compress_streams=False)
    except (pikepdf.PdfError, pikepdf.PasswordError, ValueError, RuntimeError, OverflowError, TypeError):
        return b""
    return out.getvalue()
