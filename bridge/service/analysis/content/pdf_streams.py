"""The streams of a PDF document: where they are, and what is in them.

Viewers repair what is wrong with a document, each in its own way. So nothing here relies on one fact alone: each word
`stream` may begin one, what describes it may be anywhere before it, and compressed data itself says where it ends.
Finding them takes time that is linear in the size of the file; decoding is charged.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from bridge.service.analysis.content.decompression import Inflater, decode
from bridge.service.analysis.content.unpacking import Budget

SPACE = rb"[\s\0]{0,99}"
REFERENCE = rb"(\d{1,10})[\s\0]{1,20}\d{1,5}[\s\0]{1,20}R"
_COMMENT = re.compile(rb"%[^\r\n]*")
# Not all viewers need a line end. What precedes it is only looked at: the word may occur in it once more.
_KEYWORD = re.compile(rb"stream[ \t\0]{0,99}(?=((?:[^\r\n]{0,99}(?:\r\n|\n|\r))?))")
_OBJECT = re.compile(rb"(\d{1,10})[\s\0]{1,20}\d{1,5}" + SPACE + rb"obj")
_DESCRIBED = 1024  # bytes before the word in which such a description begins
_NEAR = 200  # bytes before the word in which a description ends
_ESCAPED_NAME = re.compile(rb"#([0-9a-fA-F]{2})")
_FILTERS = re.compile(
    rb"/(FlateDecode|Fl|ASCII85Decode|A85|ASCIIHexDecode|AHx|LZWDecode|LZW|RunLengthDecode|RL)(?![A-Za-z0-9])"
)
_FILTER = re.compile(rb"/F(?:ilter)?" + SPACE + rb"(\[[^\]]{0,4000}|/[A-Za-z0-9]{1,30})")
_LENGTH = re.compile(rb"/Length[\s\0]{0,20}(\d{1,10})(?![\s\0]{0,20}\d{1,5}[\s\0]{0,20}R)")
_LOOKED_UP = re.compile(rb"/(Filter|F|DecodeParms|DP|Length|First|Type|ColorSpace|Width|Height)" + SPACE + REFERENCE)
_NUMBER = re.compile(rb"/(Predictor|Columns|Colors|BitsPerComponent|EarlyChange)" + SPACE + rb"(\d{1,6})")
_LOOKED_UP_SIZE = 400  # bytes of an object that a description refers to
_LOOKUP_WORK = 4096
_MAX_FILTERS = 8
_PIECE = 5 * 8192  # digits, in groups of five
_SLOW = 60  # work for each byte that Python itself decodes
_GUESSING, _GUESSED = (1, 3, 4), 300  # rows of a predictor that looks at the bytes before, and their work for each byte
_ROW_WORK = 100
_ZLIB = tuple(bytes((0x78, level)) for level in (0x01, 0x5E, 0x9C, 0xDA))
_LINE_ENDS = re.compile(rb"[\r\n]*")
_NOT_ASCII85 = bytes(set(range(256)) - set(range(33, 118)) - {122})
_NOT_HEX = re.compile(rb"[^0-9a-fA-F]")


class Stream(NamedTuple):
    numbers: frozenset[bytes]  # of the object that it may be
    start: int
    end: int
    about: bytes  # everything since the stream before it
    early: int  # where it begins if no line end separates it from the word


def streams(content: bytes) -> Iterator[Stream]:
    """Each word `stream` after a description; within another stream only directly after one."""
    end, about_start, outer_start = 0, 0, 0
    for match in _KEYWORD.finditer(content):
        at, start = match.start(), match.end(1)
        if content[at - 1 : at].isalnum() or (at < end and b">>" not in content[max(0, at - _NEAR) : at]):
            continue
        if at < end:  # or the other one is none: its word is in the description of this one
            about_start = max(outer_start, min(about_start, at - _DESCRIBED))
        about = plain(content[about_start:at])
        if at >= end:
            outer_start = about_start
            end = content.find(b"endstream", start)
            end = end if end >= 0 else len(content)
        about_start = start if content.find(b"stream", match.end(), end) >= 0 else end
        numbers = _OBJECT.findall(about)[-3:] + _OBJECT.findall(without_comments(about))[-3:]
        yield Stream(frozenset(numbers), start, end, about, match.start(1))


def outside(content: bytes, found: list[Stream]) -> bytes:
    """What is not in a stream; and what only seems to be in one, because objects are in there."""
    pieces, at = [], 0
    for stream in found:
        if stream.start < at:
            continue
        body_has_objects = content.find(b"obj", stream.start, stream.end) >= 0 and _OBJECT.search(
            content, stream.start, stream.end
        )
        pieces.append(content[at : stream.end if body_has_objects else stream.start])
        at = stream.end
    return plain(b"\n".join((*pieces, content[at:])))


def plain(text: bytes) -> bytes:
    """With the escapes in names replaced: `/J#61vaScript`."""
    return _ESCAPED_NAME.sub(lambda match: bytes([int(match[1], 16)]), text) if b"#" in text else text


def without_comments(text: bytes) -> bytes:
    """Only for a second look: a percent sign may also be in a string."""
    return _COMMENT.sub(b" ", text) if b"%" in text else text


class Decoder:
    """Decodes streams of one document."""

    def __init__(self, content: bytes, text: bytes, budget: Budget) -> None:
        """`text`: from `outside`, for what descriptions refer to."""
        self._content = content
        self._text = text
        self._budget = budget

    def decode(self, stream: Stream) -> tuple[bytes, bool]:
        """The content of a stream, and whether all its filters are known."""
        about = self.described(stream)
        values = [plain(value) for value in _FILTER.findall(about)]
        filters = _FILTERS.findall(values[-1])[:_MAX_FILTERS] if values else []
        is_known = not values or (len(set(values)) == 1 and len(filters) == values[-1].count(b"/"))
        if not filters and self._content.startswith(_ZLIB, stream.start):  # it may be described elsewhere
            filters = [b"Fl"]
        numbers = {name: int(value) for name, value in _NUMBER.findall(about)}
        if filters and filters[0] in (b"FlateDecode", b"Fl"):  # it says itself where it ends
            data = self._inflated(self._content, stream.start) or self._inflated(self._content, stream.early)
            data = self._unpredicted(data, numbers)
            filters = filters[1:]
        else:
            data = self._content[stream.start : self._end(stream, about)]
            self._budget.take(len(data))  # streams may contain each other
        for name in filters:
            data = self._filtered(data, name, numbers)
        return data, is_known

    def described(self, stream: Stream) -> bytes:
        """What describes a stream, with the objects that it refers to."""
        about = without_comments(stream.about[max(0, stream.about.rfind(b"obj")) :])
        found = dict.fromkeys(_LOOKED_UP.findall(about))  # each is charged, so that all of them can be looked up
        return about + b"".join(b"/%b %b" % (key, self._object(number)) for key, number in found)

    def _end(self, stream: Stream, about: bytes) -> int:
        """The declared end, if `endstream` is there: that word may also occur within the data."""
        for length in _LENGTH.findall(about)[-1:]:
            end = stream.start + int(length)
            if self._content[end : end + 20].lstrip().startswith(b"endstream"):
                return end
        return stream.end

    def objects(self, numbers: Collection[bytes]) -> Iterator[bytes]:
        """The beginnings of these objects, of those that are in no stream."""
        self._budget.take_work(4 * len(self._text))
        for match in _OBJECT.finditer(self._text):
            if match[1] in numbers:
                self._budget.take_work(_LOOKED_UP_SIZE)
                yield self._text[match.end() : match.end() + _LOOKED_UP_SIZE].partition(b"endobj")[0]

    def _object(self, number: bytes) -> bytes:
        self._budget.take_work(_LOOKUP_WORK + 4 * len(self._text))
        match = re.search(rb"(?<!\d)" + number + rb"[\s\0]{1,20}\d{1,5}" + SPACE + rb"obj", self._text)
        body = self._text[match.end() : match.end() + _LOOKED_UP_SIZE] if match else b""
        return b" " + body.partition(b"endobj")[0]

    def _inflated(self, data: bytes, at: int) -> bytes:
        """Without its two first bytes if those are wrong, and after line ends that do not belong to it."""
        found = decode(_with_header, data, at, self._budget)
        if found.content or found.is_whole:
            return found.content
        first = _LINE_ENDS.match(data, at).end()  # type: ignore[union-attr]  # (it matches nothing, too)
        for new, start in ((_with_header, first), (Inflater, first + 2), (Inflater, first)):
            content = decode(new, data, start, self._budget).content
            if content:
                return content
        return b""

    def _filtered(self, data: bytes, name: bytes, numbers: dict[bytes, int]) -> bytes:
        if name in (b"FlateDecode", b"Fl"):
            return self._unpredicted(self._inflated(data, 0), numbers)
        if name in (b"LZWDecode", b"LZW"):
            self._budget.take_work(_SLOW * len(data))
            return self._unpredicted(_from_lzw(data, numbers.get(b"EarlyChange", 1), self._budget), numbers)
        if name in (b"RunLengthDecode", b"RL"):
            self._budget.take_work(_SLOW * len(data))
            return _from_runs(data, self._budget)
        if name in (b"ASCII85Decode", b"A85"):
            self._budget.take_work(_SLOW * (len(data) + 4 * data.count(b"z")))
            return _from_ascii85(data)
        self._budget.take_work(4 * len(data))
        return from_hex(data)

    def _unpredicted(self, data: bytes, numbers: dict[bytes, int]) -> bytes:
        """Undo a PNG predictor, whose number begins each row; other predictors are for pictures."""
        if numbers.get(b"Predictor", 1) < 10:
            return data
        bits = max(1, min(numbers.get(b"Colors", 1), 32)) * max(1, min(numbers.get(b"BitsPerComponent", 8), 16))
        width, distance = (max(1, numbers.get(b"Columns", 1)) * bits + 7) // 8, max(1, bits // 8)
        width = min(width, len(data))  # the document chooses the numbers, so they may be far too large
        out, above = [], bytes(width)
        for at in range(0, len(data), width + 1):
            self._budget.take_work(_ROW_WORK + (_GUESSED if data[at] in _GUESSING else _SLOW) * width)
            above = _row(data[at], data[at + 1 : at + 1 + width].ljust(width, b"\0"), above, distance)
            out.append(above)
        return b"".join(out)


def _with_header() -> Inflater:
    return Inflater(15)


def _row(kind: int, row: bytes, above: bytes, distance: int) -> bytes:
    """One row of a PNG predictor (RFC 2083, 6)."""
    if kind in (0, *range(5, 256)):
        return row
    if kind == 2:
        return bytes((byte + up) & 0xFF for byte, up in zip(row, above, strict=True))
    out = bytearray(row)
    for at, byte in enumerate(row):
        left, corner = (out[at - distance], above[at - distance]) if at >= distance else (0, 0)
        guess = {1: left, 3: (left + above[at]) // 2}.get(kind)
        out[at] = (byte + (_paeth(left, above[at], corner) if guess is None else guess)) & 0xFF
    return bytes(out)


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda value: abs(guess - value))


def _from_lzw(data: bytes, early: int, budget: Budget) -> bytes:
    """LZW as in TIFF: codes of 9 to 12 bits, most significant bit first; 256 resets the table, 257 ends."""
    table: list[bytes] = []
    out: list[bytes] = []
    bits, kept, width, last = 0, 0, 9, b""
    for byte in data:
        kept, bits = kept << 8 | byte, bits + 8
        if bits < width:
            continue
        bits -= width
        code, kept = kept >> bits, kept & ((1 << bits) - 1)
        if code == 257:
            break
        if code == 256:
            table, last, width = [], b"", 9
            continue
        if code < 256:
            found = bytes([code])
        elif code - 258 < len(table):
            found = table[code - 258]
        elif last:
            found = last + last[:1]
        else:
            break
        budget.take(len(found))
        out.append(found)
        if last and len(table) < 4096 - 258:
            table.append(last + found[:1])
        last = found
        width = min(12, max(9, (len(table) + 258 + early).bit_length()))
    return b"".join(out)


def _from_runs(data: bytes, budget: Budget) -> bytes:
    out, at = [], 0
    while at < len(data) and data[at] != 128:
        count = data[at]
        out.append(data[at + 1 : at + 2 + count] if count < 128 else data[at + 1 : at + 2] * (257 - count))
        budget.take(len(out[-1]))
        at += count + 2 if count < 128 else 2
    return b"".join(out)


def _from_ascii85(data: bytes) -> bytes:
    """Leaves out what other programs ignore or repair."""
    digits = data.lstrip().removeprefix(b"<~").partition(b"~")[0].translate(None, _NOT_ASCII85)
    digits = digits.replace(b"z", b"!!!!!")
    pieces = (digits[at : at + _PIECE] for at in range(0, len(digits), _PIECE))  # Python makes a list of all digits
    return b"".join(map(_from_groups, pieces))


def _from_groups(digits: bytes) -> bytes:
    try:
        return base64.a85decode(digits)
    except ValueError:  # a group that is too large: viewers ignore what does not fit into four bytes
        groups = (digits[at : at + 5] for at in range(0, len(digits), 5))
        return b"".join(map(_from_group, groups))


def _from_group(digits: bytes) -> bytes:
    number = 0
    for digit in digits.ljust(5, b"u"):
        number = number * 85 + digit - 33
    return (number & 0xFFFFFFFF).to_bytes(4, "big")[: max(0, len(digits) - 1)]


def from_hex(data: bytes) -> bytes:
    digits = _NOT_HEX.sub(b"", data.partition(b">")[0])
    return binascii.unhexlify(digits + b"0" * (len(digits) % 2))
