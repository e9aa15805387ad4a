"""The MIME structure of a mail, as offsets into its bytes.

Hand-written, because the standard parser builds a tree of copies (four times the size of the mail),
recurses once per nesting level, and has no limits. This one walks bytes or an `mmap` with `find`,
copies only headers, and stops at its bounds: `TooMuch` means that the mail has more parts, nesting
or header bytes than we are willing to examine. It raises nothing else, whatever the input.

This is the plain reading of a mail, correct for a mail that follows the standards. Each part says in
`doubts` where other programs may read it differently; `readings` then has all the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from bridge.mime import ambiguity
from bridge.mime.ambiguity import Buffer
from bridge.mime.names import candidates, described, located, may_name, work
from bridge.mime.words import as_text, decode_words

_LINE_WORK = 2  # microseconds for a field; a character of a field that describes a part takes one at most
LONG_VALUE = 2000  # bytes of one header field: a longer one is read as well, but programs may cut it
MAX_FIELDS = 2000  # of one part: with more, TooMuch


class TooMuch(Exception):
    """A bound was reached; the text is its one-word name."""


@dataclass(frozen=True, slots=True)
class Bounds:
    parts: int = 2000
    depth: int = 30
    header_bytes: int = 256 * 1024  # of one part
    naming_work: int = 8_000_000  # of all fields that describe parts, see `names.work`: reading them takes longest
    header_work: int = 2_000_000  # of the header sections of all parts, in microseconds


@dataclass(slots=True)
class Part:
    """One leaf or container; its encoded bytes are from `body` to `end`."""

    body: int
    end: int
    depth: int
    fields: list[tuple[str, str]] = field(default_factory=list)
    content_type: str = "text/plain"
    params: dict[str, str] = field(default_factory=dict)
    encoding: str = "7bit"
    filename: str = ""
    names: set[str] = field(default_factory=set)  # the file names that mail programs may show, `filename` among them
    titles: set[str] = field(default_factory=set)  # what may be a name, or only a description
    doubts: set[str] = field(default_factory=set)  # why programs may read this part differently: `ambiguity`

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]


def walk(data: Buffer, bounds: Bounds, *, finds_files: bool = True, finds_all_names: bool = True) -> Iterator[Part]:
    """Every part, outermost first. The first part is the mail itself, with its header fields.

    Without `finds_files`, parts have no names, and what may be a file in a text that declares none raises no doubt:
    nearly all of the time is spent on that. Without `finds_all_names`, a part has only its `filename`, which is enough
    for a person who looks at the mail: most of the time is spent on `names` and `titles`.
    """
    todo = [_Span(0, len(data), 0)]
    count = described = read = 0
    while todo:
        span = todo.pop()
        count += 1
        if count > bounds.parts:
            raise TooMuch("parts")
        if span.depth > bounds.depth:
            raise TooMuch("depth")
        part, needed = _read_part(data, span, bounds.header_bytes, bounds.header_work - read)
        read += needed
        if finds_files:
            described += _name(part, bounds.naming_work - described, finds_all_names)
        if count == 1:
            part.doubts |= ambiguity.in_lines(data)
        children = _children(data, part, span, bounds.parts - count - len(todo), finds_files)
        yield part
        todo.extend(reversed(children))


def doubts(data: Buffer, bounds: Bounds) -> set[str]:
    """All the reasons why mail programs may read the structure of this mail differently, or `UNREAD` among them."""
    found: set[str] = set()
    try:
        for part in walk(data, bounds, finds_files=False):
            found |= part.doubts
    except TooMuch:
        found.add(ambiguity.UNREAD)
    return found


class _Span(NamedTuple):
    """Where a part is, and what encloses it."""

    start: int
    end: int
    depth: int
    outer: tuple[str, ...] = ()  # the boundaries of the multiparts around it
    default_type: str = "text/plain"


def _read_part(data: Buffer, span: _Span, header_bytes: int, room: int) -> tuple[Part, int]:
    """The part, and the work that it took. Raises TooMuch if that would be more than `room`."""
    head, body, doubts = _split_head(data, span.start, span.end, header_bytes)
    part = Part(body, span.end, span.depth, content_type=span.default_type, doubts=doubts)
    if _LINE_WORK * head.count(b"\n") > room:
        raise TooMuch("header")
    part.fields = _fields(head, doubts)
    described = _described(part)
    needed = _LINE_WORK * head.count(b"\n") + sum(len(value) for _, value in described)
    if needed > room:
        raise TooMuch("header")
    names = [name for name, _ in part.fields]
    doubts |= ambiguity.in_names(names) | ambiguity.in_head(head, names)
    if described:
        doubts |= ambiguity.in_fields(described)
        _describe(part, described)
        doubts |= ambiguity.in_container(part.content_type, part.encoding)
    return part, needed


def _described(part: Part) -> list[tuple[str, str]]:
    return [(name, value) for name, value in part.fields if name.startswith("content-")]


def _describe(part: Part, fields: list[tuple[str, str]]) -> None:
    for name, value in fields:
        if name == "content-type" and not part.params and value:
            kind, part.params = parse_value(value)
            part.content_type = kind if "/" in kind else "text/plain"
        elif name == "content-transfer-encoding":
            part.encoding = value.strip(" \t").lower()[:40]  # a longer one has no meaning, cut or not


def _name(part: Part, room: int, finds_all: bool) -> int:
    """Find its names. Returns the work that it took; raises TooMuch if that would be more than `room`."""
    own = [(name, value) for name, value in _described(part) if _may_name(name, value)]
    fields = [*own, *_together(own)]
    needed = sum(work(value) for _, value in fields) if finds_all else 0
    if needed > room:
        raise TooMuch("names")
    for name, value in own:
        if name == "content-disposition":
            part.filename = parse_value(value)[1].get("filename", "")
    part.names = {part.filename, part.params.get("name", "")} - {""}
    part.filename = part.filename or part.params.get("name", "")
    if not finds_all:
        return 0
    for name, value in dict.fromkeys(fields):
        if name == "content-location":
            part.names |= located(value, is_shown=part.content_type.startswith(_SHOWN))
        elif name == "content-description":
            part.titles |= described(value)
        else:
            part.names |= candidates(value)
    return needed


def _may_name(name: str, value: str) -> bool:
    if name in ("content-type", "content-disposition"):
        return may_name(value)
    return name in ("content-location", "content-description")


def _together(fields: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Fields that occur twice, as one: some programs put the pieces of a name together that are in both."""
    for name in ("content-type", "content-disposition"):
        values = [value for key, value in fields if key == name]
        if len(values) > 1 and any("*" in value for value in values):
            yield name, "; ".join(values)


