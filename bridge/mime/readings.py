"""Every way to read an ambiguous mail: the objects that one mail program or another finds in it.

Header fields are not trusted at all, because it is their meaning that is in doubt. A delimiter is any
line that begins like one, a part begins after any line that could end a header section, and its
content is decoded in every way that `encodings` knows. The result is more than any single program
extracts, and much of it is noise; what matters is that nothing is missing. All work is charged to a
budget in proportion to the size of the mail, and `TooMuch` means that it did not suffice.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from bridge.mime.ambiguity import CONTENT_FIELD
from bridge.mime.encodings import quoted_readings
from bridge.mime.encodings import readings as decoded_readings
from bridge.mime.structure import TooMuch

MAX_REGIONS = 20_000
MAX_NAMES = 300  # different delimiter lines
MAX_HEADS = 200
MAX_BLANK = 8  # empty lines in one part that could end its header section
HEAD = 64 * 1024  # bytes in which a header section is expected to end

_DELIMITER = re.compile(rb"(\r?\n|\r|^)[ \t\v\f\x00]*--([^\r\n]*)")
_FOLLOWS = re.compile(  # after a delimiter line: an empty line, a field, or the end
    rb"[\r\n]{1,3}(?:[ \t\v\f\x00:]*[\r\n]|[!-9;-~]{1,80}[ \t]*:|[^\r\n]{0,200}content-|\Z)", re.IGNORECASE
)
_BLANK = re.compile(rb"[\r\n][ \t\v\f\x00]*(?=[\r\n])[\r\n]+")
_ODD_LINE = re.compile(rb"(?:^|[\r\n])(?![^\r\n:]{1,99}:|[ \t\r\n])[^\r\n]+")
_HEADER_LINE = re.compile(rb"(?:^|[\r\n])[ \t]*[!-9;-~]{1,80}[ \t]*:")
_MAIL_START = re.compile(rb"\s{0,99}(?:>?From |[!-9;-~]{2,76}[ \t]*:)")
_SKIPPED = re.compile(rb"[ \t\v\f\x00\r\n]*")
_HEAD_START = re.compile(rb"(?<![^\r\n])%b" % CONTENT_FIELD)
_CLAIM = re.compile(rb"64|=\?|[Uu][Uu]|[Yy]-?[Ee][Nn]|[Hh][Ee][Xx]")
_LOOKS_ENCODED = re.compile(
    rb"[\r\n ][A-Za-z0-9+/]{19,}=*[\r\n]|[\r\n]begin[ -]|=ybegin |BinHex|[\r\n]M[ -`]{60}[\r\n]"
)


class Budget:
    """The work that may still be done: bytes read and decoded."""

    def __init__(self, size: int) -> None:
        self._left = 16 * 1024 * 1024 + 60 * size

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooMuch("readings")


def may_be_mail(content: bytes) -> bool:
    """Whether decoded content is worth reading as a mail: an encoded message or multipart."""
    return b"content-" in content[:HEAD].lower()


def begins_like_mail(content: bytes) -> bool:
    """Whether a file is a mail, or several, whatever its type and name say."""
    return _MAIL_START.match(content) is not None and may_be_mail(content)


def objects(data: bytes, budget: Budget) -> Iterator[tuple[bytes, bool]]:
    """The content of every part of every reading, each once, and whether it was decoded from Base64 or the like."""
    seen: set[bytes] = set()
    for number, text in enumerate(dict.fromkeys((data, *quoted_readings(data)))):
        for head, start, end in regions(text):
            raw = text[start:end]
            budget.take(len(raw))
            if raw not in seen:
                seen.add(raw)
                yield raw, False
            # Base64 within quoted-printable: only in the usual reading of the latter.
            encoded = number < 2 and _may_be_encoded(text, head, start, end)
            for content in decoded_readings(raw) if encoded else ():
                budget.take(2 * len(raw))
                if content not in seen:
                    seen.add(content)
                    yield content, True


def _may_be_encoded(text: bytes, head: int, start: int, end: int) -> bool:
    """Whether anything tells a program that this is Base64 or the like: its header section, or the content itself."""
    return _CLAIM.search(text, head, start) is not None or _LOOKS_ENCODED.search(text, start, end) is not None


def regions(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Where a part may begin, where its content may begin, and where it ends, in any reading.

    Of all the ends that a content may have, the first and the last suffice: with any other, a program
    reads the beginning of what is read to the last.
    """
    heads: dict[int, int] = {}
    ends: dict[int, tuple[int, int]] = {}
    for start, end in _spans(data):
        for body in _bodies(data, start, end):
            place = _SKIPPED.match(data, body).end()  # type: ignore[union-attr]  # (it matches nothing, too)
            if place < end:
                heads[place] = min(heads.get(place, start), start)
                first, last = ends.get(place, (end, end))
                ends[place] = min(first, end), max(last, end)
        if len(ends) > MAX_REGIONS:
            raise TooMuch("readings")
    for body, (first, last) in ends.items():
        for end in {first, last}:
            yield heads[body], body, end


