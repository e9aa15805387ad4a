"""Zip files, read in every way that programs read them.

A zip file describes each member twice: in the header before its data, and in the directory at the end. Programs
believe one or the other: about its name (of which each can have two), its compression and its size, and even
about which members there are. So every header is used, whether or not the directory lists it, and a member is
read according to both descriptions. Whatever any of the readings yields is a member.

Engines that look for malware are such programs, too: ClamAV goes by sizes in the header that others ignore, and
supports few methods of compression. Only what is described twice in the same plain way is certainly found by all.
"""

from __future__ import annotations

import bz2
import lzma
import re
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.decompression import (
    BZIP2_MAGIC,
    MAX_MEMORY,
    XZ_MAGIC,
    Decoder,
    Inflater,
    decode,
    streams,
)
from bridge.service.analysis.content.unpacking import BadArchive, Budget, CutOff, Member

_LOCAL = struct.Struct("<4s2xHH8xIIHH")  # flags, method, sizes, lengths of name and extra field
_CENTRAL = struct.Struct("<4s4xHH8xIIHHH8xI")  # the same, length of the comment, offset of the header
_END = struct.Struct("<4s8xII2x")  # size and offset of the directory
_END64 = struct.Struct("<4s36xQQ")
_HEADER, _ENTRY = b"PK\x03\x04", b"PK\x01\x02"
_SIGNATURE = re.compile(rb"PK(?:\x01\x02|\x03\x04|\x07\x08)")
_STORED, _DEFLATED, _DEFLATED64, _BZIP2, _LZMA, _XZ = 0, 8, 9, 12, 14, 95
# Shrunk, reduced, imploded, Zstandard, MP3, JPEG, WavPack, PPMd: some programs read them; we do not.
_UNREAD = frozenset({1, 2, 3, 4, 5, 6, 7, _DEFLATED64, 10, 16, 18, 19, 20, 93, 94, 96, 97, 98})
_METHODS = _UNREAD | {_STORED, _DEFLATED, _BZIP2, _LZMA, _XZ, 99}
_STREAMS = {_BZIP2: BZIP2_MAGIC, _XZ: XZ_MAGIC}  # of which a member may have several: some programs read all
_LATER, _PLAIN_FLAGS = 8, 0x80E  # sizes that follow the data; also how hard it was compressed, and names in UTF-8
_LIKELY_HEADER = re.compile(rb"PK\x03\x04[\s\S]{4}[\0-\x14\x5d-\x63]\0")  # with a method that exists
_MAX_DOUBTS = 10_000
_HEADER_COST, _NAME_COST = 1024, 16  # work for each header, and for each byte of its names: they may overlap
_SHIFT_COST = 256  # work for each position in which an entry's header may be
_UNKNOWN = 0xFFFFFFFF
_ZIP64, _UNICODE_PATH = 0x0001, 0x7075


@dataclass(frozen=True, slots=True)
class _Description:
    """What a header or an entry of the directory says about a member."""

    flags: int
    method: int
    packed: int
    size: int
    names: tuple[str, ...]
    offset: int = 0
    is_plain: bool = False  # without numbers in an extra field; in the directory, where every program looks for it

    @property
    def is_encrypted(self) -> bool:
        return bool(self.flags & 1)


@dataclass(slots=True)
class _Place:
    """A header in the file: where its data starts, and all descriptions of it."""

    start: int
    descriptions: list[_Description] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for described in self.descriptions for name in described.names))

    def is_plain(self, packed: int) -> bool:
        """Whether all programs find the same data of this length: the header and one entry say so, in the usual way."""
        if len(self.descriptions) != 2 or not all(described.is_plain for described in self.descriptions):
            return False
        header, entry = self.descriptions
        sizes = (entry.packed, entry.size)
        is_later = entry.flags & _LATER and not (header.packed or header.size)
        return (
            (header.flags, header.method) == (entry.flags, entry.method)
            and entry.method in (_STORED, _DEFLATED)
            and not entry.flags & ~_PLAIN_FLAGS
            and entry.packed == packed
            and bool(is_later or (header.packed, header.size) == sizes)
        )


_MANY = 10_000  # headers: more than archives may have members


def has_zip_member(content: bytes) -> bool:
    """Whether a member is somewhere in it: some programs find it without the directory."""
    if b"\x03" not in content or _HEADER not in content:  # one byte is found much faster, and text has none
        return False
    if content.count(_HEADER) > _MANY:  # most are not headers, but it takes time to tell
        return True
    found = (match.start() for match in _LIKELY_HEADER.finditer(content))
    for at in islice(found, _MAX_DOUBTS):
        if _is_plausible(content, at):
            return True
    return next(found, None) is not None  # there are so many that only opening it can tell


