"""What the headers of a RAR file say that libarchive does not tell: encrypted files (RAR 5), and volumes of a set.

libarchive 3.6 reads the files of an encrypted RAR 5 archive as damaged ones. Only headers are read here, each of which
is at least seven bytes long: linear, and nothing raises but TooMuch.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.service.analysis.content.unpacking import Budget

_RAR4, _RAR5 = b"Rar!\x1a\x07\x00", b"Rar!\x1a\x07\x01\x00"
_MAIN, _FILE, _SERVICE, _ENCRYPTION = 1, 2, 3, 4  # types of headers
_HAS_EXTRA, _HAS_DATA = 1, 2
_VOLUME = 1
_MAX_HEADERS = 20_000
_HEADER_WORK = 400  # for each


@dataclass(slots=True)
class RarFacts:
    is_encrypted: bool = False
    is_volume: bool = False


def facts_of(content: bytes, budget: Budget) -> RarFacts:
    found = RarFacts()
    if content.startswith(_RAR4):
        found.is_volume = content[9:10] == b"\x73" and bool(content[10:11]) and bool(content[10] & _VOLUME)
    at = len(_RAR5) if content.startswith(_RAR5) else len(content)
    for _ in range(_MAX_HEADERS):
        if at >= len(content) or found.is_encrypted:
            break
        budget.take_work(_HEADER_WORK)
        at = _read_header(content, at, found)
    return found


def _read_header(content: bytes, at: int, found: RarFacts) -> int:
    """The position after this header and its data."""
    size, at = _number(content, at + 4)  # after its checksum
    end = at + size
    kind, at = _number(content, at)
    flags, at = _number(content, at)
    extra, at = _number(content, at) if flags & _HAS_EXTRA else (0, at)
    data, at = _number(content, at) if flags & _HAS_DATA else (0, at)
    if kind == _MAIN:
        found.is_volume = bool(_number(content, at)[0] & _VOLUME)
    if kind == _ENCRYPTION or (kind in (_FILE, _SERVICE) and _has_encryption(content, max(at, end - extra), end)):
        found.is_encrypted = True
    return max(end, at) + data


def _has_encryption(content: bytes, at: int, end: int) -> bool:
    """Whether one of the records of a file's header, which take at least two bytes each, is of the type 1."""
    while at < min(end, len(content)):
        size, at = _number(content, at)
        if size and _number(content, at)[0] == 1:
            return True
        at += size
    return False


def _number(content: bytes, at: int) -> tuple[int, int]:
    """Seven bits in each byte, the lowest first; and the position after it."""
    value = 0
    for place in range(10):
        byte = content[at] if at < len(content) else 0
        value |= (byte & 0x7F) << (7 * place)
        at += 1
        if byte < 0x80:
            break
    return value, at
