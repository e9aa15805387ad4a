"""The streams of a PDF document: where they are, and what is in them.

Viewers repair what is wrong with a document, each in its own way. So nothing here relies on one fact alone: each word
`stream` may begin one, what describes it may be anywhere before it, and compressed data itself says where it ends. If
its dictionary can be read (`pdf_objects`), the encoding is taken from there; otherwise, we look for words.
Finding them takes time linear in the size of the file; decoding is charged.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

from bridge.service.analysis.content.decompression import Inflater, decode
from bridge.service.analysis.content.pdf_objects import (
    Described,
    Dictionary,
    Objects,
    Reader,
    Reference,
    Value,
    number_of,
    plain,
    references,
)
from bridge.service.analysis.content.unpacking import Budget

SPACE = rb"[\s\0]*+"
_COMMENT = re.compile(rb"%[^\r\n]*")
# Not all viewers need a line end. What precedes it is only looked at: the word may occur there again.
_KEYWORD = re.compile(rb"stream[ \t\0]*+(?=((?:[^\r\n]{0,99}(?:\r\n|\n|\r))?))")
_OBJECT = re.compile(rb"(?<!\d)(\d++)[\s\0]++\d++" + SPACE + rb"obj")
_OBJECT_WORD = re.compile(rb"obj(?<![a-zA-Z]obj)(?![a-zA-Z])")  # comments may be between it and its numbers
_DESCRIBED = 1024  # bytes before the word in which such a description begins
_NEAR = 200  # bytes before the word in which a description ends
_FILTERS = frozenset(
    b"FlateDecode Fl ASCII85Decode A85 ASCIIHexDecode AHx LZWDecode LZW RunLengthDecode RL".split()
)  # that are known here
_FILTER_KEYS, _PARAMETER_KEYS = (b"Filter", b"F"), (b"DecodeParms", b"DP")
_PARAMETERS = (b"Predictor", b"Columns", b"Colors", b"BitsPerComponent", b"EarlyChange")
_DESCRIBING = re.compile(
    rb"/(Filter|F|DecodeParms|DP|Predictor|Columns|Colors|BitsPerComponent|EarlyChange|Length)(?=[\s\0%/\[<])"
)
_LOOKED_UP = re.compile(rb"/(Filter|F|DecodeParms|DP|Length|First|Type|ColorSpace|Width|Height)(?=[\s\0%])")
_MAX_FILTERS = 8
_MAX_VALUES = 8  # different ones of an object: more than one is ambiguous anyway
_PIECE = 5 * 8192  # digits, in groups of five
_SLOW = 60  # work for each byte that Python itself decodes
_GUESSING, _GUESSED = (1, 3, 4), 300  # rows of a predictor that looks at the bytes before, and their work for each byte
_ROW_WORK = 400
_PARAMETER_WORK = 1000  # for each dictionary of parameters
_TIFF_PREDICTOR, _PNG_PREDICTORS = 2, 10  # and those above
_ZLIB = tuple(bytes((0x78, level)) for level in (0x01, 0x5E, 0x9C, 0xDA))
_LINE_ENDS = re.compile(rb"[\r\n]*")
_NOT_ASCII85 = bytes(set(range(256)) - set(range(33, 118)) - {122})
_NOT_HEX = re.compile(rb"[^0-9a-fA-F]")


class Stream(NamedTuple):
    at: int  # where the word is
    numbers: frozenset[int] | None  # of the object that it may be; None if that is not clear
    start: int
    end: int
    about: bytes  # everything since the stream before it
    early: int  # where it begins if no line end separates it from the word


def streams(content: bytes, objects: Objects) -> Iterator[Stream]:
    """Each word `stream` after a dictionary, or after a description; within another stream only directly after one."""
    end, about_start, outer_start = 0, 0, 0
    for match in _KEYWORD.finditer(content):
        at, start = match.start(), match.end(1)
        described = objects.streams.get(at, [])
        is_near = b">>" in content[max(0, at - _NEAR) : at]
        if not described and (content[at - 1 : at].isalnum() or (at < end and not is_near)):
            continue
        if at < end:  # or the other one is not a stream: its word is in the description of this one
            about_start = max(outer_start, min(about_start, at - _DESCRIBED))
        about = plain(content[min([about_start, *(found.start for found in described)]) : at])
        if at >= end:
            outer_start = about_start
            end = content.find(b"endstream", start)
            end = end if end >= 0 else len(content)
        about_start = start if content.find(b"stream", match.end(), end) >= 0 else end
        yield Stream(at, _numbers(described, about), start, end, about, match.start(1))


def _numbers(described: list[Described], about: bytes) -> frozenset[int] | None:
    """Those of the objects that the stream may be; without a dictionary, some that are near."""
    if any(found.numbers is None for found in described):
        return None
    if described:
        return frozenset().union(*(found.numbers or () for found in described))
    texts = _OBJECT.findall(about)[-3:] + _OBJECT.findall(without_comments(about))[-3:]
    return frozenset(number for text in texts if (number := number_of(text)) is not None)


def outside(content: bytes, found: list[Stream]) -> bytes:
    """What is not in a stream; and what only seems to be in one, because objects are in there."""
    pieces, at = [], 0
    for stream in found:
        if stream.start < at:
            continue
        body_has_objects = _OBJECT_WORD.search(content, stream.start, stream.end)
        pieces.append(content[at : stream.end if body_has_objects else stream.start])
        at = stream.end
    return plain(b"\n".join((*pieces, content[at:])))


def without_comments(text: bytes) -> bytes:
    """Only for a second look: a percent sign may also be in a string."""
    return _COMMENT.sub(b" ", text) if b"%" in text else text


class _Encoding(NamedTuple):
    filters: tuple[bytes, ...]
    numbers: tuple[dict[bytes, int], ...]  # for each of them
    is_known: bool


class Decoder:
    """Decodes streams of one document."""

    def __init__(self, content: bytes, objects: Objects, budget: Budget) -> None:
        self._content = content
        self._objects = objects
        self._budget = budget

    def decode(self, stream: Stream) -> tuple[bytes, bool]:
        """The content of a stream, and whether all its filters are known."""
        dictionaries = self._dictionaries(stream)
        found = {encoding.filters: encoding for one in dictionaries for encoding in self._encodings(one)}
        filters, all_numbers, is_known = sorted(found.values(), key=lambda encoding: bool(encoding.filters))[-1]
        is_known = is_known and len(found) == 1
        if not filters and self._content.startswith(_ZLIB, stream.start):  # it may be described elsewhere
            filters, all_numbers = (b"Fl",), ({},)
        encodings = list(zip(filters, all_numbers, strict=True))
        if filters and filters[0] in (b"FlateDecode", b"Fl"):  # it says itself where it ends
            data = self._inflated(self._content, stream.start) or self._inflated(self._content, stream.early)
            data = self._unpredicted(data, all_numbers[0])
            encodings = encodings[1:]
        else:
            data = self._content[stream.start : self._end(stream, dictionaries)]
            self._budget.take(len(data))  # streams may contain each other
        for name, numbers in encodings:
            data = self._filtered(data, name, numbers)
        return data, is_known

    def described(self, stream: Stream) -> bytes:
        """What describes a stream, with the objects that it refers to."""
        about = without_comments(stream.about[max(0, stream.about.rfind(b"obj")) :])
        reader = Reader(about, self._budget)
        found = dict.fromkeys(
            (match[1], number)
            for match in _LOOKED_UP.finditer(about)
            for number in references(reader.value(match.end())[0])
        )
        texts = (b"/%b %b" % (key, text) for key, number in found for _, text in self._objects.values(number))
        return about + b"".join(texts)

    def _dictionaries(self, stream: Stream) -> list[Dictionary]:
        """Those before the word; without any, the keys that we find before it, once with and once without comments."""
        if found := [one.dictionary for one in self._objects.streams.get(stream.at, [])]:
            return found
        about = stream.about[max(0, stream.about.rfind(b"obj")) :]
        return [self._keys(text) for text in dict.fromkeys((about, without_comments(about)))]

    def _keys(self, text: bytes) -> Dictionary:
        reader, found = Reader(text, self._budget), Dictionary()
        for match in _DESCRIBING.finditer(text):
            found.setdefault(match[1], []).append(reader.value(match.end())[0])
        if not any(key in found for key in _PARAMETER_KEYS):
            found[b"DP"] = [{key: found[key] for key in _PARAMETERS if key in found}]
        return found

    def _encodings(self, dictionary: Dictionary) -> Iterator[_Encoding]:
        """Each that some reader may take: a key, or an object to which it refers, may be there more than once."""
        values = [value for key in _FILTER_KEYS for value in dictionary.get(key, []) if _may_be_filter(value)]
        given = [found for key in _PARAMETER_KEYS for found in dictionary.get(key, [])]
        is_clear = len(values) <= _MAX_VALUES and len(given) <= _MAX_VALUES
        parameters = [value for found in _some(given) for value in self._of(found)]
        for value in _some(values) or [None]:
            for one in self._of(value) or [b""]:  # refers to an object that is not there
                items = one[: _MAX_FILTERS + 1] if isinstance(one, list) else [one]
                names = [name for item in items for name in self._names(item)]
                filters = [name for name in names if isinstance(name, bytes)]
                known = tuple(name for name in filters if name in _FILTERS)[:_MAX_FILTERS]
                numbers = tuple(self._numbers(parameters, place) for place in range(len(known)))
                yield _Encoding(known, numbers, is_clear and len(known) == len(filters))

    def _names(self, item: Value) -> list[Value]:
        """The names of a filter in an array; with an additional empty one, which is not known, if it is not clear."""
        found = self._of(item)
        return found if len(found) == 1 else [*found, b""]

    def _of(self, value: Value) -> list[Value]:
        """The value itself, or the different ones of the object to which it refers."""
        if not isinstance(value, Reference):
            return [value]
        found: list[Value] = []
        for one, _ in self._objects.values(value.number):
            if one not in found[:_MAX_VALUES]:
                found.append(one)
        return found[:_MAX_VALUES]

    def _numbers(self, parameters: list[Value], place: int) -> dict[bytes, int]:
        """The parameters of the filter at this place: each has its own, or all have the same."""
        numbers: dict[bytes, int] = {}
        for several in parameters:
            own = several[place : place + 1] if isinstance(several, list) else [several]
            for found in (found for one in own for found in self._of(one) if isinstance(found, dict)):
                self._budget.take_work(_PARAMETER_WORK)
                for key in _PARAMETERS:
                    read = (number for one in _some(found.get(key, [])) for number in self._of(one))
                    numbers.update((key, number) for number in read if isinstance(number, int))
        return numbers

    def _end(self, stream: Stream, dictionaries: list[Dictionary]) -> int:
        """The declared end, if `endstream` is there: that word may also occur within the data."""
        reader = Reader(self._content, self._budget)
        lengths = (length for one in dictionaries for value in one.get(b"Length", []) for length in self._of(value))
        for length in (length for length in lengths if isinstance(length, int)):
            end = stream.start + length
            if end < len(self._content) and self._content.startswith(b"endstream", reader.skip(end)):
                return end
        return stream.end

    def _inflated(self, data: bytes, at: int) -> bytes:
        """Without its first two bytes if those are wrong, and after line ends that do not belong to it."""
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
        """Undo a predictor: in those of PNG, its number begins each row; that of TIFF is like `Sub`, number 1."""
        kind = numbers.get(b"Predictor", 1)
        if kind < _PNG_PREDICTORS and kind != _TIFF_PREDICTOR:
            return data
        bits = max(1, min(numbers.get(b"Colors", 1), 32)) * max(1, min(numbers.get(b"BitsPerComponent", 8), 16))
        width, distance = (max(1, numbers.get(b"Columns", 1)) * bits + 7) // 8, max(1, bits // 8)
        width = min(width, len(data))  # the document chooses the numbers, so they may be far too large
        out, above = [], bytes(width)
        mark = 0 if kind == _TIFF_PREDICTOR else 1
        for at in range(0, len(data), width + mark):
            row_kind = data[at] if mark else 1
            self._budget.take_work(_ROW_WORK + (_GUESSED if row_kind in _GUESSING else _SLOW) * width)
            above = _row(row_kind, data[at + mark : at + mark + width].ljust(width, b"\0"), above, distance)
            out.append(above)
        return b"".join(out)


def _some(values: list[Value]) -> list[Value]:
    """The first and the last, if there are many: readers take one of these."""
    return values if len(values) <= _MAX_VALUES else [*values[: _MAX_VALUES // 2], *values[-_MAX_VALUES // 2 :]]


def _may_be_filter(value: Value) -> bool:
    return isinstance(value, (bytes, list, Reference))


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