_SHOWN = ("text/", "image/", "multipart/")


def _split_head(data: Buffer, start: int, end: int, limit: int) -> tuple[bytes, int, set[str]]:
    """The header section, the offset at which the body starts, and the reasons why programs may not agree on it."""
    first = data[start : min(start + 2, end)]
    if first[:1] == b"\n" or first == b"\r\n":
        return b"", start + (1 if first[:1] == b"\n" else 2), set()
    window = min(end, start + limit + 4)
    crlf = data.find(b"\r\n\r\n", start, window)
    lf = data.find(b"\n\n", start, crlf if crlf >= 0 else window)
    if lf >= 0:
        return data[start:lf], lf + 2, set()
    if crlf >= 0:
        return data[start:crlf], crlf + 4, set()
    if end - start > limit:
        raise TooMuch("header")
    head = data[start:end]
    return head, end, set() if not head or head.endswith(b"\n") else {"header-end"}


_EMPTY_FOLD = re.compile(rb"\n[ \t]+\r?(?:\n|$)")
# A field (its name, space before the colon, and its value, folded) or a line that is not a field.
_FIELD = re.compile(r"([!-9;-~]+)([ \t]*):([^\n]*(?:\n[ \t][^\n]*)*)\n?|([^\n]*)\n?")


def _fields(head: bytes, doubts: set[str]) -> list[tuple[str, str]]:
    """The fields; a line that is not a field is left out and adds to the doubts."""
    found: list[tuple[str, str]] = []
    if head[:1] in (b" ", b"\t") or _EMPTY_FOLD.search(head):
        doubts.add("header-line")
    for name, space, value, other in _FIELD.findall(head.decode("utf-8", "replace")):
        if space or other.strip(" \t\r\v\f") or value.startswith(":"):
            doubts.add("header-line")
        if not name:
            continue
        if len(found) >= MAX_FIELDS:
            raise TooMuch("fields")
        if "\n" in value:
            value = value.replace("\r\n", "").replace("\n", "")
        name = name.lower()
        if len(value) > LONG_VALUE and name.startswith("content-"):
            doubts.add("long-field")
        found.append((name, value.strip(" \t\r")))
    return found


def is_message(content_type: str) -> bool:
    """A message within a message, whatever its kind: its parts are parts of the mail."""
    return content_type.startswith("message/")


