"""Every way to read an ambiguous mail: the objects that one mail program or another finds in it.

Header fields are not trusted, because it is their meaning that is in doubt. A part may begin after any line that begins
like a delimiter, and at any line that begins like a field which describes a part. Its content may begin after any line
that could end a header section, and it ends at the next delimiter, or nowhere. It is decoded in every way that
`encodings` knows. The result is more than any single program extracts, and much of it is noise; what matters is that
nothing is missing. All work is charged to a budget in proportion to the size of the mail, and `TooMuch` means that it
was not enough. Bytes are a poor measure of work: a short line takes as long as a long one, so lines, equals signs and
places are charged as well.
"""

from __future__ import annotations

import binascii
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import chain, islice
from typing import NamedTuple

from bridge.mime import base64_text, encodings, line_ends
from bridge.mime.ambiguity import CONTENT_FIELD
from bridge.mime.duplicates import Seen
from bridge.mime.structure import TooMuch

MAX_STARTS = 5000  # places where a part may begin: with more, TooMuch
MAX_BLANK = 8  # empty lines in one part that could end its header section: no program reads a header past more
MAX_ODD = 8  # other lines that could
MAX_HEAD = 256 * 1024  # bytes within which a header section must end
_BEGINNING = 300  # bytes of encoded content, with the first field if it is a mail
_MAX_INDENT = 1000  # bytes of white space before a field; after more, it counts without a look

# Lines end with LF here: `_texts` sees to that. Patterns that begin with a literal byte are much faster (Python 3.11).
_SPACE = rb"[ \t\v\f\x00\r]*"
_DELIMITER = re.compile(rb"\n%b--[^\n]*" % _SPACE)
_FOLLOWS = re.compile(  # after a delimiter line: an empty line, a field, encoded content, or the end; possessive (`*+`)
    rb"\n(?:%b+(?::%b+)?\n|[!-9;-~]{1,200}[ \t]*:|[^\n]{0,200}content-|[A-Za-z0-9+/]{19}|=[0-9A-F]{2}|begin |\Z)|\Z"
    % (_SPACE, _SPACE),
    re.IGNORECASE,
)
_HEAD_START = re.compile(rb"\n" + CONTENT_FIELD)
_BLANK = re.compile(rb"\n%b\n" % _SPACE)
# Lines that one program or another does not take for part of a header section.
_NO_FIELD = tuple(
    re.compile(rb"\n(?![ \t\r\n]|%b)[^\n]+" % field)
    for field in (rb"[^\n:]{1,998}:", rb"[!-9;-~]+[ \t]*:", rb"[^\n:]{1,99}:", rb">?From |[^\n:]{1,998}:")
)
_HEADER_LINE = re.compile(rb"\n[ \t]*[!-9;-~]{1,200}[ \t]*:")
_MAIL_START = re.compile(rb"\s{0,99}(?:>?From |[!-9;-~]{1,200}[ \t]*:)")
_WITH_COLON = re.compile(rb"content-(?:[a-z0-9-]{0,99}[\s\0]{0,99}:|transfer-encoding)")  # in lower case
_BLANKS = b" \t\v\f\x00\r\n"
_SKIPPED = re.compile(rb"[%b]*" % _BLANKS)
# These are looked for in lower case: that takes a tenth of the time of patterns that ignore case (Python 3.11).
_ENCODED, _BASE64, _QUOTED = b"ncod", (b"64", b"=?"), (b"quoted", b"printab")
_OTHER_ENCODINGS = (b"uu", b"yen", b"y-en", b"hex", b"gzip")
# The rest of such a field, or of one with the type as well, with all lines that may continue it.
_ENCODING_FIELD, _TYPE_FIELD = (
    re.compile(rb"%b[^\n]*(?:\n[ \t\v\f\x00\r][^\n]*)*" % word) for word in (_ENCODED, rb"(?:ncod|ontent[-_ ]{0,3}t)")
)
_BOUNDARY = re.compile(rb"""boundary[ \t]*=[ \t]*(?:"[^"\n]*"|[^\s";]*)""")  # random letters
# In lower case: the names of fields that a signature covers. They say nothing about the encoding, unless one follows.
# A line that does not continue another is a field, whatever precedes it.
_FOLD = rb"[ \t]{0,9}(?:\r?\n[ \t]{1,9})?"
_SIGNED_FIELDS = re.compile(rb"h=[ \t]{0,9}[a-z0-9-]{1,99}(?:%b:%b[a-z0-9-]{1,99}){2,}" % (_FOLD, _FOLD))
_ANY_ENCODING = (*_BASE64, *_QUOTED, *_OTHER_ENCODINGS, b"base")
# An encoding that is unknown or misspelled: some programs take the most similar one, or try.
_UNKNOWN, _UNKNOWN_QUOTED = (
    re.compile(rb"ncod[^\n:]{0,30}:(?![ \t]*(?:7bit|8bit|binary|%b)[ \t\r]*(?:\n(?![ \t])|\Z))" % other)
    for other in (rb"quoted-printable", rb"base64")
)
_LOOKS_ENCODED = re.compile(rb"\n(?:[Bb][Ee][Gg][Ii][Nn][ -]|=ybegin |M[ -`]{60}\r?\n)")
# The type of a message whose content is elsewhere, with spaces, quotes and comments where some programs allow them.
# Not `(...)*+`: in Python 3.11.2, that also takes what the last alternative has read before it failed.
_BETWEEN = rb"""[\s\0"']*+(?:\([^()]{0,200}+\)[\s\0"']*+)*"""
_ELSEWHERE = re.compile(
    rb"content-type%b:%bmessage%b/%b(partial|external-body)" % (_BETWEEN, _BETWEEN, _BETWEEN, _BETWEEN), re.IGNORECASE
)
_BARE_CR = re.compile(rb"\r(?!\n)")
_CRS_LF = re.compile(rb"\r+\n?|\n\r")


