"""RTF: objects embedded in hexadecimal, and templates that are loaded from elsewhere. Linear; raises only TooMuch.

Word ignores many things between the digits (white space, groups, unknown words), which attackers use to hide objects.
All of this is ignored here as well.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

from bridge.service.analysis.content.unpacking import Budget

_RTF = b"{\\rt"
_BEFORE, _BEFORE_WITHIN = b" \t\v\f\r\n\0\xef\xbb\xbf", 4096  # what may precede it: white space, a byte order mark
_DATA = re.compile(rb"\\objdata(?![a-z])")
_TOKEN = re.compile(
    rb"([{}])|\\bin(\d{1,9}) ?|\\[a-zA-Z]{1,32}(?:-?\d{1,10})? ?|\\'[0-9a-fA-F]{2}|\\.|([^{}\\]+)", re.DOTALL
)
_NOT_HEX = re.compile(rb"[^0-9a-fA-F]+")
_TEMPLATE = re.compile(rb"\\template(?![a-z])\s{0,20}((?:[^{}\\]|\\[^{}]){4,}+)")
_UNICODE = re.compile(rb"\\u(-?\d{1,6}) ?\??")
_HEX = re.compile(rb"\\'([0-9a-fA-F]{2})")
_FIELD = re.compile(rb"\\fldinst(?![a-z])")
_WORD = re.compile(rb"\\[a-zA-Z]{1,32}(?:-?\d{1,10})? ?|\\.|[{}\r\n]", re.DOTALL)
_MAX_FIELD = 64 * 1024  # bytes of an instruction, each of which may be written with four
_FIELD_WORK = 200  # for each field,
_ESCAPE_WORK = 80  # for each word or escape in it, and
_TOKEN_WORK = 150  # for each piece of an object
_MAX_CLASS = 100  # bytes of the name of a class


class Embedded(NamedTuple):
    class_name: str  # in lower case
    content: bytes


def is_rtf(content: bytes) -> bool:
    return content[:_BEFORE_WITHIN].lstrip(_BEFORE).startswith(_RTF)


def rtf_templates(content: bytes, budget: Budget) -> list[str]:
    """Addresses; most templates are files of the author."""
    found = []
    for raw in _TEMPLATE.findall(content):
        budget.take_work(_ESCAPE_WORK * raw.count(b"\\"))
        text = _UNICODE.sub(lambda match: chr(int(match[1]) & 0xFFFF).encode("utf-8", "replace"), raw)
        text = _HEX.sub(lambda match: bytes([int(match[1], 16)]), text)
        address = text.decode("utf-8", "replace").replace("\\\\", "\\").strip()
        if "//" in address.replace("\\", "/"):
            found.append(address)
    return found


def rtf_fields(content: bytes, budget: Budget) -> str:
    """The instructions of all fields, one on each line."""
    found = []
    starts = [match.end() for match in _FIELD.finditer(content)]
    for start, following in zip(starts, [*starts, len(content)][1:], strict=True):  # never the same bytes twice
        raw = content[start : min(start + _MAX_FIELD, following)].partition(b"\\fldrslt")[0]
        budget.take_work(_FIELD_WORK + _ESCAPE_WORK * raw.count(b"\\"))
        raw = _HEX.sub(lambda code: bytes([int(code[1], 16)]), raw)
        raw = _UNICODE.sub(lambda code: chr(int(code[1]) & 0xFFFF).encode("utf-8", "replace"), raw)
        found.append(_WORD.sub(b"", raw.replace(b"\\\\", b"/")).decode("utf-8", "replace"))
    return "\n".join(found)


def rtf_objects(content: bytes, budget: Budget) -> Iterator[Embedded]:
    """Each object, and what it is if the digits in groups within it count, too."""
    at = 0
    while match := _DATA.search(content, at):
        outer, every = _Digits(), _Digits()
        at = _read_digits(content, match.end(), outer, every, budget)
        yield _object(outer.content())
        if every.content() != outer.content():
            yield _object(every.content())


class _Digits:
    def __init__(self) -> None:
        self._found: list[bytes] = []
        self._digits: list[bytes] = []

    def add(self, digits: bytes) -> None:
        self._digits.append(digits)

    def add_binary(self, raw: bytes) -> None:
        self._found += [_from_hex(self._digits), raw]
        self._digits = []

    def content(self) -> bytes:
        return b"".join((*self._found, _from_hex(self._digits)))


def _read_digits(content: bytes, at: int, outer: _Digits, every: _Digits, budget: Budget) -> int:
    """Up to the end of the group; the position there."""
    depth = 0
    while at < len(content) and (match := _TOKEN.match(content, at)):
        at = match.end()
        budget.take_work(_TOKEN_WORK)
        readings = (every,) if depth else (outer, every)
        if match[1]:
            depth += 1 if match[1] == b"{" else -1
            if depth < 0:
                break
        elif match[2]:
            raw, at = content[at : at + int(match[2])], at + int(match[2])
            for reading in readings:
                reading.add_binary(raw)
        elif match[3]:
            for reading in readings:
                reading.add(match[3])
    return at


def _from_hex(pieces: list[bytes]) -> bytes:
    digits = _NOT_HEX.sub(b"", b"".join(pieces))
    return binascii.unhexlify(digits[: len(digits) // 2 * 2])


def _object(raw: bytes) -> Embedded:
    """OLE 1: a version, a kind, three strings with their lengths, and the length of the data (MS-OLEDS 2.2.5)."""
    length = int.from_bytes(raw[8:12], "little")
    if length > _MAX_CLASS:
        return Embedded("", raw)
    name = raw[12 : 12 + length].partition(b"\0")[0].decode("latin-1").lower()
    at = 12 + length
    for _ in range(2):
        at += 4 + int.from_bytes(raw[at : at + 4], "little")
    return Embedded(name, raw[at + 4 :] or raw)