def _children(data: Buffer, part: Part, span: _Span, room: int, finds_files: bool) -> list[_Span]:
    depth = part.depth + 1
    if is_message(part.content_type) and part.encoding in ("7bit", "8bit", "binary"):
        return [_Span(part.body, part.end, depth, span.outer)]
    boundary = part.params.get("boundary", "").rstrip(" \t")
    if not part.content_type.startswith("multipart/"):
        return []
    part.doubts |= ambiguity.in_boundary(boundary, span.outer)
    if not boundary:
        return []
    outer = (*span.outer, boundary)
    default_type = "message/rfc822" if part.content_type == "multipart/digest" else "text/plain"
    spans = _between(data, part, boundary, room, finds_files)
    return [_Span(start, end, depth, outer, default_type) for start, end in spans]


def _between(data: Buffer, part: Part, boundary: str, room: int, finds_files: bool) -> list[tuple[int, int]]:
    """The spans between delimiter lines; an unterminated last span extends to the end of the part."""
    mark = b"\n--" + boundary.encode("utf-8", "replace")
    found: list[tuple[int, int]] = []
    begin, lines = -1, 0
    at = part.body - 1 if data[part.body : part.body + len(mark) - 1] == mark[1:] else -2
    if at == -2:
        at = data.find(mark, part.body, part.end)
    before = at if at >= 0 else part.end
    if data.find(b"\n--", part.body, before) >= 0 or data[part.body : min(part.body + 2, before)] == b"--":
        part.doubts.add("preamble")
    if finds_files:
        part.doubts |= ambiguity.in_text(data, part.body, before)
    while at >= 0:
        lines += 1
        if lines > 2 * room + 100:  # lines that only begin like a delimiter take time too
            raise TooMuch("parts")
        after = at + len(mark)
        closing = data[after : after + 2] == b"--"
        line_end = data.find(b"\n", after, part.end)
        rest = data[after + 2 * closing : min(line_end if line_end >= 0 else part.end, after + 200)]
        if rest not in (b"", b"\r"):
            part.doubts.add("delimiter")
        if closing or not rest.strip():  # else it is a longer boundary that begins like ours
            if begin >= 0:
                found.append((begin, _before_newline(data, at + 1, begin)))
            if closing:
                if data.find(b"\n--", after, part.end) >= 0:
                    part.doubts.add("epilogue")
                if finds_files:
                    part.doubts |= ambiguity.in_text(data, after, part.end)
                return found
            begin = line_end + 1 if line_end >= 0 else part.end
        at = data.find(mark, max(after - 1, begin - 1), part.end)
    part.doubts.add("no-end")
    return [*found, (begin, part.end)] if begin >= 0 else found


def _before_newline(data: Buffer, at: int, floor: int) -> int:
    """The CRLF before a delimiter belongs to the delimiter."""
    if at - 1 >= floor and data[at - 1 : at] == b"\n":
        at -= 1
        if at - 1 >= floor and data[at - 1 : at] == b"\r":
            at -= 1
    return max(at, floor)


_PARAM = re.compile(r';[ \t]*([^ \t=;"]+)[ \t]*=[ \t]*("(?:[^"\\]|\\.)*"|[^;]*)', re.DOTALL)


def parse_value(value: str) -> tuple[str, dict[str, str]]:
    """Split `text/plain; charset="x"` into type and parameters; RFC 2231 and RFC 2047 encodings are decoded.

    Except a boundary in RFC 2047: what looks like an encoded word there is meant literally.
    """
    main = value.partition(";")[0].strip(" \t").lower()
    plain: dict[str, str] = {}
    pieces: dict[str, dict[int, tuple[str, bool]]] = {}
    for name, raw in _PARAM.findall(value[len(value.partition(";")[0]) :]):
        text = _unquoted(raw.strip(" \t"))
        key, star, rest = name.lower().partition("*")
        if not star:
            plain.setdefault(key, text if key == "boundary" else decode_words(text))
        elif re.fullmatch(r"[0-9]{1,3}\*?", rest):
            pieces.setdefault(key, {})[int(rest.rstrip("*"))] = (text, rest.endswith("*"))
        else:
            plain[key] = _extended(text)
    for key, numbered in pieces.items():
        ordered = [numbered[number] for number in sorted(numbered)]
        joined = "".join(text for text, _ in ordered)
        plain.setdefault(key, _extended(joined) if ordered[0][1] else joined)
    return main, plain


def _unquoted(raw: str) -> str:
    if not raw.startswith('"'):
        return raw
    if len(raw) > 1 and raw.endswith('"'):
        return re.sub(r"\\(.)", r"\1", raw[1:-1])
    return raw[1:]  # no closing quote: mail programs use the rest as the value


def _extended(text: str) -> str:
    """Decode RFC 2231: charset'language'percent-encoded."""
    charset, quote, rest = text.partition("'")
    if not quote:
        return text
    return as_text(unquote_to_bytes(rest.partition("'")[2]), charset)