# Work, in nanoseconds of CPU (Python 3.11 on a core of 3 GHz). They are charged, not measured, so that the same mail
# gets the same answer everywhere. Each covers the worst case that was found for it, so most mail takes far less time.
BASE_WORK = 700_000_000
WORK_PER_BYTE = 3500  # of the mail
_BYTE = 10
_LINE = 1500
_PADDING = 4000  # a "=": the beginning of an escape, the end of Base64
_ESCAPE = 2000  # a "=" in a text that is decoded to look for fields in it
_BEGIN = 10_000  # of uuencode
_OBJECT = 15_000
_START, _BODY = 15_000, 5000  # a place where a part may begin, and one where its content may
_SEARCH = 8  # a byte that is searched for lines


class Budget:
    """The work that may still be done for one mail."""

    def __init__(self, size: int) -> None:
        self._left = BASE_WORK + WORK_PER_BYTE * size

    def take(self, work: int, limit: str = "readings") -> None:
        self._left -= work
        if self._left < 0:
            raise TooMuch(limit)

    def take_object(self, content: bytes) -> None:
        """Inspect content that at least one program finds."""
        self.take(_OBJECT + 2 * _BYTE * len(content))

    def take_text(self, text: bytes) -> None:
        """Decode a text, or look for files in it."""
        self.take(_BYTE * len(text) + _LINE * text.count(b"\n") + _PADDING * text.count(b"="))
        self.take_begins(text)

    def take_begins(self, text: bytes) -> None:
        """Look only for files that mark their beginning."""
        self.take(_BEGIN * text.lower().count(b"begin"))

    def take_escapes(self, text: bytes) -> None:
        """Decode quoted-printable in a text, only to look for fields in it."""
        self.take(4 * _BYTE * len(text) + _ESCAPE * text.count(b"="))


class _Way(Enum):
    """How quoted-printable was decoded in a text."""

    AS_IT_IS = auto()
    DECODED = auto()
    UNUSUAL = auto()  # as only few programs do; no Base64 is expected in it


class Region(NamedTuple):
    """Where a part may begin (at the end of the line before), where its content may, and the next delimiter."""

    head: int
    body: int
    end: int


def may_be_mail(content: bytes) -> bool:
    """Whether decoded content is worth reading as a mail: an encoded message or multipart.

    Most content that has the word is a page, in which it belongs to a `<meta>` or to the name of a style.
    """
    lower = content.lower()
    at = lower.find(b"content-")
    while at >= 0:
        if _WITH_COLON.match(lower, at) or (lower[at + 8 : at + 9] in (b"t", b"d") and _is_first_in_line(lower, at)):
            return True
        at = lower.find(b"content-", at + 8)
    return False


def _is_first_in_line(text: bytes, at: int) -> bool:
    before = text[max(0, at - _MAX_INDENT) : at].rstrip(b" \t\v\f\0")
    return not before or before.endswith((b"\n", b"\r"))