def _bodies(data: bytes, start: int, end: int) -> Iterator[int]:
    """Offsets at which the body of the part may begin: its start, and lines that could end its header section."""
    yield start
    window = min(end, start + HEAD)
    odd = _ODD_LINE.search(data, start, window)
    if odd is not None:
        yield odd.start()
        yield odd.end()
    before, others = start, 0
    for match in islice(_BLANK.finditer(data, start, window), MAX_BLANK):
        yield match.end()
        others = 0 if _HEADER_LINE.search(data, before, match.start()) else others + 1
        if others > 1:  # this is the body, and so is all that follows
            break
        before = match.start()


def _spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Everything between two delimiter lines, for every boundary that the mail may have.

    Also everything from a line that may begin a header section, because what stands before it may be a delimiter.
    """
    yield 0, len(data)
    end_of_head = 0
    for match in islice(_HEAD_START.finditer(data), MAX_HEADS):
        if match.start() >= end_of_head:  # else in the header section of the match before
            yield match.start(), len(data)
            blank = _BLANK.search(data, match.end())
            end_of_head = blank.end() if blank else len(data)
    lines = [
        (match.start(), match.end(), match.group(2), match.group(1) == b"\r") for match in _DELIMITER.finditer(data)
    ]
    candidates = {name for _, end, name, _ in lines if _FOLLOWS.match(data, end)}
    if len(candidates) > MAX_NAMES:
        raise TooMuch("readings")
    for chosen in _selections(candidates, {name for _, _, name, _ in lines}):
        for with_cr in {False, any(cr for _, _, name, cr in lines if name in chosen)}:
            places = [(at, end) for at, end, name, cr in lines if name in chosen and (with_cr or not cr)]
            for (_, begin), (stop, _) in pairwise([(0, 0), *places, (len(data), 0)]):
                yield begin, stop


def _selections(candidates: set[bytes], names: set[bytes]) -> Iterable[frozenset[bytes]]:
    """Sets of lines that are delimiters in one reading: those that begin like the boundary, or are equal to it."""
    ordered = sorted(names)
    bare = {_without_end(name) for name in candidates}
    prefixes = bare | {_common_start(first, second) for first, second in pairwise(sorted(bare))} | {b""}
    found = set()
    for prefix in prefixes:
        found.add(frozenset(_with_prefix(ordered, prefix)))
        found.add(frozenset(name for name in _with_prefix(ordered, prefix) if _without_end(name) == prefix))
    found |= {frozenset(_with_prefix(ordered, name)) for name in candidates}
    return found - {frozenset()}


def _common_start(first: bytes, second: bytes) -> bytes:
    for at, (one_byte, other_byte) in enumerate(zip(first, second, strict=False)):
        if one_byte != other_byte:
            return first[:at]
    return first


def _with_prefix(ordered: list[bytes], prefix: bytes) -> list[bytes]:
    first = bisect_left(ordered, prefix)
    stop = first
    while stop < len(ordered) and ordered[stop].startswith(prefix):
        stop += 1
    return ordered[first:stop]


def _without_end(name: bytes) -> bytes:
    return name.rstrip().removesuffix(b"--").rstrip()
