"""Deflate (RFC 1951), as the most tolerant programs read it.

zlib refuses codes that are incomplete or too many, and copies from before the beginning; 7-Zip, unzip and gunzip do
not. So whatever zlib refuses for such a reason is decoded here, from its beginning. This takes a hundred times as long,
and each symbol is charged. Ends where every program ends, and raises nothing but TooMuch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.unpacking import MAX_MEMBER

_REASONS = ("too far back", "too many length", "lengths set", "distances set", "end-of-block", "length repeat")
_SYMBOL_WORK, _LENGTH_WORK = 400, 20  # for each symbol, and for each length of a code
_LONGEST = 15  # bits of a code
_END, _FIRST_LENGTH = 256, 257
_REPEAT, _ZEROS, _MANY_ZEROS = 16, 17, 18
_REPEATED = {_REPEAT: (2, 3), _ZEROS: (3, 3), _MANY_ZEROS: (7, 11)}  # bits, and what is added to them
_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
_LENGTH_BITS = (*(0,) * 8, *(bits for bits in range(1, 6) for _ in range(4)))
_DISTANCE_BITS = (0, 0, *(bits for bits in range(14) for _ in range(2)))
_Tree = dict[int, int]  # symbols by their codes, after a bit that is always set


def is_tolerated(error: Exception) -> bool:
    """Whether some program reads on; only the text of zlib's error tells."""
    return isinstance(error, zlib.error) and any(reason in str(error) for reason in _REASONS)


def inflate(data: bytes, at: int, charge: Callable[[int], object]) -> bytes:
    """What can be read of one stream that begins at `at`. `charge` is called with the work."""
    stream = _Stream(data, at, charge)
    with suppress(_Ended):
        stream.read()
    return bytes(stream.out)


class _Ended(Exception):
    """No program reads further."""


def _bases(first: int, extra_bits: tuple[int, ...]) -> tuple[int, ...]:
    found = [first]
    for bits in extra_bits[:-1]:
        found.append(found[-1] + (1 << bits))
    return tuple(found)


_LENGTHS = (*zip(_bases(3, _LENGTH_BITS), _LENGTH_BITS, strict=True), (258, 0))
_DISTANCES = tuple(zip(_bases(1, _DISTANCE_BITS), _DISTANCE_BITS, strict=True))


def _tree(lengths: Sequence[int]) -> _Tree:
    """Too many codes are an error everywhere, too few are not."""
    found: _Tree = {}
    code, before = 1, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length):
        code <<= length - before
        if code >> length != 1:
            raise _Ended
        found[code] = symbol
        code, before = code + 1, length
    return found


_FIXED = _tree([8] * 144 + [9] * 112 + [7] * 24 + [8] * 8), _tree([5] * 30)


class _Stream:
    def __init__(self, data: bytes, at: int, charge: Callable[[int], object]) -> None:
        self.out = bytearray()
        self._data = data
        self._at = at
        self._charge = charge
        self._held, self._count = 0, 0  # bits that were taken from the data, and not yet read

    def read(self) -> None:
        is_last = False
        while not is_last:
            is_last = bool(self._bits(1))
            kind = self._bits(2)
            if kind == 0:
                self._stored()
            elif kind == 1:
                self._block(*_FIXED)
            elif kind == 2:
                self._block(*self._trees())
            else:
                raise _Ended

    def _bits(self, count: int) -> int:
        while self._count < count:
            if self._at >= len(self._data):
                raise _Ended
            self._held |= self._data[self._at] << self._count
            self._at += 1
            self._count += 8
        found = self._held & ((1 << count) - 1)
        self._held >>= count
        self._count -= count
        return found

    def _symbol(self, tree: _Tree) -> int:
        self._charge(_SYMBOL_WORK)
        code = 1
        while code >> _LONGEST == 0:
            code = code << 1 | self._bits(1)
            if code in tree:
                return tree[code]
        raise _Ended

    def _stored(self) -> None:
        self._bits(self._count % 8)
        length, check = self._bits(16), self._bits(16)
        if length ^ check != 0xFFFF:
            raise _Ended
        self._at -= self._count // 8
        self._held, self._count = 0, 0
        self._charge(_SYMBOL_WORK + length)
        self.out += self._data[self._at : self._at + length]
        self._at += length

    def _trees(self) -> tuple[_Tree, _Tree]:
        literals, distances, count = self._bits(5) + 257, self._bits(5) + 1, self._bits(4) + 4
        lengths = [0] * len(_ORDER)
        for place in _ORDER[:count]:
            lengths[place] = self._bits(3)
        self._charge(_LENGTH_WORK * (literals + distances))
        tree = _tree(lengths)
        lengths = []
        while len(lengths) < literals + distances:
            symbol = self._symbol(tree)
            if symbol in _REPEATED:
                bits, least = _REPEATED[symbol]
                length = lengths[-1] if symbol == _REPEAT and lengths else 0
                lengths += [length] * (least + self._bits(bits))
            else:
                lengths.append(symbol)
        return _tree(lengths[:literals]), _tree(lengths[literals : literals + distances])

    def _block(self, literals: _Tree, distances: _Tree) -> None:
        while (symbol := self._symbol(literals)) != _END:
            if symbol < _END:
                self.out.append(symbol)
            else:
                self._copy(self._number(_LENGTHS, symbol - _FIRST_LENGTH), distances)

    def _copy(self, length: int, distances: _Tree) -> None:
        distance = self._number(_DISTANCES, self._symbol(distances))
        self._charge(length)
        if len(self.out) > MAX_MEMBER:
            raise TooMuch("archive-size")
        zeros = max(0, min(length, distance - len(self.out)))  # before the beginning
        self.out += bytes(zeros)
        wanted, start = length - zeros, len(self.out) - distance
        piece = self.out[start : start + wanted]
        self.out += (piece * (1 + wanted // max(1, len(piece))))[:wanted]

    def _number(self, table: tuple[tuple[int, int], ...], place: int) -> int:
        if place >= len(table):
            raise _Ended
        base, extra_bits = table[place]
        return base + self._bits(extra_bits)