def begins_like_mail(content: bytes) -> bool:
    """Whether a file is a mail, or several, whatever its type and name say."""
    return _MAIL_START.match(content) is not None and b"content-" in content.lower()


def elsewhere(text: bytes) -> set[str]:
    """The types of messages whose content is elsewhere, wherever a field says so."""
    lower = text.lower()  # a quick test: most mail has neither word
    if b"partial" not in lower and b"external-body" not in lower:
        return set()
    return {"message/" + match[1].decode().lower() for match in _ELSEWHERE.finditer(text)}


def may_be_quoted(data: bytes) -> bool:
    """Whether a program may decode quoted-printable in it: something says so, or names an unknown encoding."""
    lower = data.lower()
    return any(word in lower for word in _QUOTED) or _UNKNOWN_QUOTED.search(_without_lists(lower)) is not None


def _without_lists(lower: bytes) -> bytes:
    """Without the lists of fields in signatures."""
    return _SIGNED_FIELDS.sub(_kept, lower) if _ENCODED in lower or b"ontent-t" in lower else lower


def _kept(signed: re.Match[bytes]) -> bytes:
    return signed[0] if any(word in signed[0] for word in _ANY_ENCODING) else b""


def objects(data: bytes, budget: Budget, quoted: Sequence[bytes] | None = None) -> Iterator[tuple[bytes, bool]]:
    """The content of every part of every reading, each once, and whether it was decoded from Base64 or the like.

    `quoted` is what `encodings.quoted_readings` makes of `data`, if the caller has it.
    """
    seen = Seen()
    for content, is_decoded in _all_objects(data, budget, quoted):
        budget.take_object(content)
        if content and seen.is_new(content):
            yield content, is_decoded


def files_in_text(text: bytes, budget: Budget) -> Iterator[bytes]:
    """What is decoded by programs that need no header field for it, each once.

    Formats that mark their own beginning, and lines of Base64: adjacent ones; and all long ones, with whatever is
    between them, up to the end of the text and up to each line that may be a delimiter. Long lines may contain a few
    other characters.
    """
    text = b"\n" + text
    budget.take_text(text)
    runs = base64_text.base64_runs(text)
    lines = list(map(base64_text.similar_lines, _DELIMITER.split(text)))
    pieces = (b"".join(lines), *lines)
    seen: set[bytes] = {b""}
    found = (encodings.embedded(text), _decoded_by(encodings.readings, runs, budget))
    for content in chain(*found, _decoded_by(base64_text.line_readings, pieces, budget)):
        budget.take_object(content)
        if content not in seen:
            seen.add(content)
            yield content


def _decoded_by(decoder: Callable[[bytes], Iterable[bytes]], runs: Iterable[bytes], budget: Budget) -> Iterator[bytes]:
    for lines in base64_text.since_long_lines(runs):
        budget.take_text(lines)
        yield from decoder(lines)


def _all_objects(data: bytes, budget: Budget, quoted: Sequence[bytes] | None) -> Iterator[tuple[bytes, bool]]:
    done: set[bytes] = set()
    cores: set[bytes] = set()  # Base64 that quoted-printable leaves as it is
    for number, (text, way) in enumerate(_texts(data, budget, quoted)):
        is_usual = way is not _Way.UNUSUAL
        for content in files_in_text(text[1:], budget) if is_usual else _embedded(text, budget):
            yield content, True
        unbroken = base64_text.UnbrokenBase64(text)
        for region in regions(text, budget):
            raw = text[region.body : region.end]
            yield raw, False
            if number and len(text) == len(data) + 1:  # other line ends, or no NUL; the content may still have them
                yield data[region.body - 1 : region.end - 1], False
            if way is _Way.AS_IT_IS:
                yield _quoted_mail(text, region, raw, budget), True
            if not is_usual or raw in done:
                continue
            core = raw.translate(None, b"= \t\r\n")
            if not (number and core in cores):
                done.add(raw)
                cores.add(core)
                is_text = _is_text(text[region.head : region.body].lower())
                for content in _decoded(text, region, raw, unbroken, budget):
                    yield content, True
                    if is_text and line_ends.matter(content):
                        for form in line_ends.in_decoded(content):
                            yield form, True


def _embedded(text: bytes, budget: Budget) -> Iterator[bytes]:
    budget.take_text(text)
    return encodings.embedded(text)


def _is_text(head: bytes) -> bool:
    """Whether the fields before the content, in lower case, say that it is an encoded text."""
    fields = _last_fields(head)
    return _ENCODED in fields and (b"content-type" not in fields or b"text/" in fields)