def begins_as_plain_zip(content: bytes) -> bool:
    """Whether the directory lists a file at the very beginning, and the header there says the same."""
    for at in _plain_entries(content):
        _, flags, method, packed, _, name_length, _, _, offset = _CENTRAL.unpack_from(content, at)
        if offset == 0:
            _, *said, extra_length = _LOCAL.unpack_from(content)
            name = content[at + _CENTRAL.size : at + _CENTRAL.size + name_length]
            is_same = (said[0], said[1], said[4]) == (flags, method, name_length)
            is_same &= content.startswith(name, _LOCAL.size) and b"\0" not in name
            return is_same and _LOCAL.size + name_length + extra_length + packed <= at
    return False


def is_volume(content: bytes) -> bool:
    """Whether it says that it begins or ends in another file: `zip -s`, or a file that was split."""
    end = content.rfind(b"PK\x05\x06")
    if content.startswith(b"PK\x07\x08") or end < 0 or end + _END.size > len(content):
        return content.startswith(b"PK\x07\x08")
    _, size, offset = _END.unpack_from(content, end)
    disk = int.from_bytes(content[end + 4 : end + 6], "little")
    return 0 < disk < 0xFFFF or (_UNKNOWN not in (size, offset) and size + offset > end)


def zip_members(content: bytes, _given: Collection[str], budget: Budget) -> Iterator[Member]:
    if content.count(_ENTRY) > budget.members:
        raise TooMuch("archive-members")
    places, lost, is_broken = _places(content, budget)
    is_elsewhere = bool(lost) and is_volume(content)
    for entry in lost:
        yield Member(entry.names or ("",), None, broken=True, is_cut_off=is_elsewhere)
    for at in sorted(places):
        budget.take_member()
        yield from _members(content, places[at], budget)
    if is_broken:
        raise BadArchive if lost and not is_elsewhere else CutOff


def _places(content: bytes, budget: Budget) -> tuple[dict[int, _Place], list[_Description], bool]:
    """Every header by its position, the entries without one, and whether the archive is broken.

    It is if it has no directory, or an entry without a header.
    """
    places: dict[int, _Place] = {}
    lost: list[_Description] = []
    has_directory = False
    for entry, shifts in _entries(content, budget):
        has_directory = True
        found = False
        for at in sorted({entry.offset + shift for shift in shifts}):
            place = places.get(at) or _header(content, at, budget)
            if place is not None:
                places[at], found = place, True
                place.descriptions.append(entry)
        if not found:
            lost.append(entry)
    budget.take_work(_HEADER_COST * content.count(_HEADER))
    for match in _LIKELY_HEADER.finditer(content):
        at = match.start()
        place = _header(content, at, budget) if at not in places and _is_plausible(content, at) else None
        if place is not None:
            places[at] = place
    return places, lost, bool(lost) or not (has_directory or _is_empty(content))


def _is_empty(content: bytes) -> bool:
    """Nothing but the record that ends a directory without entries."""
    return content.startswith(b"PK\x05\x06") and not any(content[4:20])


def _entries(content: bytes, budget: Budget) -> Iterator[tuple[_Description, set[int]]]:
    """Each entry of any directory, and by how much its offset may be wrong: bytes may precede the archive."""
    shifts, plain = _Shifts(_directory_ends(content, budget)), _plain_entries(content)
    at = content.find(_ENTRY)
    while at >= 0:
        if at + _CENTRAL.size <= len(content):
            _, flags, method, packed, size, name_length, extra_length, _, offset = _CENTRAL.unpack_from(content, at)
            budget.take_work(_HEADER_COST + _NAME_COST * (name_length + extra_length))
            middle = at + _CENTRAL.size + name_length
            name, extra = content[at + _CENTRAL.size : middle], content[middle : middle + extra_length]
            written = packed, size, offset
            packed, size, offset = _real_sizes(extra, *written)
            is_plain = at in plain and written == (packed, size, offset)
            entry = _Description(flags, method, packed, size, _names(name, extra), offset, is_plain)
            yield entry, shifts.of(at, budget)
        at = content.find(_ENTRY, at + 4)


