"""What makes a mail ambiguous: mail programs may read its structure differently.

A list of tricks would never be complete, so this is the opposite: a description of the structure that
all programs read alike. Whatever does not fit it gets a reason, a word or two that docs/operate/service.md
explains. Most reasons are ordinary sloppiness. Those in `CRAFTED` are not: programs that send mail do not
write it that way, so the service holds such mail by default. Those in `RARE` are seldom seen in ordinary
mail. A listener may refuse both, and mail that has too many parts or fields to be read to its end.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from bridge.mime.base64_text import has_long_base64
from bridge.mime.encodings import BINHEX_START, PLAIN, STANDARD, has_uu_data, places, words_in

Buffer = bytes | mmap.mmap

CRAFTED = frozenset({"boundaries", "duplicate-encoding", "duplicate-type", "name-pieces"})
RARE = frozenset({"boundary", "delimiter", "header-end", "long-field", "nested-boundary", "nul", "preamble"})
UNREAD = "unread"  # the structure was not read to its end: nobody knows what the rest would have shown
REFUSED = CRAFTED | RARE | {UNREAD}  # what a listener may refuse

# After `_SPACES`, so that no repetition of white space can be split in two ways.
_UNQUOTED = r"[A-Za-z0-9!#$%&'*+.^_`{|}~/:-]+"
_PARAMETER = rf"""[A-Za-z][A-Za-z0-9_-]*(?:\*[0-9]{{0,3}}\*?)? ?= ?(?:"[^"\\\x00-\x1f\x7f-\x9f]*"|{_UNQUOTED})"""
_PARAMETERS = rf"(?: ?; ?{_PARAMETER})* ?;? ?"
_TYPE = re.compile(rf" ?[A-Za-z0-9.+_-]+/[A-Za-z0-9.+_-]+{_PARAMETERS}")
_DISPOSITION = re.compile(rf" ?[A-Za-z-]+{_PARAMETERS}")
_NAME = re.compile(r"; ?([A-Za-z][A-Za-z0-9_-]*(?:\*[0-9]*\*?)?) ?=")
_PIECE = re.compile(r"([^*]+)\*([0-9]{1,9})\*?")
_BOUNDARY_VALUE = re.compile(r"""boundary ?= ?(?:"[^"]*"|[^ ";]*)""", re.IGNORECASE)
_ENCODED_BOUNDARY = re.compile(r"boundary ?\*", re.IGNORECASE)
_BROKEN_OFF = re.compile(r"""boundary ?= ?[^ ";:/=]*+[:/]""", re.IGNORECASE)  # for some, an unquoted value ends there
_SPACES = re.compile(r"[ \t]+")
_NAMING = re.compile(r"name[^=]{0,20}=", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"')
_BOUNDARY = re.compile(r"[A-Za-z0-9_=.:+/,-]{1,70}")

CONTENT_FIELD = rb"[ \t]*+[Cc][Oo][Nn][Tt][Ee][Nn][Tt]-[TtDd]"
# A format that marks its own beginning, or lines of Base64. Patterns that begin with one literal byte are searched
# about ten times as fast as others (Python 3.11), and most lines of HTML begin with none of the next ones.
_HIDDEN = re.compile(
    rb"\n(?=[A-Za-z0-9+/ \t=(:])(?:=ybegin |\(This file must be "
    rb"|[ \t]*+%b|[A-Za-z0-9+/]{32,}+={0,2}[ \t]*\r?\n[A-Za-z0-9+/]{16,}={0,2}[ \t]*\r?\n)" % BINHEX_START
)
_TYPE_WORD, _DISPOSITION_WORD, _ENCODING_WORD = b"content-t", b"content-d", b"content-transfer-encoding"
_BEGIN_WORD = b"begin"
_FIELD_WORDS = (_TYPE_WORD, _DISPOSITION_WORD, _ENCODING_WORD)
# Where quoted-printable divides `<meta http-equiv=3DContent-Type content=3D...`: no program takes that for a field.
_DIVIDED_META = re.compile(rb"""=\r?\nContent-Type(?:["']|=2[27]| content=)""", re.IGNORECASE)
_MISSPELT = re.compile(r"content-(?:type|transfer|disposition)")
_WINDOW = 1024 * 1024
_CACHED = 500  # characters; longer values would fill the memory, and no two mails share them


def in_lines(data: Buffer) -> set[str]:
    """Reasons in the bytes of the whole mail: line ends that some programs see and others do not."""
    found: set[str] = set()
    kinds = {_line_ends(window) for window in _windows(data)} - {None}
    if len(kinds) > 1 or "mixed" in kinds:
        found.add("line-ends")
    if data.find(b"\0") >= 0:
        found.add("nul")
    return found


def _line_ends(window: bytes) -> str | None:
    others = window.replace(b"\r\n", b"")  # then bytes are found at once; counting CR, LF and CRLF takes longer
    if b"\r" in others or (b"\n" in others and len(others) < len(window)):
        return "mixed"
    return "lf" if b"\n" in others else "crlf" if len(others) < len(window) else None


def _windows(data: Buffer) -> Iterator[bytes]:
    """All bytes, in pieces that do not separate CR from LF."""
    start = 0
    while start < len(data):
        end = start + _WINDOW
        end += data[end - 1 : end] == b"\r"
        yield data[start:end]
        start = end


def in_text(data: Buffer, start: int, end: int) -> set[str]:
    """Some programs find parts or files in a text that declares none."""
    return {"undeclared-parts"} if _is_hidden(data, max(0, start - 1), end) else set()


def _is_hidden(data: Buffer, start: int, end: int) -> bool:
    if _HIDDEN.search(data, start, end) or has_long_base64(data, start, end):
        return True
    there = words_in((*_FIELD_WORDS, _BEGIN_WORD), data, start, end)
    if _BEGIN_WORD in there and has_uu_data(data, start, end):
        return True
    return _has_fields(data, start, end, there)


def has_fields(content: bytes) -> bool:
    """Whether it may have the header fields of a part, to programs with any line ends, and to those that drop NULs."""
    text = b"\n" + content.replace(b"\0", b"").replace(b"\r", b"\n")
    return _has_fields(text, 0, len(text), words_in(_FIELD_WORDS, text, 0, len(text)))


def _has_fields(data: Buffer, start: int, end: int, there: set[bytes]) -> bool:
    """Whether lines look like the header fields of a part. `there`: which of `_FIELD_WORDS` are in the text."""
    if any(_has_field(word, data, start, end) for word in (_TYPE_WORD, _DISPOSITION_WORD) if word in there):
        return True
    return _ENCODING_WORD in there  # some find that field anywhere in a line


def _has_field(word: bytes, data: Buffer, start: int, end: int) -> bool:
    """Whether a line begins with the word, perhaps after white space."""
    before = start
    for at in places(word, data, start, end):
        line = data.rfind(b"\n", before, at)
        if line >= 0 and not data[line + 1 : at].strip(b" \t"):
            return True
        before = at
    return False


def in_head(head: bytes, names: Sequence[str]) -> set[str]:
    """Some programs find the encoding within another field. The lists of fields in signatures do not count."""
    named = head.lower().count(b"content-transfer-encoding")
    is_odd = named > names.count("content-transfer-encoding") and _WITHIN_A_FIELD.search(head) is not None
    return {"header-line"} if is_odd else set()


_WITHIN_A_FIELD = re.compile(
    rb"""(?<=[^\n])content-transfer-encoding[ \t]*+:[ \t"'(]*+(?:x-)?(?:base|quoted|uu)""", re.IGNORECASE
)


def in_quoted(data: Buffer, start: int, end: int) -> set[str]:
    """As `in_text`, in quoted-printable that is not decoded: programs that see other delimiters find parts there."""
    text = _quoted(data[start:end])
    return in_text(text, 0, len(text))


def has_only_files(data: Buffer, start: int, end: int, *, is_quoted: bool) -> bool:
    """Whether `in_text` or `in_quoted` has found only encoded files there, and no header fields of a part.

    No field says that these lines are encoded, so only programs that need no such field decode them, and the parts of
    the mail are not in doubt. Most often, they are not a file but a long link: the "=" of a soft line break looks like
    padding. Programs differ on uuencoded lines: which belong to the file, where it ends, and whether the next part
    continues it.
    """
    raw = data[start:end]
    text = _quoted(raw) if is_quoted else b"\n" + raw
    there = words_in((*_FIELD_WORDS, _BEGIN_WORD), text, 0, len(text))
    if _BEGIN_WORD in there and has_uu_data(text, 0, len(text)):
        return False
    return not _has_fields(text, 0, len(text), there) and not in_lines(raw)


def _quoted(raw: bytes) -> bytes:
    return b"\n" + _DIVIDED_META.sub(b"", raw)


def in_names(names: Iterable[str]) -> set[str]:
    """Some programs look for the fields that describe a part anywhere in a line: `X-Content-Disposition` is one."""
    is_disguised = any("content-" in name[1:] and _MISSPELT.search(name, 1) for name in names)
    return {"header-line"} if is_disguised else set()


def in_fields(fields: Sequence[tuple[str, str]]) -> set[str]:
    """Reasons in the fields that describe one part: `Content-Type` and the like, with their raw values."""
    found: set[str] = set()
    types: list[str] = []
    encodings: list[str] = []
    dispositions: list[str] = []
    kinds = {"content-type": types, "content-transfer-encoding": encodings, "content-disposition": dispositions}
    for name, value in fields:
        if name in kinds:
            kinds[name].append(value)
        elif _MISSPELT.match(name):
            found.add("header-line")
    for name, values in kinds.items():
        if len(values) > 1 and len(set(values)) > 1:
            found.add("duplicate-" + name.rpartition("-")[2])
    for value in types[:3]:  # more than one has been noted above, and that is enough to read the mail in all ways
        found |= _in_type(value) if len(value) <= _CACHED else _in_type.__wrapped__(value)
    for value in dict.fromkeys(dispositions):  # two that differ are ordinary, so each is looked at
        found |= _in_disposition(value) if len(value) <= _CACHED else _in_disposition.__wrapped__(value)
    if encodings and encodings[0].strip(" \t").lower() not in STANDARD:
        found.add("encoding")
    return found


def in_container(content_type: str, encoding: str) -> set[str]:
    """A multipart or a message should not be encoded itself, and programs differ in whether they decode one that is."""
    if encoding not in PLAIN and content_type.startswith(("multipart/", "message/")):
        return {"encoded-container"}
    return set()


@lru_cache(maxsize=512)  # most mail has few values; saves a fifth of the inspection of a small mail (Python 3.11)
def _in_type(value: str) -> frozenset[str]:
    found: set[str] = set()
    value = _SPACES.sub(" ", value)
    if _TYPE.fullmatch(value) is None or _has_name_in_quotes(value):
        found.add("content-type")
    names = [name.lower() for name in _NAME.findall(_QUOTED.sub('""', value))]
    if len(set(names)) != len(names):
        found.add("boundaries" if names.count("boundary") > 1 else "duplicate-parameter")
    found |= _in_pieces(names)
    is_multipart = value.strip().lower().startswith("multipart/")
    named = _BOUNDARY_VALUE.sub("boundary", value).lower().count("boundary")
    if named != is_multipart:
        found.add("boundary")
    if _ENCODED_BOUNDARY.search(value) or _BROKEN_OFF.search(value):
        found.add("boundary-characters")
    return frozenset(found)


@lru_cache(maxsize=512)
def _in_disposition(value: str) -> frozenset[str]:
    found: set[str] = set()
    value = _SPACES.sub(" ", value)
    if _DISPOSITION.fullmatch(value) is None or _has_name_in_quotes(value):
        found.add("disposition")
    names = [name.lower() for name in _NAME.findall(_QUOTED.sub('""', value))]
    if len(set(names)) != len(names):
        found.add("duplicate-parameter")
    return frozenset(found | _in_pieces(names))


def _in_pieces(names: Sequence[str]) -> set[str]:
    """A piece of a value (`name*1*`) that occurs twice: every program puts the pieces together in its own order."""
    pieces = [(match[1], int(match[2])) for match in map(_PIECE.fullmatch, names) if match]
    return {"name-pieces"} if len(set(pieces)) != len(pieces) else set()


def _has_name_in_quotes(value: str) -> bool:
    return any(_NAMING.search(quoted) for quoted in _QUOTED.findall(value))


def in_boundary(boundary: str, outer: Sequence[str]) -> set[str]:
    """Reasons in the boundary of a multipart, which lies within parts that have the `outer` boundaries."""
    found: set[str] = set()
    if _BOUNDARY.fullmatch(boundary) is None or boundary.endswith("--"):
        found.add("boundary-characters")
    if any(boundary.startswith(other) or other.startswith(boundary) for other in outer):
        found.add("nested-boundary")
    return found