def _last_fields(head: bytes) -> bytes:
    """The last of the header sections."""
    head = head.rstrip()
    return head[max(head.rfind(b"\n\n"), head.rfind(b"\n\r\n")) + 1 :]


def texts(data: bytes) -> list[bytes]:
    """The mail as it is, with other ideas of where its lines end, and with spaces or nothing instead of NUL."""
    found = [data]
    if b"\0" in data:
        found += [data.replace(b"\0", b" "), data.replace(b"\0", b"")]
    if _BARE_CR.search(data):
        found += [_BARE_CR.sub(b"\n", data), _CRS_LF.sub(b"\n", data), _BARE_CR.sub(b"", data)]
    return list(dict.fromkeys(found))


def texts_with_fields(data: bytes, budget: Budget, quoted: Sequence[bytes]) -> Iterator[bytes]:
    """Each text in which parts are found, for those who look for the fields that describe them.

    `quoted` is what `encodings.quoted_readings` makes of `data`, or nothing if no program decodes it.
    """
    seen = Seen()
    for text in texts(data):
        unquoted: Iterable[bytes] = quoted
        if quoted and text is not data:
            budget.take_escapes(text)
            unquoted = encodings.quoted_readings(text)
        for reading, _ in _with_other_ends(text, unquoted):
            if seen.is_new(reading):
                yield reading


def _with_other_ends(text: bytes, unquoted: Iterable[bytes]) -> Iterator[tuple[bytes, _Way]]:
    """The text, what it is without quoted-printable, and in which way it was decoded."""
    yield text, _Way.AS_IT_IS
    for number, decoded in enumerate(unquoted):
        for reading in [decoded] if number else texts(decoded):  # decoding may reveal line ends
            yield reading, _Way.UNUSUAL if number else _Way.DECODED