def _plain_entries(content: bytes) -> set[int]:
    """Where the entries are, if the last record says so, and they lie one after the other, up to that record."""
    end = content.rfind(b"PK\x05\x06")
    if end < 0 or end + _END.size > len(content) or not content.startswith(_HEADER):
        return set()
    _, size, at = _END.unpack_from(content, end)
    if at + size != end:
        return set()
    found: set[int] = set()
    while content.startswith(_ENTRY, at) and at + _CENTRAL.size <= end:
        found.add(at)
        at += _CENTRAL.size + sum(_CENTRAL.unpack_from(content, at)[5:8])
    return found if at == end else set()


class _Shifts:
    """By how much the offsets of an entry may be wrong; to be asked for one entry after the other.

    Any record that ends a directory may be a decoy, so each one counts whose directory covers the entry, and the next
    one even if it does not.
    """

    def __init__(self, ends: list[tuple[int, int, int]]) -> None:
        self._next = ends[::-1]
        self._by_start = sorted(ends, key=lambda end: end[1], reverse=True)
        self._open: list[tuple[int, int, int]] = []

    def of(self, at: int, budget: Budget) -> set[int]:
        while self._next and self._next[-1][0] < at:
            self._next.pop()
        while self._by_start and self._by_start[-1][1] <= at:
            self._open.append(self._by_start.pop())
        budget.take_work(_SHIFT_COST * len(self._open))
        self._open = [end for end in self._open if end[0] > at]
        return {0, *(shift for _, _, shift in self._open), *(shift for _, _, shift in self._next[-1:])}


def _directory_ends(content: bytes, budget: Budget) -> list[tuple[int, int, int]]:
    """The records that end a directory: the position of each, where the directory begins, and the offsets' shift."""
    ends = []
    for match in re.finditer(rb"PK(?:\x05\x06|\x06\x06)", content):
        budget.take_work(_HEADER_COST)
        at = match.start()
        form = _END if content[at + 2] == 5 else _END64
        if at + form.size <= len(content):
            _, size, offset = form.unpack_from(content, at)
            if _UNKNOWN not in (size, offset):
                ends.append((at, at - size, at - size - offset))
    return ends


def _header(content: bytes, at: int, budget: Budget) -> _Place | None:
    if at < 0 or at + _LOCAL.size > len(content) or not content.startswith(_HEADER, at):
        return None
    _, flags, method, packed, size, name_length, extra_length = _LOCAL.unpack_from(content, at)
    budget.take_work(_NAME_COST * (name_length + extra_length))
    middle = at + _LOCAL.size + name_length
    start = middle + extra_length
    extra = content[middle:start]
    written = packed, size
    packed, size, _ = _real_sizes(extra, packed, size, 0)
    names = _names(content[at + _LOCAL.size : middle], extra)
    is_plain = written == (packed, size)
    return _Place(start, descriptions=[_Description(flags, method, packed, size, names, is_plain=is_plain)])


def _is_plausible(content: bytes, at: int) -> bool:
    """Whether a header that no directory lists is one: its four letters may be a coincidence."""
    if at + _LOCAL.size > len(content):
        return False
    _, flags, method, packed, _, name_length, extra_length = _LOCAL.unpack_from(content, at)
    rest = len(content) - (at + _LOCAL.size + name_length + extra_length)
    if rest < 0 or method not in _METHODS:
        return False
    if method in _UNREAD or flags & 1:
        return bool(name_length and (packed <= rest or packed == _UNKNOWN))
    return bool(name_length or packed or method)


def _real_sizes(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """The numbers that do not fit into 32 bits are in an extra field (Zip64), in this order."""
    for data in _extra_fields(extra, _ZIP64):
        numbers = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data) - 7, 8)][::-1]
        if size == _UNKNOWN and numbers:
            size = numbers.pop()
        if packed == _UNKNOWN and numbers:
            packed = numbers.pop()
        if offset == _UNKNOWN and numbers:
            offset = numbers.pop()
    return packed, size, offset


def _extra_fields(extra: bytes, wanted: int) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == wanted:
            yield extra[at + 4 : at + 4 + length]
        at += 4 + length


def _names(name: bytes, extra: bytes) -> tuple[str, ...]:
    """The name, and the one that replaces it in programs that know the field for it (Info-ZIP Unicode Path)."""
    raw = [name, *(data[5:] for data in _extra_fields(extra, _UNICODE_PATH))]
    raw += [name.partition(b"\0")[0] for name in raw if b"\0" in name]
    return tuple(dict.fromkeys(name.decode("utf-8", "replace") for name in raw if name))


