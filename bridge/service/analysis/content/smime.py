"""S/MIME: the message within signed or compressed data (`smime.p7m`), which every reader shows without asking.

The data (CMS, RFC 5652) is read by its structure, in BER: a ContentInfo holds the type of the content and the content;
that of signed, compressed, digested or authenticated data contains another ContentInfo, which holds the message
as an octet string, in one piece or in many. Types are ignored, because programs show the content of any.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from bridge.mime import encodings
from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.unpacking import Budget

_OID, _OCTETS, _SEQUENCE, _EXPLICIT, _CONSTRUCTED = 0x06, 0x04, 0x30, 0xA0, 0x20
_TIME_STAMPED = bytes.fromhex("2a864886f70d010910011f")  # RFC 5544: a file, and a time stamp
_PKCS = bytes.fromhex("2a864886f70d01")  # the identifiers of all types of content begin with these bytes
_INFO = 24  # bytes in which the type of the content is
_ELEMENT_COST = 1024  # work for each element, however short: it takes several steps
MAX_DEPTH = 20
_PEM_BEGIN = re.compile(rb"-----BEGIN (?:PKCS ?#?7|CMS)")
_PEM_START = 4096  # bytes; programs pass over text before it
_NOTHING: Mapping[int, int] = MappingProxyType({})


def _without_pem_lines(data: bytes) -> bytes:
    """Without the lines around the Base64 (`-----BEGIN ...`) and the header fields above it."""
    return b"\n".join(line for line in data.split(b"\n") if b"-----" not in line and b":" not in line)


class BadStructure(Exception):
    """The data is not BER, or not CMS."""


class _Element(NamedTuple):
    at: int
    tag: int
    start: int  # of its content
    end: int | None  # None: its end is marked

    @property
    def is_octets(self) -> bool:
        return self.tag & ~_CONSTRUCTED == _OCTETS


def is_cms(data: bytes) -> bool:
    """Whether it begins with a ContentInfo of a type that belongs to S/MIME."""
    return data[:1] == b"\x30" and _PKCS in data[:_INFO]


def looks_like_cms(data: bytes) -> bool:
    """The same, or it names one in a line before Base64."""
    return is_cms(data) or _PEM_BEGIN.search(data[:_PEM_START]) is not None


def contents(data: bytes, budget: Budget) -> Iterator[bytes]:
    """Every content that is not encrypted; nothing if it is, or is signed separately. Raises BadStructure, TooMuch."""
    if data[:1] != b"\x30":
        budget.take_work(len(data))
        data, _ = encodings.decode(_without_pem_lines(data), "base64")
        if not data:
            raise BadStructure
    outer = _element(data, 0)
    if outer.tag != _SEQUENCE:
        raise BadStructure
    yield from _Reader(data, budget, is_time_stamped=_TIME_STAMPED in data[:_INFO]).in_sequence(outer, 0)


class _Reader:
    def __init__(self, data: bytes, budget: Budget, *, is_time_stamped: bool) -> None:
        self._data = data
        self._is_time_stamped = is_time_stamped
        self._budget = budget
        self._ends: dict[int, int] = {}  # of elements whose end is marked, so that they are passed only once

    def in_sequence(self, sequence: _Element, depth: int) -> Iterator[bytes]:
        """A ContentInfo (an identifier, then the content), or a sequence that has some among its elements."""
        if depth > MAX_DEPTH:
            raise TooMuch("smime-depth")
        is_info = False
        for number, element in enumerate(self._children(sequence)):
            if number == 0:
                is_info = element.tag == _OID
            elif is_info and number == 1 and element.tag == _EXPLICIT:
                yield from self._in_content(element, depth)
            elif self._is_time_stamped and depth == 1 and element.is_octets:
                yield self._octets(element)
            elif not is_info and element.tag == _SEQUENCE and self._is_info(element):
                yield from self.in_sequence(element, depth + 1)

    def _is_info(self, sequence: _Element) -> bool:
        return next((element.tag == _OID for element in self._children(sequence)), False)

    def _in_content(self, content: _Element, depth: int) -> Iterator[bytes]:
        for value in self._children(content):
            if value.is_octets:
                yield self._octets(value)
            elif value.tag == _SEQUENCE:
                yield from self.in_sequence(value, depth + 1)

    def _octets(self, string: _Element) -> bytes:
        """All of a string, whose pieces may be in pieces themselves."""
        pieces = []
        for element, end in self._walk(string.at):
            if element.tag == _OCTETS:
                self._budget.take(max(0, min(end, len(self._data)) - element.start))
                pieces.append(self._data[element.start : end])
        return b"".join(pieces)

    def _children(self, parent: _Element) -> Iterator[_Element]:
        size = len(self._data)
        at, end = parent.start, size if parent.end is None else min(parent.end, size)
        while at < end:
            child = _element(self._data, at)
            if parent.end is None and child.tag == 0:
                self._ends[parent.at] = child.start
                return
            yield child
            at = self._end(child)

    def _end(self, element: _Element) -> int:
        """The position after it. If its end is marked, everything in it must be passed."""
        if element.end is not None:
            self._budget.take_work(_ELEMENT_COST)
            return element.end
        if element.at not in self._ends:
            deque(self._walk(element.at, self._ends), maxlen=0)
        return self._ends.get(element.at, len(self._data))

    def _walk(self, at: int, known: Mapping[int, int] = _NOTHING) -> Iterator[tuple[_Element, int]]:
        """The element at this position and all in it, except in `known` ones; each with where reading continues."""
        around: list[_Element] = []  # the elements that contain the current one
        while at < len(self._data):
            self._budget.take_work(_ELEMENT_COST)
            element = _element(self._data, at)
            if at in known:
                at = known[at]
            elif element.tag & _CONSTRUCTED:
                around.append(element)
                at = element.start
            elif element.end is None:
                raise BadStructure
            else:
                at = element.end
                if element.tag == 0 and around and around[-1].end is None:
                    self._ends[around.pop().at] = at
            yield element, at
            while around and (end := around[-1].end) is not None and at >= end:
                at = end
                around.pop()
            if not around:
                return


def _element(data: bytes, at: int) -> _Element:
    """The tag and the length at this position. Raises BadStructure if they are cut off."""
    try:
        start, tag = at + 1, data[at]
        if tag & 0x1F == 0x1F:  # the rest of the tag follows, and no such tag is of interest
            while data[start] & 0x80:
                start += 1
            start += 1
        first = data[start]
    except IndexError:
        raise BadStructure from None
    start += 1
    if first < 0x80:
        return _Element(at, tag, start, start + first)
    count = first & 0x7F
    length = int.from_bytes(data[start : start + count], "big")
    return _Element(at, tag, start + count, start + count + length if count else None)