def _texts(data: bytes, budget: Budget, quoted: Sequence[bytes] | None) -> Iterator[tuple[bytes, _Way]]:
    """All texts, also with quoted-printable removed, and in which way. Each begins with a line end."""
    seen = Seen()
    has_files = False
    has_quoted = may_be_quoted(data)
    budget.take(_LINE * data.count(b"\r") // 2)
    for text in texts(data):
        unquoted: Iterable[bytes] = ()
        if has_quoted:
            budget.take_text(text)
            unquoted = quoted if quoted is not None and text is data else encodings.quoted_readings(text)
        for reading, way in _with_other_ends(text, unquoted):
            if text is data and way is not _Way.UNUSUAL and not has_files:
                has_files = line_ends.matter_in_mail(data, reading if way is _Way.DECODED else None)
            if seen.is_new(reading):
                yield b"\n" + reading, way
    for reading in _with_other_line_ends(data, has_quoted, budget) if has_files else ():
        if seen.is_new(reading):
            yield b"\n" + reading, _Way.UNUSUAL


def _with_other_line_ends(data: bytes, has_quoted: bool, budget: Budget) -> Iterator[bytes]:
    for text in texts(data):
        budget.take_text(text)
        yield from line_ends.with_each(text)
        if has_quoted:
            budget.take_text(text)
            yield from line_ends.in_quoted(text)


def _quoted_mail(text: bytes, region: Region, raw: bytes, budget: Budget) -> bytes:
    """A message or a multipart in quoted-printable, decoded as usual: its parts may be in quoted-printable as well.

    Nothing if it is none, or if CR ends its lines: there is a text in which LF does.
    """
    if b"=" not in raw:
        return b""
    budget.take(_BYTE * (region.body - region.head))
    fields = _last_fields(text[region.head : region.body].lower())
    is_named = b"message/" in fields or b"multipart/" in fields
    if not is_named and (b"text/" in fields or not _MAIL_START.match(binascii.a2b_qp(raw[:_BEGINNING]))):
        return b""
    if not may_be_quoted(fields) or _BARE_CR.search(text, region.body, region.end + 1):
        return b""
    budget.take_escapes(raw)
    content = binascii.a2b_qp(raw)
    return content if may_be_mail(content) else b""


def _decoded(
    text: bytes, region: Region, raw: bytes, unbroken: base64_text.UnbrokenBase64, budget: Budget
) -> Iterator[bytes]:
    """The content decoded, if a field says that it is encoded, or a format that marks its own lines is in it.

    Base64 that no field declares is among `files_in_text`.
    """
    head = _without_lists(text[region.head : region.body].lower())
    is_base64 = _says_base64(head)
    if is_base64 or _says_other(head) or _LOOKS_ENCODED.search(text, region.body - 1, region.end):
        budget.take_text(raw)
        yield from encodings.readings(raw)
    if is_base64 and region.end < len(text):  # the delimiter may be none: read on to the end of the mail
        budget.take_text(text[region.body :])
        yield from unbroken.readings(region.body)


def _says_base64(head: bytes) -> bool:
    if _ENCODED not in head:
        return False
    fields = b"\n".join(_ENCODING_FIELD.findall(head))
    return any(word in fields for word in _BASE64) or _UNKNOWN.search(head) is not None


def _says_other(head: bytes) -> bool:
    """By the encoding, or by the type of the content."""
    if not any(word in head for word in _OTHER_ENCODINGS):
        return False
    fields = b"\n".join(_TYPE_FIELD.findall(head))
    return any(word in _BOUNDARY.sub(b"", fields) for word in _OTHER_ENCODINGS)


def regions(text: bytes, budget: Budget) -> Iterator[Region]:
    """Where the content of a part may be, in any reading. The text begins with a line end."""
    lines = [match.span() for match in _DELIMITER.finditer(text)]
    ends = [start for start, _ in lines]
    starts = [0, *(end for _, end in lines if _FOLLOWS.match(text, end)), *_heads(text)]
    if len(starts) > MAX_STARTS:
        raise TooMuch("readings")
    found: dict[int, Region] = {}
    budget.take(_START * len(starts))
    for start in dict.fromkeys(starts):  # most fields that may begin a part follow a delimiter
        for place in dict.fromkeys(_bodies(text, start, budget)):  # and most lines are the same to all programs
            budget.take(_BODY)
            body = _SKIPPED.match(text, place).end()  # type: ignore[union-attr]  # (it matches nothing, too)
            following = bisect_left(ends, body)
            end = ends[following] if following < len(ends) else len(text)
            if body < end and (body not in found or start < found[body].head):
                found[body] = Region(start, body, end)
    yield from found.values()


def _heads(text: bytes) -> Iterator[int]:
    """Lines that may begin the header section of a part, because what precedes them may be a delimiter."""
    end_of_head = 0
    for match in _HEAD_START.finditer(text):
        if match.start() >= end_of_head:  # else in the header section of the match before
            yield match.start()
            blank = _BLANK.search(text, match.end())
            end_of_head = blank.end() - 1 if blank else len(text)


def _bodies(text: bytes, start: int, budget: Budget) -> Iterator[int]:
    """Offsets at which the body of the part may begin: its start, and lines that could end its header section."""
    yield start
    window = min(len(text), start + MAX_HEAD)
    first = _SKIPPED.match(text, start).end()  # type: ignore[union-attr]  # (it matches nothing, too)
    first = max(start, text.rfind(b"\n", start, first))
    odd = [place for pattern in _NO_FIELD for place in _odd_lines(pattern, text, first, window, budget)]
    yield from odd
    before, others, count = start, 0, 0
    for match in islice(_BLANK.finditer(text, start, window), MAX_BLANK):
        count += 1
        budget.take(_SEARCH * (match.end() - before))
        yield match.end()
        others = 0 if _has_header_line(text, before, match.start()) else others + 1
        if others > 1:  # this is the body, and so is all that follows
            return
        before = match.end() - 1
    if count < MAX_BLANK:
        budget.take(_SEARCH * (window - before))
    if before == start and not odd and window < len(text):
        raise TooMuch("readings")  # a header section that does not end


def _has_header_line(text: bytes, start: int, end: int) -> bool:
    """Whether a line there begins like a field: the line with the first colon, or one after it."""
    colon = text.find(b":", start, end)
    if colon < 0:
        return False
    line = max(start, text.rfind(b"\n", start, colon))
    return _HEADER_LINE.search(text, line, end) is not None


def _odd_lines(pattern: re.Pattern[bytes], text: bytes, start: int, end: int, budget: Budget) -> list[int]:
    """Where lines that are not part of a header section begin and end, until two are adjacent: that is the body."""
    found: list[int] = []
    at, before = start, -1
    for match in islice(pattern.finditer(text, start, end), MAX_ODD):
        line, at = match.span()
        if line == before:
            break
        found += (line, at)
        before = at
    else:
        at = at if len(found) == 2 * MAX_ODD else end
    budget.take(_SEARCH * (at - start))  # thousands of parts may all search the same lines
    return found