def _members(content: bytes, place: _Place, budget: Budget) -> Iterator[Member]:
    names = place.names or ("",)
    is_encrypted = any(described.is_encrypted for described in place.descriptions)
    if is_encrypted:
        yield Member(names, None, encrypted=True)
    if all(described.is_encrypted for described in place.descriptions):
        return
    readings = _readings(content, place, budget)
    readable = {found.content: found for found in readings if found.content is not None}
    is_disputed = len(readable) > 1 or not any(place.is_plain(found.packed) for found in readings)
    limits = {found.limit for found in readings if found.limit}
    for limit in limits:
        yield Member(names, None, limit=limit)
    if not readable and not is_encrypted and not limits:
        is_cut_off = bool(readings) and not any(found.is_refused for found in readings)
        yield Member(names, None, broken=True, is_cut_off=is_cut_off)
    for data, found in readable.items():
        if data or not all(name.endswith("/") for name in names):
            is_broken, is_cut_off = not found.is_whole, not found.is_refused
            yield Member(names, data, broken=is_broken, is_cut_off=is_cut_off, is_disputed=is_disputed)


class _Reading(NamedTuple):
    content: bytes | None
    is_whole: bool = False
    packed: int = -1  # the length of the data that it comes from
    limit: str = ""  # which of our limits prevents it
    is_refused: bool = False  # damaged; other programs may read more


def _readings(content: bytes, place: _Place, budget: Budget) -> list[_Reading]:
    """Each distinct one."""
    found: list[_Reading] = []
    for method in dict.fromkeys(described.method for described in place.descriptions if not described.is_encrypted):
        if method == _STORED:
            found += _stored(content, place, budget)
        elif method in (_DEFLATED, _DEFLATED64, _BZIP2, _LZMA, _XZ):
            found += _decoded(content, place, method, budget)
        if method in _UNREAD:
            found.append(_Reading(None, limit="archive-method"))
    return found


def _stored(content: bytes, place: _Place, budget: Budget) -> Iterator[_Reading]:
    """By each of the sizes that are given; without any, up to what comes next."""
    sizes = {size for described in place.descriptions for size in (described.packed, described.size) if size}
    if not sizes and any(described.flags & _LATER for described in place.descriptions):
        following = _SIGNATURE.search(content, place.start)
        sizes = {(following.start() if following else len(content)) - place.start}
    for size in sorted({max(0, min(size, len(content) - place.start)) for size in sizes} or {0}):
        budget.take(size)
        yield _Reading(content[place.start : place.start + size], True, size)


def _decoded(content: bytes, place: _Place, method: int, budget: Budget) -> Iterator[_Reading]:
    """To the end of the stream, or of several, and by each of the sizes that are given: some programs stop there."""
    sizes = {described.size for described in place.descriptions if described.size}
    try:
        new, start = _decoder(content, place.start, method)
    except ValueError:
        return
    magic = _STREAMS.get(method)
    found = list(streams(new, magic, content, start, budget)) if magic else [decode(new, content, start, budget)]
    data = b"".join(one.content for one in found)
    is_whole = bool(found) and all(one.is_whole for one in found)
    is_refused = not found or found[-1].is_refused
    if data or is_whole:  # some streams of LZMA have no end mark
        yield _Reading(data, is_whole or len(data) in sizes, found[-1].end - place.start, is_refused=is_refused)
    else:
        yield _Reading(None, is_refused=is_refused)
    for size in sizes:
        if size < len(data):
            budget.take(size)
            yield _Reading(data[:size], True)


def _decoder(content: bytes, start: int, method: int) -> tuple[Callable[[], Decoder], int]:
    """The decoder, and where its data starts. Raises ValueError, and TooMuch."""
    if method == _BZIP2:
        return bz2.BZ2Decompressor, start
    if method == _XZ:
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_MEMORY), start
    if method == _LZMA:
        return _lzma_decoder(content[start + 4 : start + 9]), start + 9
    return Inflater, start


def _lzma_decoder(properties: bytes) -> Callable[[], Decoder]:
    if len(properties) < 5 or properties[0] >= 225:
        raise ValueError
    rest, lc = divmod(properties[0], 9)
    pb, lp = divmod(rest, 5)
    dictionary = int.from_bytes(properties[1:], "little")
    if dictionary > MAX_MEMORY:
        raise TooMuch("archive-memory")
    chain = [{"id": lzma.FILTER_LZMA1, "dict_size": max(dictionary, 4096), "lc": lc, "lp": lp, "pb": pb}]
    return lambda: lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=chain)
